"""Options of the client: frozen dataclasses, validated when they are created, read by attribute by the native module.

Units are seconds and bytes, unless the name says otherwise. None means "no limit" or "not given". Invalid values raise
ConfigError.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from .._redact import HIDDEN, without_credentials, without_secrets
from ..errors import ConfigError, InvalidURL

TimeoutTypes: TypeAlias = "float | tuple[float | None, ...] | Timeout | None"
AltSvcTypes: TypeAlias = "str | os.PathLike[str] | Mapping[str, str]"
CertTypes: TypeAlias = "str | tuple[str, str] | tuple[str, str, str]"


class _Unset:
    """Marks an argument that was not given, if None has another meaning."""

    def __repr__(self) -> str:
        return "UNSET"

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> str:
        return "UNSET"


UNSET: Any = _Unset()


def _seconds(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise ConfigError(f"{name}: expected seconds or None, not {value!r}")
    return float(value)


def _count(name: str, value: Any, minimum: int = 0) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < minimum):
        raise ConfigError(f"{name}: expected a whole number of at least {minimum} or None, not {value!r}")


@dataclass(frozen=True, init=False)
class Timeout:
    """The timeouts of a call, in seconds. None: no limit.

    `Timeout(5.0)` sets each phase to five seconds, as in httpx. `Timeout(10.0, connect=3)` sets each phase but `connect`
    to ten. `Timeout(connect=3)` keeps the defaults of the others. Only `total` limits the whole call.

    - connect: name resolution, TCP, proxy and TLS together. Default 5: a reachable peer responds within one or two
      round trips
    - read: the longest silence while waiting for or reading a response. Default 60: slow endpoints are common, and TCP
      keep-alive detects dead peers
    - write: the longest time in which the peer accepts nothing. Default 60, as read
    - pool: waiting for a connection. Default None: calls wait in order; `Limits.max_queue` fails at once instead
    - total: from the call to the last byte, redirects and retries included. Default None: a stream may last as long as
      it is read
    """

    connect: float | None = 5.0
    read: float | None = 60.0
    write: float | None = 60.0
    pool: float | None = None
    total: float | None = None

    def __init__(
        self,
        timeout: TimeoutTypes = UNSET,
        *,
        connect: float | None = UNSET,
        read: float | None = UNSET,
        write: float | None = UNSET,
        pool: float | None = UNSET,
        total: float | None = UNSET,
    ) -> None:
        given = {"connect": connect, "read": read, "write": write, "pool": pool, "total": total}
        for name, value in _phases(timeout).items():
            chosen = value if given[name] is UNSET else given[name]
            object.__setattr__(self, name, _seconds(f"timeout.{name}", chosen))

    @classmethod
    def of(cls, value: Any) -> Timeout:
        """Converts the argument `timeout=`: seconds, None, a tuple, a Timeout, or one of httpx."""
        return value if isinstance(value, cls) else cls(value)

    def as_dict(self) -> dict[str, float | None]:
        """Returns the phases, as in the httpx extension `timeout`, and `total`."""
        return {name: getattr(self, name) for name in _PHASES}


_PHASES = ("connect", "read", "write", "pool", "total")


def _phases(timeout: Any) -> dict[str, float | None]:
    if timeout is UNSET:
        return {name: getattr(Timeout, name) for name in _PHASES}
    if isinstance(timeout, tuple):
        # httpx: (connect, read), (connect, read, write) or (connect, read, write, pool)
        if not 2 <= len(timeout) <= 5:
            raise ConfigError(f"timeout: expected (connect, read[, write[, pool]]), not {timeout!r}")
        return dict(zip(_PHASES, (*timeout, None, None, None), strict=False))
    if hasattr(timeout, "connect") and hasattr(timeout, "pool"):
        return {name: getattr(timeout, name, None) for name in _PHASES}
    if isinstance(timeout, Mapping):
        return {name: timeout.get(name) for name in _PHASES}
    return {**dict.fromkeys(_PHASES, _seconds("timeout", timeout)), "total": None}


@dataclass(frozen=True)
class Limits:
    """The limits of a connection pool. None: no limit.

    - max_connections: default 1000, just below the common limit of 1024 descriptors of a process
    - max_connections_per_host: default 100, so that one slow host does not use up the connections of others
    - max_keepalive_connections: idle connections to all hosts together, default 100
    - keepalive_expiry: seconds after which an idle connection is closed, default 15. Servers commonly close after 60 or
      75, some after 5; a request on a connection that the server is closing fails
    - max_connection_age: seconds, default None; set it if a load balancer has to see new connections
    - max_queue: number of calls that may wait for a connection. Default None: any number, in order
    """

    max_connections: int | None = 1000
    max_connections_per_host: int | None = 100
    max_keepalive_connections: int | None = 100
    keepalive_expiry: float | None = 15.0
    max_connection_age: float | None = None
    max_queue: int | None = None

    def __post_init__(self) -> None:
        _count("limits.max_connections", self.max_connections, 1)
        _count("limits.max_connections_per_host", self.max_connections_per_host, 1)
        _count("limits.max_keepalive_connections", self.max_keepalive_connections)
        _count("limits.max_queue", self.max_queue)
        for name in ("keepalive_expiry", "max_connection_age"):
            object.__setattr__(self, name, _seconds(f"limits.{name}", getattr(self, name)))

    @classmethod
    def of(cls, value: Any) -> Limits:
        """Converts the argument `limits=`: Limits, those of httpx, or None for the defaults."""
        if value is None:
            return cls()
        if isinstance(value, cls):
            return value
        given = {name: getattr(value, name) for name in cls.__dataclass_fields__ if hasattr(value, name)}
        if not given:
            raise ConfigError(f"limits: expected towline.Limits(...), not {value!r}")
        return cls(**given)


@dataclass(frozen=True)
class Retry:
    """Which requests are sent again, and when. A request whose body is not replayable is never sent again.

    - connect: further attempts to connect, default 1. Nothing has been sent, so this applies to any method
    - stale: if a reused connection fails before the first byte of a response, the peer had closed it. True (default):
      an idempotent request (RFC 9110 9.2.2) is resent once; "any": other methods, too; False: never
    - status: status codes to retry, e.g. (429, 502, 503, 504), for idempotent methods and those in `methods`. Default
      none: only the program knows which of them are temporary
    - times: maximum number of retries by status, default 3
    - methods: further methods that may be retried by status
    - backoff: seconds before the first retry, default 0.5, doubled for each later retry
    - jitter: wait for a random share of the backoff, so that clients do not retry at the same time; default True
    - respect_retry_after: wait for Retry-After (seconds or date, RFC 9110 10.2.3) instead of the backoff; default True
    - max_delay: seconds, default 60; if the wait would be longer, the response is returned instead
    - budget: retries as a share of all calls of the client (0.1: one in ten, plus ten initially), so that retries do
      not multiply the load on an overloaded peer. Default None: no limit
    """

    connect: int = 1
    stale: bool | Literal["any"] = True
    status: tuple[int, ...] = ()
    backoff: float = 0.5
    jitter: bool = True
    respect_retry_after: bool = True
    budget: float | None = None
    times: int = 3
    max_delay: float = 60.0
    methods: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _count("retries.connect", self.connect)
        _count("retries.times", self.times)
        if self.stale not in (True, False, "any"):
            raise ConfigError(f'retries.stale: expected True, False or "any", not {self.stale!r}')
        for name in ("backoff", "max_delay", "budget"):
            object.__setattr__(self, name, _seconds(f"retries.{name}", getattr(self, name)))
        status = (self.status,) if isinstance(self.status, int) else tuple(self.status)
        if not all(isinstance(code, int) and 100 <= code <= 599 for code in status):
            raise ConfigError(f"retries.status: expected status codes, not {self.status!r}")
        object.__setattr__(self, "status", tuple(int(code) for code in status))
        object.__setattr__(self, "methods", tuple(method.upper() for method in self.methods))

    @classmethod
    def of(cls, value: Any) -> Retry:
        """Converts the argument `retries=`: a Retry, a number of attempts to connect, or False or None for no retries."""
        if isinstance(value, cls):
            return value
        if value is None or value is False:
            return cls(connect=0, stale=False)
        if value is True:
            return cls()
        return cls(connect=value)


@dataclass(frozen=True)
class TLS:
    """TLS settings: verification of peers, and the client certificate.

    - verify: False accepts any certificate; for tests only
    - trust: "system" (default: the platform's store), "certifi" (if that package is installed), or the path of a PEM
      file or directory, which then is the only trust store. SSL_CERT_FILE and SSL_CERT_DIR replace "system", but not
      "platform", which "system" becomes with trust_env=False
    - cert, key, password: the client's certificate chain and key (PEM files; `cert` may contain the key)
    - min_version: "1.2" (default) or "1.3"
    - server_name: the name to send as SNI and to verify, if it is not the host of the URL
    """

    verify: bool = True
    trust: str = "system"
    cert: str | None = None
    key: str | None = None
    password: str | None = field(default=None, repr=False)
    min_version: Literal["1.2", "1.3"] = "1.2"
    server_name: str | None = None

    def __post_init__(self) -> None:
        for name in ("trust", "cert", "key"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, os.fspath(getattr(self, name)))
        if self.min_version not in ("1.2", "1.3"):
            raise ConfigError(f'tls.min_version: expected "1.2" or "1.3", not {self.min_version!r}')
        if self.key and not self.cert:
            raise ConfigError("tls.key: requires tls.cert, the certificate of the key")

    @property
    def names_files(self) -> bool:
        """Whether there are files of the program: certificates to trust, or of the client."""
        return self.cert is not None or (self.verify and self.trust not in ("system", "platform", "certifi"))


def tls_of(verify: Any, cert: CertTypes | None = None) -> TLS | ssl.SSLContext:
    """Converts the arguments `verify=` and `cert=`."""
    if isinstance(verify, ssl.SSLContext):
        if cert is not None:
            raise ConfigError("cert: load it into the ssl.SSLContext given as verify= (load_cert_chain)")
        return verify
    if isinstance(verify, TLS):
        if cert is not None:
            raise ConfigError("cert: pass it as TLS(cert=..., key=...) instead, since verify= is a TLS")
        return verify
    chain = (cert,) if isinstance(cert, (str, os.PathLike)) else cert or ()
    names: dict[str, Any] = dict(zip(("cert", "key", "password"), chain, strict=False))
    if isinstance(verify, bool):
        return TLS(verify=verify, **names)
    if isinstance(verify, (str, os.PathLike)):
        return TLS(trust=os.fspath(verify), **names)
    raise ConfigError(f"verify: expected True, False, a path, an ssl.SSLContext or TLS(...), not {verify!r}")


_PROXY_PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}


@dataclass(frozen=True, init=False, repr=False)
class Proxy:
    """A proxy: `Proxy("http://user:secret@proxy.example:3128", headers={...})`.

    Schemes: http, https, socks5 (names are resolved locally), socks5h (names are resolved by the proxy). `auth` and
    `headers` are sent to the proxy only; `tls` is for an https proxy. `variable`: the environment variable that it is
    from, which messages name. Raises ConfigError.
    """

    scheme: str
    host: str
    port: int
    auth: tuple[str, str] | None
    headers: tuple[tuple[bytes, bytes], ...]
    tls: TLS | ssl.SSLContext | None
    variable: str | None = field(default=None, compare=False)

    def __init__(
        self,
        url: Any,
        *,
        auth: tuple[str, str] | None = None,
        headers: Any = None,
        tls: TLS | ssl.SSLContext | None = None,
        ssl_context: ssl.SSLContext | None = None,
        variable: str | None = None,
    ) -> None:
        from .headers import Headers
        from .url import URL

        text, name = str(url), variable or "proxy"
        try:
            url = URL(url)
        except InvalidURL as error:
            # The message may repeat a part of the password.
            reason = "percent-encode / ? # @ and : in its user and password" if "@" in text else error
            raise ConfigError(f"{name}: {without_credentials(text)!r} is not a URL: {reason}") from None
        if url.scheme not in _PROXY_PORTS or not url.host:
            raise ConfigError(
                f"{name}: expected http://, https://, socks5:// or socks5h:// and a host, "
                f"not {without_credentials(text)!r}"
            )
        if url.userinfo:
            auth = (url.username, url.password)
        if auth is not None and not (len(auth) == 2 and all(isinstance(part, str) for part in auth)):
            raise ConfigError(
                f"{name}: auth is (user, password), two str; without a password write (user, '')"
            )
        values = {
            "scheme": url.scheme,
            "host": url.host,
            "port": url.port or _PROXY_PORTS[url.scheme],
            "auth": auth,
            "headers": tuple(Headers(headers).raw),
            "tls": tls if tls is not None else ssl_context,
            "variable": variable,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def url(self) -> Any:
        """The URL of the proxy, without credentials."""
        from .url import URL

        host = f"[{self.host}]" if ":" in self.host else self.host
        return URL(f"{self.scheme}://{host}:{self.port}")

    @property
    def raw_auth(self) -> tuple[bytes, bytes] | None:
        """User and password as bytes; None if there are none."""
        return None if self.auth is None else (self.auth[0].encode(), self.auth[1].encode())

    @classmethod
    def of(cls, value: Any) -> Proxy | None:
        """Converts the argument `proxy=`: a URL, a Proxy, one of httpx, or None."""
        if value is None or isinstance(value, cls):
            return value
        if hasattr(value, "url"):
            context = getattr(value, "ssl_context", None)
            headers, variable = list(value.headers.raw), getattr(value, "variable", None)
            return cls(str(value.url), auth=value.auth, headers=headers, tls=context, variable=variable)
        return cls(value)

    def __repr__(self) -> str:
        auth = f", auth=({self.auth[0]!r}, {HIDDEN!r})" if self.auth else ""
        headers = f", headers={without_secrets(self.headers)!r}" if self.headers else ""
        return f"Proxy({str(self.url)!r}{auth}{headers})"


@dataclass(frozen=True)
class Progress:
    """The argument of `progress=` callbacks: bytes of the body on the wire, without heads. `total`: None if unknown."""

    direction: Literal["upload", "download"]
    transferred: int
    total: int | None


@dataclass(frozen=True)
class PoolOptions:
    """The configuration of a native pool: `AsyncPool` or `SyncPool`.

    - tls: verification of https peers
    - check_tls: the files of `tls` are read at once, so that a mistake is found before the first call
    - proxy: for every request of this pool
    - http1, http2: the allowed versions. Both: https peers choose with ALPN, http peers get HTTP/1.1. HTTP/2 alone: with
      prior knowledge if there is no TLS. HTTP/2 is off by default, as in httpx
    - http3: True: https origins that have advertised HTTP/3 (Alt-Svc) are called over it. "prior": all are tried, in a race
      with TCP. Without http1 and http2: HTTP/3 alone
    - early_data: requests of safe methods without a body are sent in early data (0-RTT) where a server allows it: a round trip
      earlier, but an attacker can record them and send them again (RFC 8470)
    - alt_svc: path of a file in which the advertised alternatives are kept, or {"host" or "host:port": value of Alt-Svc} of
      origins whose alternatives are known beforehand
    - timeout, retries: the defaults of calls; a pool uses `connect` and `stale` of Retry
    - stream_window: bytes of a body that are buffered while the program does not read. 64 KiB are enough for
      10 Gbit/s, and cost 64 MB with a thousand streams
    - max_stream_window: HTTP/2: the window of a response whose reader keeps up doubles up to this. 4 MiB, as in Go,
      allow 300 Mbit/s at 100 ms. Not above stream_window: the window does not grow. HTTP/3: the window of every
      response, 1 MiB at most (80 Mbit/s at 100 ms), since it cannot grow
    - max_header_size: 100 KiB for the head of a response, as in h11 and httpx
    - max_header_count: fields of a response, 5000 as in curl
    - max_interim_responses: 1xx responses before the final one, 100 as in http.client
    - max_response_size, max_decompressed_size: a larger body is an error while it is read
    - tcp_keepalive: (idle s, interval s, count). On by default, since NAT drops silent connections without notice
    - happy_eyeballs_delay: 0.25 s between connection attempts (RFC 8305 5)
    - resolve: {"host" or "host:port": "address" or ("address", ...)}, instead of the resolver
    - local_address: the address to connect from
    - uds: the path of a Unix socket to connect to, regardless of the host of the URL
    """

    tls: TLS | ssl.SSLContext = field(default_factory=TLS)
    check_tls: bool = False
    proxy: Proxy | None = None
    http1: bool = True
    http2: bool = False
    http3: bool | Literal["prior"] = False
    early_data: bool = False
    alt_svc: AltSvcTypes | None = None
    timeout: Timeout = field(default_factory=Timeout)
    limits: Limits = field(default_factory=Limits)
    retries: Retry = field(default_factory=Retry)
    stream_window: int = 65536
    max_stream_window: int = 4194304
    max_header_size: int = 102400
    max_header_count: int = 5000
    max_interim_responses: int = 100
    max_response_size: int | None = None
    max_decompressed_size: int | None = None
    tcp_keepalive: tuple[int, int, int] | None = (60, 30, 5)
    happy_eyeballs_delay: float = 0.25
    resolve: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    local_address: str | None = None
    uds: str | None = None

    def __post_init__(self) -> None:
        if self.http3 not in (False, True, "prior"):
            raise ConfigError(f'http3: expected True, False or "prior", not {self.http3!r}')
        if not (self.http1 or self.http2 or self.http3):
            raise ConfigError("http1: at least one of http1, http2 and http3 must be on")
        if not (self.http1 or self.http2) and isinstance(self.tls, ssl.SSLContext):
            raise ConfigError("http3: an ssl.SSLContext cannot be used for HTTP/3; pass TLS(...) as verify=")
        if self.early_data and not self.http3:
            raise ConfigError("early_data: has no use without http3")
        if self.alt_svc is not None:
            if not self.http3:
                raise ConfigError("alt_svc: has no use without http3")
            object.__setattr__(self, "alt_svc", _alternatives(self.alt_svc))
        _count("stream_window", self.stream_window, 1024)
        _count("max_stream_window", self.max_stream_window, 0)
        _count("max_header_size", self.max_header_size, 256)
        _count("max_header_count", self.max_header_count, 1)
        _count("max_interim_responses", self.max_interim_responses)
        _count("max_response_size", self.max_response_size)
        _count("max_decompressed_size", self.max_decompressed_size)
        _seconds("happy_eyeballs_delay", self.happy_eyeballs_delay)
        object.__setattr__(self, "tcp_keepalive", _keepalive(self.tcp_keepalive))
        object.__setattr__(
            self, "resolve", {host.lower(): _addresses(to) for host, to in self.resolve.items()}
        )
        if self.uds is not None:
            object.__setattr__(self, "uds", os.fspath(self.uds))


def _alternatives(
    value: AltSvcTypes | tuple[tuple[str, int, str], ...],
) -> str | tuple[tuple[str, int, str], ...]:
    """The path of a file, or host and port of each origin with the value of its Alt-Svc."""
    from .url import URL

    if isinstance(value, tuple):
        return value  # of a copy
    if not isinstance(value, Mapping):
        return os.fspath(value)
    found = []
    for origin, alternatives in value.items():
        try:
            url = URL(f"https://{origin}")
        except InvalidURL as error:
            raise ConfigError(f"alt_svc: {error}") from None
        if url.raw_path != b"/" or not isinstance(alternatives, str):
            raise ConfigError(
                f'alt_svc: expected {{"host" or "host:port": value of Alt-Svc}}, not {origin!r}: {alternatives!r}'
            )
        found.append((url.raw_host.decode(), url.port or 443, alternatives))
    return tuple(found)


def _addresses(value: str | Iterable[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _keepalive(value: Any) -> tuple[int, int, int] | None:
    if value is None or value is False:
        return None
    if value is True:
        return (60, 30, 5)
    if len(value) != 3 or not all(isinstance(part, int) and part > 0 for part in value):
        raise ConfigError(f"tcp_keepalive: expected (idle s, interval s, count) or None, not {value!r}")
    return tuple(value)
