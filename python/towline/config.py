"""The server's configuration: every option once, with its default and the reason for it.

`ServerConfig` is the single source. The command line (`--limit-request-line`), the environment
(`TOWLINE_LIMIT_REQUEST_LINE`), a TOML file (`limit-request-line = 8192`) and the native module, which reads
the attributes by name, all follow it. Units: bytes and seconds, unless a name says otherwise; None means
"no limit" or "not given".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from . import _options as kind
from ._options import Option, above_zero, at_least, between, option, options_of
from .errors import ConfigError

APPLICATION = "application"
LISTENING = "listening"
WORKERS = "workers"
LIMITS = "limits"
TIMEOUTS = "timeouts"
TLS = "tls"
PROXY = "proxy"
LOGGING = "logging"
FILES = "files"
METRICS = "metrics"
PROTOCOLS = "protocols"
DEVELOPMENT = "development"

GROUPS: dict[str, str] = {
    APPLICATION: "what is served",
    LISTENING: "where it listens",
    WORKERS: "processes, threads and their replacement",
    LIMITS: "bounds on what a client may send",
    TIMEOUTS: "bounds on how long it may take",
    TLS: "certificates",
    PROXY: "behind a load balancer",
    LOGGING: "server log and access log",
    FILES: "static files, compression, response headers",
    METRICS: "Prometheus metrics",
    PROTOCOLS: "HTTP/2 and WebSocket",
    DEVELOPMENT: "reload on change",
}

GUNICORN_LOG_FORMAT = '%(h)s %(l)s %(u)s %(t)s "%(r)s" %(s)s %(b)s "%(f)s" "%(a)s"'
CODINGS = ("br", "zstd", "gzip")


@dataclasses.dataclass(frozen=True)
class Bind:
    """One listening socket, already open, as the native servers take it.

    `fd` stays owned by whoever opened it: the server duplicates it. `address` is how a person writes it
    (`127.0.0.1:8000`, `unix:/run/app.sock`). `metrics`: answers only the metrics page.
    """

    fd: int
    address: str
    metrics: bool = False


def _pair(separator: str, example: str) -> Callable[[str], tuple[tuple[str, str], ...]]:
    def parse(value: str) -> tuple[tuple[str, str], ...]:
        left, found, right = value.partition(separator)
        if not found or not left or not right:
            raise ValueError(f"expected {example}, not {value!r}")
        return ((left, right),)

    return parse


def _header(value: str) -> tuple[tuple[bytes, bytes], ...]:
    name, found, content = value.partition(":")
    if not found or not name:
        raise ValueError(f"expected NAME:VALUE, not {value!r}")
    return ((name.encode("latin-1"), content.strip().encode("latin-1")),)


def _codings(value: str) -> tuple[str, ...]:
    lowered = value.strip().lower()
    if lowered in ("true", "yes", "on", "all", "1"):
        return CODINGS
    if lowered in ("false", "no", "off", "none", "0"):
        return ()
    return kind.words(lowered)


CERT_REQS = ("none", "optional", "required")


def _cert_reqs(value: str) -> str:
    """Also the numbers of the ssl module, which uvicorn and gunicorn take."""
    return CERT_REQS[int(value)] if value in ("0", "1", "2") else value


def _static(value: str) -> tuple[tuple[str, str], ...]:
    route, found, directory = value.partition("=")
    return ((route, directory),) if found else (("/static", value),)


_INT: dict[str, Any] = {"parse": kind.integer, "metavar": "N"}
_LIMIT: dict[str, Any] = {"parse": kind.optional_integer, "metavar": "N", "check": at_least(1)}
_BYTES: dict[str, Any] = {"parse": kind.integer, "metavar": "BYTES", "check": at_least(1)}
_SECONDS: dict[str, Any] = {"parse": kind.seconds, "metavar": "SECONDS", "check": above_zero}


# A table: one option reads best on as few lines as it needs.
# fmt: off
@dataclasses.dataclass(frozen=True)
class ServerConfig:
    """Everything `towline serve` can be told. `app` is an import string or the application itself.

    Raises `ConfigError`, naming the option, when a value or a combination makes no sense.
    """

    app: Any = None

    interface: str = option(
        "auto", "how the application is called; auto looks at it", group=APPLICATION,
        choices=("auto", "asgi", "wsgi"),
    )
    factory: bool = option(False, "APP is a function that returns the application", group=APPLICATION)
    app_dir: str = option(
        ".", "looked in first for the application's module (default: here)", group=APPLICATION, metavar="DIR"
    )
    lifespan: str = option(
        "auto", "ASGI lifespan; auto: an application that refuses it is served without", group=APPLICATION,
        choices=("auto", "on", "off"),
    )
    root_path: str = option(
        "", "prefix under which a proxy has mounted the application", group=APPLICATION,
        metavar="PATH", aliases=("--url-path-prefix",),
    )
    mount: tuple[tuple[str, str], ...] = option(
        (), "serve another application under a prefix; the longest prefix wins", group=APPLICATION,
        metavar="PREFIX=APP", parse=_pair("=", "PREFIX=module:app"), repeat=True,
    )

    bind: tuple[str, ...] = option(
        (), "host:port, [v6]:port, unix:PATH or fd://N; replaces --host and --port", group=LISTENING,
        metavar="ADDRESS", parse=kind.words, aliases=("-b",), repeat=True,
    )
    host: str = option("127.0.0.1", "address or name; local only by default", group=LISTENING, metavar="HOST")
    port: int = option(8000, "port; 0 takes a free one", group=LISTENING, aliases=("-p",), **_INT)
    uds: str | None = option(None, "Unix socket", group=LISTENING, metavar="PATH")
    fd: int | None = option(None, "inherited descriptor of a listening socket", group=LISTENING, **_INT)
    backlog: int = option(
        2048, "connections the kernel holds before they are accepted", group=LISTENING,
        check=at_least(1), **_INT,
    )

    workers: int = option(
        1, "worker processes", group=WORKERS, aliases=("-w",), variables=("WEB_CONCURRENCY",),
        check=at_least(1), **_INT,
    )
    threads: int = option(
        1, "WSGI threads of each worker; 1 runs the application on the I/O thread, the fastest",
        group=WORKERS, check=at_least(1), **_INT,
    )
    loop: str = option(
        "auto", "event loop; auto takes uvloop if it is installed", group=WORKERS,
        choices=("auto", "asyncio", "uvloop"),
    )
    limit_max_requests: int | None = option(
        None, "replace a worker after this many requests (against leaks in the application)", group=WORKERS,
        aliases=("--max-requests",), **_LIMIT,
    )
    limit_max_requests_jitter: int = option(
        0, "up to this many more, at random, so that workers do not all go at once", group=WORKERS,
        aliases=("--max-requests-jitter",), check=at_least(0), **_INT,
    )
    workers_lifetime: float | None = option(
        None, "replace a worker after this long", group=WORKERS, parse=kind.optional_seconds,
        metavar="SECONDS", check=above_zero,
    )
    workers_max_rss: int | None = option(
        None, "replace a worker whose resident memory is over this many MiB", group=WORKERS,
        parse=kind.optional_integer, metavar="MIB", check=at_least(1),
    )
    timeout_worker_healthcheck: float = option(
        30.0, "replace a worker whose loop has not turned for this long", group=WORKERS,
        aliases=("--workers-kill-timeout",), **_SECONDS,
    )
    timeout_worker_startup: float = option(
        60.0, "a worker that is not ready to serve after this long has failed", group=WORKERS, **_SECONDS
    )
    pid_file: str | None = option(
        None, "where to write the supervisor's process id", group=WORKERS, metavar="PATH",
        aliases=("--pidfile",),
    )

    limit_request_line: int = option(8192, "method, target and version; over it 414", group=LIMITS, **_BYTES)
    limit_request_fields: int = option(
        100, "header fields; over it 431", group=LIMITS, parse=kind.integer, metavar="N", check=at_least(1)
    )
    limit_request_field_size: int = option(8192, "one header line; over it 431", group=LIMITS, **_BYTES)
    limit_request_head: int = option(
        32768, "all header lines together (trailers too); over it 431", group=LIMITS, **_BYTES
    )
    limit_request_body: int | None = option(
        None, "body, over it 413; none because bodies stream and cost no memory", group=LIMITS,
        parse=kind.optional_integer, metavar="BYTES", check=at_least(1),
    )
    limit_concurrency: int | None = option(
        None, "requests in flight per worker (idle connections never count); over it 503 and Retry-After",
        group=LIMITS, aliases=("--backpressure", "--worker-connections"), **_LIMIT,
    )

    timeout_keep_alive: float = option(
        75.0, "idle connection; load balancers hold 60 s and a shorter one here gives them 502s",
        group=TIMEOUTS, aliases=("--keep-alive", "--timeout-keepalive"), **_SECONDS,
    )
    timeout_request_header: float = option(
        15.0, "from accept, or the first byte on a kept connection, to the end of the head; over it 408",
        group=TIMEOUTS, **_SECONDS,
    )
    timeout_request_body: float = option(
        30.0, "without progress while a body is read or written; over it 408 or closed", group=TIMEOUTS,
        **_SECONDS,
    )
    min_bytes_per_second: int = option(
        100, "slowest body that is still served, both ways; 0 switches it off", group=TIMEOUTS,
        check=at_least(0), **_INT,
    )
    timeout_graceful_shutdown: float = option(
        30.0, "for requests in flight when stopping, then they are cancelled; always finite", group=TIMEOUTS,
        aliases=("--graceful-timeout",), parse=kind.seconds, metavar="SECONDS", check=at_least(0),
    )

    ssl_certfile: str | None = option(
        None, "certificate chain, PEM", group=TLS, metavar="PATH", aliases=("--certfile",)
    )
    ssl_keyfile: str | None = option(
        None, "private key, PEM; may stand in the certificate's file", group=TLS, metavar="PATH",
        aliases=("--keyfile",),
    )
    ssl_keyfile_password: str | None = option(
        None, "of an encrypted key; better given as TOWLINE_SSL_KEYFILE_PASSWORD", group=TLS,
        metavar="PASSWORD", secret=True,
    )
    ssl_ca_certs: str | None = option(
        None, "authorities that client certificates must come from (mTLS)", group=TLS, metavar="PATH"
    )
    ssl_cert_reqs: str = option(
        "none", "client certificate: none, optional or required (0, 1, 2)", group=TLS, parse=_cert_reqs,
        metavar="none|optional|required",
    )

    proxy_headers: bool = option(
        True, "take client and scheme from X-Forwarded-For and X-Forwarded-Proto of trusted addresses", group=PROXY
    )
    forwarded_allow_ips: tuple[str, ...] = option(
        ("127.0.0.1", "::1", "unix"), "trusted addresses or networks (CIDR), unix for Unix sockets, * for any",
        group=PROXY, metavar="LIST", parse=kind.words, variables=("FORWARDED_ALLOW_IPS",),
    )
    proxy_protocol: bool = option(
        False, "expect the PROXY protocol (v1 or v2) from trusted addresses", group=PROXY
    )

    log_level: str = option(
        "info", "least severe line written to stderr", group=LOGGING,
        choices=("trace", "debug", "info", "warning", "error", "critical"),
    )
    log_config: Any = option(
        None, "logging configuration: .ini, .json or .toml (a dict from Python)", group=LOGGING, metavar="PATH"
    )
    access_log: str | None = option(
        None, "write one line per request to PATH, or - for stdout; off by default for its cost",
        group=LOGGING, metavar="PATH", const="-",
    )
    access_log_format: str = option(
        GUNICORN_LOG_FORMAT, "gunicorn's atoms, or json", group=LOGGING, metavar="FORMAT",
        aliases=("--access-logformat", "--access-log-fmt"),
    )

    static: tuple[tuple[str, str], ...] = option(
        (), "serve a directory under a route without the application (/static if only DIR is given)",
        group=FILES, metavar="ROUTE=DIR", parse=_static, repeat=True,
    )
    static_expires: int = option(
        86400, "max-age sent with static files; 0 sends no Cache-Control", group=FILES,
        flag="--static-path-expires", parse=kind.integer, metavar="SECONDS", check=at_least(0),
    )
    static_index: str | None = option(
        None, "file that stands for its directory, such as index.html; none by default", group=FILES,
        metavar="NAME", aliases=("--static-path-dir-to-file",),
    )
    compress: tuple[str, ...] = option(
        (), "compress responses of 860 bytes and more; codings in order of preference (all: br,zstd,gzip)",
        group=FILES, metavar="CODINGS", parse=_codings, const=CODINGS,
    )
    server_header: bool = option(True, "send `server: towline`", group=FILES)
    date_header: bool = option(True, "send `date` (RFC 9110 6.6.1 asks for it)", group=FILES)
    headers: tuple[tuple[bytes, bytes], ...] = option(
        (), "a field sent with every response", group=FILES, flag="--header", metavar="NAME:VALUE",
        parse=_header, repeat=True,
    )

    metrics: bool = option(False, "answer /metrics in Prometheus' text format", group=METRICS)
    metrics_address: str | None = option(
        None, "answer it on this address only, not beside the application", group=METRICS, metavar="ADDRESS"
    )

    http: str = option(
        "auto", "versions spoken: both (by ALPN over TLS, by the first bytes without), only 1, only 2",
        group=PROTOCOLS, choices=("auto", "1", "2"),
    )
    http2_max_concurrent_streams: int = option(
        128, "streams of a connection at once; over it REFUSED_STREAM", group=PROTOCOLS,
        check=between(1, 2**31 - 1), **_INT,
    )
    http2_initial_stream_window_size: int = option(
        262144, "what a stream may hold that the application has not read", group=PROTOCOLS,
        parse=kind.integer, metavar="BYTES", check=between(1, 2**31 - 1),
    )
    http2_initial_connection_window_size: int = option(
        1048576, "what may be on its way to all streams together (RFC 9113 6.9.2: not below 65535)",
        group=PROTOCOLS, parse=kind.integer, metavar="BYTES", check=between(65535, 2**31 - 1),
    )
    http2_max_headers_size: int = option(
        65536, "header list after decoding, 32 bytes for each field included; over it 431", group=PROTOCOLS,
        **_BYTES,
    )
    ws_max_size: int = option(16777216, "message and frame; over it close 1009", group=PROTOCOLS, **_BYTES)
    ws_ping_interval: float | None = option(
        20.0, "between pings; none sends none", group=PROTOCOLS, parse=kind.optional_seconds,
        metavar="SECONDS", check=above_zero,
    )
    ws_ping_timeout: float | None = option(
        20.0, "for the answer, then the connection is closed", group=PROTOCOLS, parse=kind.optional_seconds,
        metavar="SECONDS", check=above_zero,
    )
    ws_per_message_deflate: bool = option(True, "offer compression (RFC 7692)", group=PROTOCOLS)

    reload: bool = option(False, "restart the worker when a file changes", group=DEVELOPMENT)
    reload_dir: tuple[str, ...] = option(
        (), "watched instead of the application's directory", group=DEVELOPMENT, metavar="DIR",
        parse=lambda value: (value,), repeat=True,
    )
    reload_include: tuple[str, ...] = option(
        ("*.py",), "file names that count", group=DEVELOPMENT, metavar="GLOB", parse=kind.words, repeat=True
    )
    reload_exclude: tuple[str, ...] = option(
        (".*", "__pycache__", "node_modules"), "file or directory names that do not", group=DEVELOPMENT,
        metavar="GLOB", parse=kind.words, repeat=True,
    )

    def __post_init__(self) -> None:
        for name, (described, default) in options_of(type(self)).items():
            value = getattr(self, name)
            if isinstance(default, tuple):
                value = _tuple(name, value)
                object.__setattr__(self, name, value)
            _check_kind(name, described, default, value)
            if described.check is not None:
                described.check(name, value)
        _check_together(self)

    def replace(self, **changes: Any) -> ServerConfig:
        """A copy with some options changed; validated again."""
        return dataclasses.replace(self, **changes)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses to open, in `--bind` form, whichever options named them."""
        if self.bind:
            return self.bind
        if self.uds is not None:
            return (f"unix:{self.uds}",)
        if self.fd is not None:
            return (f"fd://{self.fd}",)
        host = f"[{self.host}]" if ":" in self.host and not self.host.startswith("[") else self.host
        return (f"{host}:{self.port}",)
