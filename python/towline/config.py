"""The server's configuration: every option with its default and the reason for it.

`ServerConfig` is the single definition. The command line (`--limit-request-line`), the environment
(`TOWLINE_LIMIT_REQUEST_LINE`), a TOML file (`limit-request-line = 8192`) and the native module, which reads
the attributes by name, all use it. Units are bytes and seconds unless a name says otherwise; None means
"no limit" or "not given".
"""

from __future__ import annotations

import dataclasses
from typing import Any

from . import _options as kind
from . import _values as values
from ._config_checks import as_tuple, check_kind, check_together
from ._options import above_zero, at_least, between, option, options_of
from ._values import CODINGS as CODINGS

APPLICATION = "application"
LISTENING = "listening"
WORKERS = "workers"
PROCESS = "process"
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
    APPLICATION: "the application to serve",
    LISTENING: "addresses",
    WORKERS: "processes, threads and their replacement",
    PROCESS: "directory, variables, user and preloading",
    LIMITS: "limits on requests",
    TIMEOUTS: "timeouts",
    TLS: "certificates",
    PROXY: "behind a load balancer",
    LOGGING: "server log and access log",
    FILES: "static files, compression, response headers",
    METRICS: "Prometheus metrics, health",
    PROTOCOLS: "HTTP/2 and WebSocket",
    DEVELOPMENT: "reload on change",
}

GUNICORN_LOG_FORMAT = '%(h)s %(l)s %(u)s %(t)s "%(r)s" %(s)s %(b)s "%(f)s" "%(a)s"'


@dataclasses.dataclass(frozen=True)
class Bind:
    """An open listening socket for a native server.

    `fd` stays owned by the caller: the server duplicates it. `address` is its readable form
    (`127.0.0.1:8000`, `unix:/run/app.sock`). `metrics`: serves only the metrics page.
    """

    fd: int
    address: str
    metrics: bool = False


_INT: dict[str, Any] = {"parse": kind.integer, "metavar": "N"}
_LIMIT: dict[str, Any] = {"parse": kind.optional_integer, "metavar": "N", "check": at_least(1)}
_BYTES: dict[str, Any] = {"parse": kind.integer, "metavar": "BYTES", "check": at_least(1)}
_SECONDS: dict[str, Any] = {"parse": kind.seconds, "metavar": "SECONDS", "check": above_zero}


