"""Options of connections: limits, timeouts, TLS, trusted proxies."""

from __future__ import annotations

import dataclasses

from .. import _options as kind
from .. import _values as values
from .._options import Section, at_least, between, each, limit, number, option, period, size
from .checks import is_forwarded_headers


# A table, whose layout the formatter keeps.
# fmt: off
@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class LimitOptions(Section, group="limits", summary="limits on requests"):
    limit_request_line: int = size(8192, "longest request line; 414 if exceeded")
    limit_request_fields: int = number(100, "number of headers; 431 if exceeded")
    limit_request_field_size: int = size(8192, "longest header line; 431 if exceeded")
    limit_request_head: int = size(32768, "all header lines together, trailers included; 431 if exceeded")
    limit_request_body: int | None = limit(
        None, "request body; 413 if exceeded (default: unlimited, bodies are streamed)", metavar="BYTES")
    wsgi_request_buffer: int = size(
        1 << 30,
        "WSGI: body collected before the application is called, above 256 KiB in a temporary file; 0 streams it",
        least=0)
    wsgi_response_buffer: int = size(
        1 << 30,
        "WSGI: response in a temporary file for a slow reader while other requests wait; 0 makes them wait",
        least=0)
    limit_concurrency: int | None = limit(
        None, "requests in flight per worker, not idle connections; 503 with Retry-After if exceeded",
        aliases=("--backpressure", "--worker-connections"))
    wsgi_websockets: int = number(
        100,
        "WSGI with --threads: WebSockets per worker, each with a thread of its own; 503 if exceeded, 0 for none",
        least=0)


@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class ClientLimitOptions(Section, group="clients", summary="rate and connections of each client"):
    limit_rate: str | None = option(
        None, "requests of each client, over all workers, such as 100/s, 600/m or 5000/h; 429 with Retry-After if exceeded",
        metavar="N/UNIT", check=values.is_rate)
    limit_rate_burst: int | None = limit(
        None, "requests of a client at once, which the rate gives back (default: N of limit-rate)")
    limit_rate_key: str = option(
        "address", "what tells clients apart: address (its /64 if IPv6), or header:NAME for the value of a header",
        metavar="address|header:NAME", check=values.is_rate_key)
    limit_rate_exempt: tuple[str, ...] = each(
        (), "path that the rate does not limit, with all below it; health and metrics never count", metavar="PATH")
    limit_connections: int | None = limit(
        None, "open connections of all workers together; others are closed at once")
    limit_connections_per_client: int | None = limit(
        None, "open connections of one address (its /64 if IPv6) with all workers; those of trusted proxies do not count",
        check=between(1, 10_000))


@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class TimeoutOptions(Section, group="timeouts", summary="how long clients and requests may take"):
    timeout_keep_alive: float = period(
        75.0, "close an idle connection after this time; load balancers keep connections for 60 s, and a shorter time gives them 502s",
        aliases=("--keep-alive", "--timeout-keepalive"))
    timeout_request_header: float = period(
        15.0, "time for the head of a request, from accept or the first byte on a kept-alive connection; then 408")
    timeout_request_body: float = period(
        30.0, "time without progress of a body; then 408, or the connection is closed")
    min_bytes_per_second: int = number(
        100, "minimum rate of a body, in both directions; 0 disables it", least=0)
    timeout_wsgi_client: float = period(
        30.0, "WSGI: time for which requests wait for a slow reader of a response above wsgi-response-buffer; then the response is aborted",
        check=at_least(0))
    timeout_graceful_shutdown: float = period(
        30.0, "time for requests in flight at shutdown, before they are cancelled",
        aliases=("--graceful-timeout",), check=at_least(0))
    timeout_drain_idle: float = period(
        3.0,
        "at a reload or stop, time for kept-alive connections to send one more request, which is answered with "
        "Connection: close; then idle ones are closed; Ctrl-C does not wait",
        check=at_least(0))


@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class TlsOptions(Section, group="tls", summary="certificates"):
    ssl_certfile: tuple[str, ...] = each(
        (), "certificate chain, PEM; if several, the client's server name (SNI) selects one", metavar="PATH",
        aliases=("--certfile",))
    ssl_keyfile: tuple[str, ...] = each(
        (), "private key, PEM; may be in the certificate's file", metavar="PATH", aliases=("--keyfile",))
    ssl_keyfile_password: str | None = option(
        None, "password of the key; better given as TOWLINE_SSL_KEYFILE_PASSWORD", metavar="PASSWORD",
        secret=True)
    ssl_ca_certs: str | None = option(
        None, "authorities that must have issued client certificates (mTLS)", metavar="PATH")
    ssl_cert_reqs: str = option(
        "none", "client certificate: none, optional or required (0, 1, 2)", parse=values.cert_reqs,
        metavar="none|optional|required")
    ssl_crl: tuple[str, ...] = each((), "revocation lists for client certificates, PEM", metavar="PATH")
    ssl_min_version: str = option(
        "1.2", "oldest TLS version: 1.2 or 1.3", parse=values.tls_version, metavar="1.2|1.3")
    ssl_ciphers: tuple[str, ...] = option(
        (), "cipher suites by name, best first (default: all that are secure)", metavar="LIST",
        parse=values.colons)
    redirect_https: int | None = option(
        None, "redirect requests of http:// addresses to TLS: to this port (default: that of the address with TLS)",
        parse=kind.integer, metavar="PORT", check=between(0, 65535), const=0)
    hsts: str | None = option(
        None, "send Strict-Transport-Security over TLS, such as '31536000; includeSubDomains'", metavar="SECONDS",
        check=values.is_hsts)

    @property
    def strict_transport_security(self) -> str | None:
        """The value of the header."""
        return None if self.hsts is None else values.hsts(self.hsts)


@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class ProxyOptions(Section, group="proxy", summary="behind a load balancer"):
    proxy_headers: bool = option(True, "read the headers of --forwarded-headers from trusted addresses")
    forwarded_headers: tuple[str, ...] = option(
        ("x-forwarded",),
        "x-forwarded (X-Forwarded-For and -Proto), forwarded (RFC 7239) or none; with host, port, prefix also "
        "X-Forwarded-Host (or host of Forwarded), -Port, -Prefix, which the proxy must overwrite",
        metavar="LIST", parse=kind.words, check=is_forwarded_headers)
    forwarded_allow_ips: tuple[str, ...] = option(
        ("127.0.0.1", "::1", "unix"), "trusted addresses or networks (CIDR), unix for Unix sockets, * for any",
        metavar="LIST", parse=kind.words, variables=("FORWARDED_ALLOW_IPS",))
    queue_time: bool = option(
        False, "time since X-Request-Start of trusted addresses: in the metrics, the ASGI scope and the WSGI environ")
    proxy_protocol: bool = option(False, "expect the PROXY protocol (v1 or v2) from trusted addresses")
    drain_delay: float = period(
        0.0,
        "at SIGTERM, time to serve as before while readiness checks fail, until load balancers have noticed; a second "
        "SIGTERM ends it",
        check=at_least(0))


# fmt: on