# fmt: on


def _tuple(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, (tuple, list)):
        raise ConfigError(f"{name}: expected a list, not {value!r}")
    return tuple(tuple(item) if isinstance(item, list) else item for item in value)


def _check_kind(name: str, described: Option, default: Any, value: Any) -> None:
    """The type of a value that did not come through `parse` (from Python or a TOML file)."""
    if described.choices and value not in described.choices:
        raise ConfigError(f"{name}: expected one of {', '.join(described.choices)}, not {value!r}")
    if described.switch and not isinstance(value, bool):
        raise ConfigError(f"{name}: expected true or false, not {value!r}")
    if (
        isinstance(default, int)
        and not described.switch
        and (isinstance(value, bool) or not isinstance(value, int))
    ):
        raise ConfigError(f"{name}: expected a whole number, not {value!r}")
    if isinstance(default, str) and not isinstance(value, str):
        raise ConfigError(f"{name}: expected text, not {value!r}")


def _check_together(config: ServerConfig) -> None:
    """What two options say to each other."""
    if not 0 <= config.port <= 65535:
        raise ConfigError(f"port: must be between 0 and 65535, not {config.port}")
    if config.ssl_cert_reqs not in CERT_REQS:
        raise ConfigError(
            f"ssl_cert_reqs: expected one of {', '.join(CERT_REQS)}, not {config.ssl_cert_reqs!r}"
        )
    if config.ssl_keyfile and not config.ssl_certfile:
        raise ConfigError("ssl_keyfile: needs ssl_certfile")
    if config.ssl_cert_reqs != "none" and not config.ssl_ca_certs:
        raise ConfigError("ssl_cert_reqs: needs ssl_ca_certs, the authorities to check against")
    if config.root_path and (not config.root_path.startswith("/") or config.root_path.endswith("/")):
        raise ConfigError(f"root_path: must start with / and not end with it, not {config.root_path!r}")
    unknown = [coding for coding in config.compress if coding not in CODINGS]
    if unknown:
        raise ConfigError(f"compress: unknown coding {unknown[0]!r}; there are {', '.join(CODINGS)}")
    for prefix, _ in (*config.mount, *config.static):
        if not prefix.startswith("/"):
            raise ConfigError(f"a mounted prefix must start with /, not {prefix!r}")
    if config.reload and config.workers > 1:
        raise ConfigError("reload: is for development, with one worker")
