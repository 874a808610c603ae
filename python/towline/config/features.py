"""Options of logs, static files, compression, metrics."""

from __future__ import annotations

import dataclasses
from typing import Any

from .. import _options as kind
from .. import _values as values
from .._options import at_least, option
from .._values import CODINGS
from .groups import FILES, LOGGING, METRICS

GUNICORN_LOG_FORMAT = '%(h)s %(l)s %(u)s %(t)s "%(r)s" %(s)s %(b)s "%(f)s" "%(a)s"'


# fmt: off - a table of options: one line each where it fits
@dataclasses.dataclass(frozen=True)
class FeatureOptions:
    """Logs, static files, compression, response headers, metrics, traces and health."""

    log_level: str = option(
        "info",
        "minimum level of log lines on stderr",
        group=LOGGING,
        choices=("trace", "debug", "info", "warning", "error", "critical"),
    )
    log_config: Any = option(
        None,
        "logging configuration: .ini, .json, .toml or .yaml (a dict from Python)",
        group=LOGGING,
        metavar="PATH",
    )
    log_format: str = option(
        "text",
        "json writes the server log, and the access log unless it has a format, as one JSON object per line",
        group=LOGGING,
        choices=("text", "json"),
    )
    access_log: str | None = option(
        None,
        "write one line per request to PATH, or - for stdout; off by default because of its cost",
        group=LOGGING,
        metavar="PATH",
        const="-",
    )
    access_log_format: str = option(
        GUNICORN_LOG_FORMAT,
        "format with gunicorn's atoms, or json",
        group=LOGGING,
        metavar="FORMAT",
        aliases=("--access-logformat", "--access-log-fmt"),
    )
    access_log_logger: str | None = option(
        None,
        "pass access log lines to this Python logger instead of a file, from a thread of their own",
        group=LOGGING,
        metavar="NAME",
        const="towline.access",
    )
    access_log_headers: tuple[str, ...] = option(
        (),
        "request headers that a JSON access log line has in addition",
        group=LOGGING,
        metavar="NAMES",
        parse=kind.words,
    )
    access_log_redact: tuple[str, ...] = option(
        values.SECRET_PARAMETERS,
        "query parameters whose values are not logged; none logs every query whole",
        group=LOGGING,
        metavar="NAMES",
        parse=values.redacted_parameters,
    )
    request_id_header: str | None = option(
        None,
        "give each request an id in this header: the one of a trusted proxy (--forwarded-allow-ips), or a new UUID",
        group=LOGGING,
        metavar="NAME",
        const="x-request-id",
    )

    static: tuple[tuple[str, str], ...] = option(
        (),
        "serve a directory under a route, without the application (/static if only DIR is given)",
        group=FILES,
        metavar="ROUTE=DIR",
        parse=values.static_route,
        repeat=True,
    )
    static_expires: int = option(
        86400,
        "max-age sent with static files; 0 sends no Cache-Control",
        group=FILES,
        flag="--static-path-expires",
        parse=kind.integer,
        metavar="SECONDS",
        check=at_least(0),
    )
    static_index: str | None = option(
        None,
        "file served for a directory, such as index.html; none by default",
        group=FILES,
        metavar="NAME",
        aliases=("--static-path-dir-to-file",),
    )
    compress: tuple[str, ...] = option(
        (),
        "compress responses of at least 860 bytes; codings in order of preference (all: br,zstd,gzip)",
        group=FILES,
        metavar="CODINGS",
        parse=values.codings,
        const=CODINGS,
    )
    server_header: bool = option(True, "send `server: towline`", group=FILES)
    date_header: bool = option(True, "send `date` (RFC 9110 6.6.1)", group=FILES)
    headers: tuple[tuple[bytes, bytes], ...] = option(
        (),
        "a header sent with every response",
        group=FILES,
        flag="--header",
        metavar="NAME:VALUE",
        parse=values.header,
        repeat=True,
    )

    metrics: bool = option(False, "serve /metrics in the text format of Prometheus", group=METRICS)
    metrics_address: str | None = option(
        None, "serve /metrics on this address only", group=METRICS, metavar="ADDRESS"
    )
    statsd: str | None = option(
        None,
        "send metrics once a second to this StatsD server (UDP, or unix:PATH); from the supervisor",
        group=METRICS,
        metavar="HOST:PORT",
        aliases=("--statsd-host",),
    )
    statsd_prefix: str = option(
        "towline",
        "first part of the names of these metrics: `gunicorn` for dashboards made for gunicorn",
        group=METRICS,
        metavar="PREFIX",
    )
    statsd_tags: tuple[str, ...] = option(
        (),
        "tags of these metrics in the format of DogStatsD, such as env:prod,region:eu",
        group=METRICS,
        metavar="TAGS",
        parse=kind.words,
        aliases=("--dogstatsd-tags",),
    )
    otel: bool = option(
        False,
        "make an OpenTelemetry span for each request; needs opentelemetry-api, and the SDK as the application sets it up",
        group=METRICS,
    )
    health_path: str | None = option(
        None,
        "respond to GET at this path without the application, also on the metrics address: 200 ok, or 503 while the"
        " server stops; PATH/live is 200 as long as the worker responds",
        group=METRICS,
        metavar="PATH",
    )


# fmt: on
