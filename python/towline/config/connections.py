"""Options of connections: limits, timeouts, TLS, trusted proxies."""

from __future__ import annotations

import dataclasses

from .. import _options as kind
from .. import _values as values
from .._options import at_least, option
from .groups import BYTES, INT, LIMIT, LIMITS, PROXY, SECONDS, TIMEOUTS, TLS


# fmt: off - a table of options: one line each where it fits
@dataclasses.dataclass(frozen=True)
class ConnectionOptions:
    """Limits, timeouts, TLS and trusted proxies."""

    limit_request_line: int = option(8192, "request line; 414 if exceeded", group=LIMITS, **BYTES)
    limit_request_fields: int = option(
        100,
        "number of headers; 431 if exceeded",
        group=LIMITS,
        parse=kind.integer,
        metavar="N",
        check=at_least(1),
    )
    limit_request_field_size: int = option(8192, "one header line; 431 if exceeded", group=LIMITS, **BYTES)
    limit_request_head: int = option(
        32768, "all header lines together, trailers included; 431 if exceeded", group=LIMITS, **BYTES
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
        **LIMIT,
    )
    wsgi_websockets: int = option(
        100,
        "WSGI with --threads: WebSockets per worker, each with a thread of its own; 503 if exceeded, 0 for none",
        group=LIMITS,
        check=at_least(0),
        **INT,
    )

    timeout_keep_alive: float = option(
        75.0,
        "idle connection; load balancers keep theirs for 60 s, and get 502s if this is shorter",
        group=TIMEOUTS,
        aliases=("--keep-alive", "--timeout-keepalive"),
        **SECONDS,
    )
    timeout_request_header: float = option(
        15.0,
        "from accept, or the first byte on a kept-alive connection, to the end of the head; then 408",
        group=TIMEOUTS,
        **SECONDS,
    )
    timeout_request_body: float = option(
        30.0,
        "without progress while a body is read or written; then 408 or close",
        group=TIMEOUTS,
        **SECONDS,
    )
    min_bytes_per_second: int = option(
        100,
        "minimum rate of a body, in both directions; 0 disables it",
        group=TIMEOUTS,
        check=at_least(0),
        **INT,
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


# fmt: on
