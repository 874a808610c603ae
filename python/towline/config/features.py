"""Options of logs, static files, compression, metrics."""

from __future__ import annotations

import dataclasses
from typing import Any

from .. import _options as kind
from .. import _values as values
from .._codings import CODINGS, REQUEST_CODINGS
from .._options import Section, between, number, option, size

GUNICORN_LOG_FORMAT = '%(h)s %(l)s %(u)s %(t)s "%(r)s" %(s)s %(b)s "%(f)s" "%(a)s"'


# A table, whose layout the formatter keeps.
# fmt: off
@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class LoggingOptions(Section, group="logging", summary="server log and access log"):
    log_level: str = option(
        "info", "minimum level of log lines on stderr",
        choices=(*values.LOG_LEVELS,))
    log_config: Any = option(
        None, "logging configuration: .ini, .json, .toml or .yaml (a dict from Python)", metavar="PATH")
    log_file: str | None = option(
        None, "write the server log to PATH instead of stderr; - is stderr; not with --log-config", metavar="PATH",
        aliases=("--error-logfile", "--error-log"))
    log_format: str = option(
        "text", "json: one object per line, in all logs",
        choices=("text", "json"))
    access_log: str | None = option(
        None, "write a line for each request to PATH (- is stdout); off by default, because it costs time",
        metavar="PATH", const="-", off="")
    access_log_format: str = option(
        GUNICORN_LOG_FORMAT, "format with gunicorn's atoms, or json", metavar="FORMAT",
        aliases=("--access-logformat", "--access-log-fmt"))
    access_log_logger: str | None = option(
        None, "pass access lines to this Python logger",
        metavar="NAME", const="towline.access")
    access_log_headers: tuple[str, ...] = option(
        (), "request headers to add to JSON access lines", metavar="NAMES", parse=kind.words)
    access_log_redact: tuple[str, ...] = option(
        values.SECRET_PARAMETERS, "query parameters to hide; none hides nothing",
        metavar="NAMES", parse=values.redacted_parameters)
    access_log_exclude: tuple[str, ...] = option(
        (), "no line for PATH, STATUS or STATUS:PATH, such as /healthz, '/static/*', 404, 2xx:/metrics",
        metavar="RULE", parse=lambda rules: tuple(rules.split()), check=values.access_log_rules, repeat=True)
    access_log_sample: float = option(
        1.0, "share of successes (status < 400) logged", metavar="SHARE", parse=values.share, check=between(0, 1))
    access_log_slow: float | None = option(
        None, "always log requests that take this long", metavar="SECONDS", parse=kind.optional_seconds, check=kind.above_zero)
    request_id_header: str | None = option(
        None,
        "give each request an id in this header: that of a trusted proxy (--forwarded-allow-ips), or a new UUID",
        metavar="NAME", const="x-request-id")


@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class FileOptions(Section, group="files", summary="static files, compression, response headers"):
    static: tuple[tuple[str, str], ...] = option(
        (), "serve a directory under a route, without the application (/static if only DIR is given)",
        metavar="ROUTE=DIR", parse=values.static_route, repeat=True)
    static_expires: int = number(
        86400, "max-age sent with static files; 0 sends no Cache-Control", flag="--static-path-expires",
        metavar="SECONDS", least=0)
    static_index: str | None = option(
        None, "file served for a directory, such as index.html; none by default", metavar="NAME",
        aliases=("--static-path-dir-to-file",))
    compress: tuple[str, ...] = option(
        (), f"compress responses of at least 860 bytes; codings in order of preference (all: {','.join(CODINGS)})",
        metavar="CODINGS", parse=values.codings, const=CODINGS)
    decompress_requests: tuple[str, ...] = option(
        (), f"decode request bodies; 415 for other codings (all: {','.join(REQUEST_CODINGS)})",
        metavar="CODINGS", parse=values.request_codings, const=REQUEST_CODINGS)
    limit_decompressed_body: int = size(
        64 << 20, "bytes of a decoded request body, also at most --limit-request-body; 413 if exceeded")
    server_header: bool = option(True, "the header `server: towline`")
    date_header: bool = option(True, "the header `date` (RFC 9110 6.6.1)")
    headers: tuple[tuple[bytes, bytes], ...] = option(
        (), "header to send with every response", flag="--header", metavar="NAME:VALUE", parse=values.header,
        repeat=True)


@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class MetricsOptions(Section, group="metrics", summary="Prometheus and StatsD metrics, traces, health"):
    metrics: bool = option(False, "serve /metrics in the text format of Prometheus")
    metrics_address: str | None = option(None, "serve /metrics on this address only", metavar="ADDRESS")
    statsd: str | None = option(
        None, "send metrics once a second to this StatsD server (UDP, or unix:PATH); from the supervisor",
        metavar="HOST:PORT", aliases=("--statsd-host",))
    statsd_prefix: str = option(
        "towline", "first part of the names of these metrics; `gunicorn` suits dashboards made for gunicorn",
        metavar="PREFIX")
    statsd_tags: tuple[str, ...] = option(
        (), "tags of these metrics in the format of DogStatsD, such as env:prod,region:eu", metavar="TAGS",
        parse=kind.words, aliases=("--dogstatsd-tags",))
    otel: bool = option(
        False,
        "make an OpenTelemetry span for each request; needs opentelemetry-api, and the SDK as the application sets it up")
    health_path: str | None = option(
        None,
        "respond to GET at this path without the application, also on the metrics address: 200 ok, or 503 while the "
        "server stops; PATH/live is 200 as long as the worker responds",
        metavar="PATH")


# fmt: on