# fmt: off - a table of options: one line each where it fits
@dataclasses.dataclass(frozen=True)
class ServerConfig:
    """All options of `towline serve`. `app` is an import string or the application itself.

    Raises `ConfigError`, naming the option, if a value or a combination is invalid.
    """

    app: Any = None

    interface: str = option(
        "auto",
        "calling convention of the application; auto detects it",
        group=APPLICATION,
        choices=("auto", "asgi", "asgi2", "asgi3", "wsgi"),
    )
    factory: bool = option(False, "APP is a function that returns the application", group=APPLICATION)
    app_dir: str = option(
        ".",
        "directory searched first for the application's module (default: the current one)",
        group=APPLICATION,
        metavar="DIR",
    )
    lifespan: str = option(
        "auto",
        "ASGI lifespan; auto: an application without support for it is served all the same",
        group=APPLICATION,
        choices=("auto", "on", "off"),
    )
    pathsend: str = option(
        "auto",
        "offer ASGI's http.response.pathsend; auto: unless the client accepts compression",
        group=APPLICATION,
        choices=("auto", "on", "off"),
    )
    root_path: str = option(
        "",
        "path prefix under which a proxy serves the application",
        group=APPLICATION,
        metavar="PATH",
        aliases=("--url-path-prefix",),
    )
    mount: tuple[tuple[str, str], ...] = option(
        (),
        "serve another application under a prefix; the longest prefix wins",
        group=APPLICATION,
        metavar="PREFIX=APP",
        parse=values.pair("=", "PREFIX=module:app"),
        repeat=True,
    )

    bind: tuple[str, ...] = option(
        (),
        "host:port, [v6]:port, unix:PATH or fd://N; instead of --host and --port",
        group=LISTENING,
        metavar="ADDRESS",
        parse=kind.words,
        aliases=("-b",),
        repeat=True,
    )
    host: str = option("127.0.0.1", "address or name; local only by default", group=LISTENING, metavar="HOST")
    port: int = option(8000, "port; 0 selects a free one", group=LISTENING, aliases=("-p",), **_INT)
    uds: str | None = option(None, "Unix socket", group=LISTENING, metavar="PATH")
    uds_permissions: int = option(
        0o666,
        "mode of Unix sockets, octal (default: 666, as a proxy runs under another user)",
        group=LISTENING,
        parse=values.octal,
        metavar="MODE",
        check=between(0, 0o777),
    )
    fd: int | None = option(None, "inherited descriptor of a listening socket", group=LISTENING, **_INT)
    backlog: int = option(
        2048,
        "connections that the kernel queues before they are accepted",
        group=LISTENING,
        check=at_least(1),
        **_INT,
    )

    workers: int = option(
        1,
        "worker processes",
        group=WORKERS,
        aliases=("-w",),
        variables=("WEB_CONCURRENCY",),
        check=at_least(1),
        **_INT,
    )
    threads: int = option(
        1,
        "WSGI threads per worker; 1, the fastest, runs the application on the I/O thread",
        group=WORKERS,
        check=at_least(1),
        **_INT,
    )
    loop: str = option(
        "auto",
        "event loop; auto uses uvloop if it is installed",
        group=WORKERS,
        choices=("auto", "asyncio", "uvloop"),
    )
    limit_max_requests: int | None = option(
        None,
        "replace a worker after this many requests (against memory leaks in the application)",
        group=WORKERS,
        aliases=("--max-requests",),
        **_LIMIT,
    )
    limit_max_requests_jitter: int = option(
        0,
        "random number of additional requests, to spread the replacement of workers",
        group=WORKERS,
        aliases=("--max-requests-jitter",),
        check=at_least(0),
        **_INT,
    )
    workers_lifetime: float | None = option(
        None,
        "replace a worker after this time",
        group=WORKERS,
        parse=kind.optional_seconds,
        metavar="SECONDS",
        check=above_zero,
    )
    workers_max_rss: int | None = option(
        None,
        "replace a worker with more resident memory than this, in MiB",
        group=WORKERS,
        parse=kind.optional_integer,
        metavar="MIB",
        check=at_least(1),
    )
    timeout_worker_healthcheck: float = option(
        30.0,
        "replace a worker if its event loop has not run for this time",
        group=WORKERS,
        **_SECONDS,
    )
    timeout_worker_startup: float = option(
        60.0, "time until a worker has to be ready to serve", group=WORKERS, **_SECONDS
    )
    pid_file: str | None = option(
        None,
        "file for the supervisor's process id",
        group=WORKERS,
        metavar="PATH",
        aliases=("--pidfile",),
    )

    chdir: str | None = option(
        None, "working directory, set before anything else", group=PROCESS, metavar="DIR"
    )
    env: tuple[tuple[str, str], ...] = option(
        (),
        "variable for the application",
        group=PROCESS,
        metavar="NAME=VALUE",
        parse=values.variable,
        aliases=("-e",),
        secret=True,
        repeat=True,
    )
    env_file: tuple[str, ...] = option(
        (),
        "file of variables for the application (NAME=VALUE lines); existing ones are kept",
        group=PROCESS,
        metavar="PATH",
        parse=values.one,
        repeat=True,
    )
    preload: bool = option(
        False,
        "import the application once, before the workers are forked; saves memory, HUP keeps the code",
        group=PROCESS,
    )
    user: str | None = option(
        None,
        "user of the workers, by name or id; start as root for it",
        group=PROCESS,
        metavar="USER",
        aliases=("-u",),
    )
    group: str | None = option(
        None, "their group (default: that of the user)", group=PROCESS, metavar="GROUP", aliases=("-g",)
    )
    umask: int | None = option(
        None,
        "umask of all processes, octal",
        group=PROCESS,
        parse=values.octal,
        metavar="MODE",
        aliases=("-m",),
    )

    limit_request_line: int = option(8192, "request line; 414 if exceeded", group=LIMITS, **_BYTES)
    limit_request_fields: int = option(
        100,
        "number of headers; 431 if exceeded",
        group=LIMITS,
        parse=kind.integer,
        metavar="N",
        check=at_least(1),
    )
    limit_request_field_size: int = option(8192, "one header line; 431 if exceeded", group=LIMITS, **_BYTES)
    limit_request_head: int = option(
        32768, "all header lines together, trailers included; 431 if exceeded", group=LIMITS, **_BYTES
    )
    limit_request_body: int | None = option(
        None,
        "request body; 413 if exceeded (default: unlimited, bodies are streamed)",
        group=LIMITS,
        parse=kind.optional_integer,
        metavar="BYTES",
        check=at_least(1),
    )
    wsgi_request_buffer: int = option(
        1 << 30,
        "WSGI: body collected before the application is called, above 256 KiB in a temporary file; 0 streams it",
        group=LIMITS,
        parse=kind.integer,
        metavar="BYTES",
        check=at_least(0),
    )
    wsgi_response_buffer: int = option(
        1 << 30,
        "WSGI: response in a temporary file for a slow reader while other requests wait; 0 makes them wait",
        group=LIMITS,
        parse=kind.integer,
        metavar="BYTES",
        check=at_least(0),
    )
    limit_concurrency: int | None = option(
        None,
        "requests in flight per worker, not idle connections; 503 with Retry-After if exceeded",
        group=LIMITS,
        aliases=("--backpressure", "--worker-connections"),
        **_LIMIT,
    )

    timeout_keep_alive: float = option(
        75.0,
        "idle connection; load balancers keep theirs for 60 s, and get 502s if this is shorter",
        group=TIMEOUTS,
        aliases=("--keep-alive", "--timeout-keepalive"),
        **_SECONDS,
    )
    timeout_request_header: float = option(
        15.0,
        "from accept, or the first byte on a kept-alive connection, to the end of the head; then 408",
        group=TIMEOUTS,
        **_SECONDS,
    )
    timeout_request_body: float = option(
        30.0,
        "without progress while a body is read or written; then 408 or close",
        group=TIMEOUTS,
        **_SECONDS,
    )
    min_bytes_per_second: int = option(
        100,
        "minimum rate of a body, in both directions; 0 disables it",
        group=TIMEOUTS,
        check=at_least(0),
        **_INT,
    )
    timeout_wsgi_client: float = option(
        30.0,
        "WSGI: requests waiting for a slow reader that exceeds wsgi-response-buffer; then it is aborted",
        group=TIMEOUTS,
        parse=kind.seconds,
        metavar="SECONDS",
        check=at_least(0),
    )
    timeout_graceful_shutdown: float = option(
        30.0,
        "time for requests in flight at shutdown, before they are cancelled",
        group=TIMEOUTS,
        aliases=("--graceful-timeout",),
        parse=kind.seconds,
        metavar="SECONDS",
        check=at_least(0),
    )
    timeout_drain_idle: float = option(
        3.0,
        "time for kept-alive connections to send one more request at a reload or stop, answered with"
        " Connection: close, before idle ones are closed; Ctrl-C does not wait",
        group=TIMEOUTS,
        parse=kind.seconds,
        metavar="SECONDS",
        check=at_least(0),
    )

    ssl_certfile: tuple[str, ...] = option(
        (),
        "certificate chain, PEM; if several, the client's server name (SNI) selects one",
        group=TLS,
        metavar="PATH",
        parse=values.one,
        aliases=("--certfile",),
        repeat=True,
    )
    ssl_keyfile: tuple[str, ...] = option(
        (),
        "private key, PEM; may be in the certificate's file",
        group=TLS,
        metavar="PATH",
        parse=values.one,
        aliases=("--keyfile",),
        repeat=True,
    )
    ssl_keyfile_password: str | None = option(
        None,
        "password of the key; better given as TOWLINE_SSL_KEYFILE_PASSWORD",
        group=TLS,
        metavar="PASSWORD",
        secret=True,
    )
    ssl_ca_certs: str | None = option(
        None, "authorities that must have issued client certificates (mTLS)", group=TLS, metavar="PATH"
    )
    ssl_cert_reqs: str = option(
        "none",
        "client certificate: none, optional or required (0, 1, 2)",
        group=TLS,
        parse=values.cert_reqs,
        metavar="none|optional|required",
    )
    ssl_crl: tuple[str, ...] = option(
        (),
        "revocation lists for client certificates, PEM",
        group=TLS,
        metavar="PATH",
        parse=values.one,
        repeat=True,
    )
    ssl_min_version: str = option(
        "1.2", "oldest TLS version: 1.2 or 1.3", group=TLS, parse=values.tls_version, metavar="1.2|1.3"
    )
    ssl_ciphers: tuple[str, ...] = option(
        (),
        "cipher suites by name, best first (default: all that are secure)",
        group=TLS,
        metavar="LIST",
        parse=values.colons,
    )

    proxy_headers: bool = option(
        True, "use X-Forwarded-For and X-Forwarded-Proto of trusted addresses", group=PROXY
    )
    forwarded_allow_ips: tuple[str, ...] = option(
        ("127.0.0.1", "::1", "unix"),
        "trusted addresses or networks (CIDR), unix for Unix sockets, * for any",
        group=PROXY,
        metavar="LIST",
        parse=kind.words,
        variables=("FORWARDED_ALLOW_IPS",),
    )
    proxy_protocol: bool = option(
        False, "expect the PROXY protocol (v1 or v2) from trusted addresses", group=PROXY
    )

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
    health_path: str | None = option(
        None,
        "respond to GET at this path without the application, also on the metrics address: 200 ok, or 503 while the"
        " server stops; PATH/live is 200 as long as the worker responds",
        group=METRICS,
        metavar="PATH",
    )

    http: str = option(
        "auto",
        "HTTP versions: both (by ALPN with TLS, else by the first bytes), only 1, or only 2",
        group=PROTOCOLS,
        choices=("auto", "1", "2"),
    )
    http2_max_concurrent_streams: int = option(
        128,
        "concurrent streams of a connection; REFUSED_STREAM if exceeded",
        group=PROTOCOLS,
        check=between(1, 2**31 - 1),
        **_INT,
    )
    http2_initial_stream_window_size: int = option(
        262144,
        "bytes per stream that the application has not read",
        group=PROTOCOLS,
        parse=kind.integer,
        metavar="BYTES",
        check=between(1, 2**31 - 1),
    )
    http2_initial_connection_window_size: int = option(
        1048576,
        "bytes of all streams together that have not been received (RFC 9113 6.9.2: at least 65535)",
        group=PROTOCOLS,
        parse=kind.integer,
        metavar="BYTES",
        check=between(65535, 2**31 - 1),
    )
    http2_max_headers_size: int = option(
        65536,
        "decoded headers plus 32 bytes for each; 431 if exceeded",
        group=PROTOCOLS,
        **_BYTES,
    )
    ws: bool = option(True, "WebSocket; without it an upgrade is an ordinary request", group=PROTOCOLS)
    ws_max_size: int = option(16777216, "message or frame; close 1009 if exceeded", group=PROTOCOLS, **_BYTES)
    ws_ping_interval: float | None = option(
        20.0,
        "interval of pings; none disables them",
        group=PROTOCOLS,
        parse=kind.optional_seconds,
        metavar="SECONDS",
        check=above_zero,
    )
    ws_ping_timeout: float | None = option(
        20.0,
        "time for the pong, before the connection is closed",
        group=PROTOCOLS,
        parse=kind.optional_seconds,
        metavar="SECONDS",
        check=above_zero,
    )
    ws_per_message_deflate: bool = option(True, "offer compression (RFC 7692)", group=PROTOCOLS)

    reload: bool = option(
        False, "restart the worker when a file changes; means one worker", group=DEVELOPMENT
    )
    reload_dir: tuple[str, ...] = option(
        (),
        "directory watched instead of the application's",
        group=DEVELOPMENT,
        metavar="DIR",
        parse=lambda value: (value,),
        repeat=True,
    )
    reload_include: tuple[str, ...] = option(
        ("*.py",), "files to watch", group=DEVELOPMENT, metavar="GLOB", parse=kind.words, repeat=True
    )
    reload_exclude: tuple[str, ...] = option(
        (".*", "__pycache__", "node_modules"),
        "files and directories not to watch",
        group=DEVELOPMENT,
        metavar="GLOB",
        parse=kind.words,
        repeat=True,
    )

    def __post_init__(self) -> None:
        for name, (described, default) in options_of(type(self)).items():
            value = getattr(self, name)
            if isinstance(default, tuple):
                value = as_tuple(name, value)
                object.__setattr__(self, name, value)
            check_kind(name, described, default, value)
            if described.check is not None:
                described.check(name, value)
        check_together(self)

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
