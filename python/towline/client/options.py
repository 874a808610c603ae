"""The client's options: frozen, checked where they are made, read by attribute from the native module.

Seconds and bytes, unless a name says otherwise; None means "no limit" or "not given".
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from .._redact import HIDDEN, without_secrets, without_userinfo
from ..errors import ConfigError

TimeoutTypes: TypeAlias = "float | tuple[float | None, ...] | Timeout | None"
CertTypes: TypeAlias = "str | tuple[str, str] | tuple[str, str, str]"


class _Unset:
    """The argument was not given; None has a meaning of its own."""

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


def _count(name: str, value: Any, least: int = 0) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
        raise ConfigError(f"{name}: expected a whole number of at least {least} or None, not {value!r}")


@dataclass(frozen=True, init=False)
class Timeout:
    """How long each part of a call may take.

    `Timeout(5.0)` is httpx's: five seconds for each phase. `Timeout(10.0, connect=3)`: ten for each but the
    connection. `Timeout(connect=3)`: our default for the others. Only `total` is a deadline for the whole call.

    - connect: names, TCP, proxy and TLS together. 5: a reachable peer answers within a round trip or two
    - read: silence while a response is awaited or read. 60: slow endpoints are common, dead peers are found
      by TCP keep-alive
    - write: the peer takes nothing. 60, as read
    - pool: waiting for a connection. None: callers wait in order; `Limits.max_queue` refuses at once instead
    - total: from the call to the last byte. None: a stream may last as long as it is read
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
        """What users write as `timeout=`: seconds, None, a tuple, a Timeout, or httpx's."""
        return value if isinstance(value, cls) else cls(value)

    def as_dict(self) -> dict[str, float | None]:
        """The phases, as the extension `timeout` of httpx carries them, and `total`."""
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
    """What a client may hold open.

    - max_connections: 1000, far from the 1024 descriptors a process commonly has only when nothing else is open
    - max_connections_per_host: 100, so that one slow host does not take what others need
    - max_keepalive_connections: 100 idle ones, for all hosts
    - keepalive_expiry: 15 s idle; servers commonly close after 60 or 75, some after 5: an old connection is one
      that dies with the next request
    - max_connection_age: None; set it where a load balancer must see new connections
    - max_queue: callers that may wait for a connection. None: any number, in order
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
        """Ours, httpx's (its names are ours), or None for the defaults."""
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
    """What is sent again, and when. Nothing is, whose body cannot be replayed.

    - connect: 1 more attempt when no connection came about: nothing was sent, so any method may
    - stale: a reused connection that dies without a byte of response means that the peer had closed it: an
      idempotent request (RFC 9110 9.2.2) is resent once; "any": a POST too; False: never
    - status: codes to retry, e.g. (429, 502, 503, 504), for idempotent methods and those in `methods`. None are
      by default: only the caller knows which mean "later"
    - times: how often, at most, a call is sent again for its status
    - methods: further methods that may be retried by status
    - backoff: seconds before the first retry, doubled for each further one; jitter takes a random share of it
      so that clients do not return in step
    - respect_retry_after: the peer's Retry-After (seconds or date, RFC 9110 10.2.3) instead of the backoff
    - max_delay: longer than this is not waited for: the response is returned as it is
    - budget: retries as a share of all calls of the client (0.1: one in ten, and ten in reserve), so that
      retries cannot multiply the load on a peer in trouble. None: no such bound
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
        """A Retry; a number: that many attempts to connect; False or None: nothing is ever resent."""
        if isinstance(value, cls):
            return value
        if value is None or value is False:
            return cls(connect=0, stale=False)
        if value is True:
            return cls()
        return cls(connect=value)


@dataclass(frozen=True)
class TLS:
    """How peers are verified and what we show them.

    - verify: False accepts any certificate: for tests only
    - trust: "system" (the platform's store), "certifi" (where that package is installed), or the path of a PEM
      file or directory, which then is the only trust. SSL_CERT_FILE and SSL_CERT_DIR replace the system's;
      not so "platform", which is what "system" becomes with trust_env=False
    - cert, key, password: our own certificate chain and key (PEM files; the key may stand in `cert`)
    - min_version: "1.2" or "1.3"
    - server_name: the name to ask for and to verify, where it is not the URL's host
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
            raise ConfigError("tls.key: needs tls.cert, the certificate it belongs to")


def tls_of(verify: Any, cert: CertTypes | None = None) -> TLS | ssl.SSLContext:
    """What `verify=` and `cert=` say together."""
    if isinstance(verify, ssl.SSLContext):
        if cert is not None:
            raise ConfigError("cert: load it into the ssl.SSLContext given as verify= (load_cert_chain)")
        return verify
    if isinstance(verify, TLS):
        if cert is not None:
            raise ConfigError("cert: name it in TLS(cert=..., key=...) instead, beside verify=TLS(...)")
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

    Schemes: http, https, socks5 (names are resolved here), socks5h (by the proxy). `auth` and `headers` go to the
    proxy only; `tls` is for an https proxy.
    """

    scheme: str
    host: str
    port: int
    auth: tuple[str, str] | None
    headers: tuple[tuple[bytes, bytes], ...]
    tls: TLS | ssl.SSLContext | None

    def __init__(
        self,
        url: Any,
        *,
        auth: tuple[str, str] | None = None,
        headers: Any = None,
        tls: TLS | ssl.SSLContext | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        from .headers import Headers
        from .url import URL

        url = URL(url)
        if url.scheme not in _PROXY_PORTS or not url.host:
            shown = without_userinfo(str(url))
            raise ConfigError(
                f"proxy: expected http://, https://, socks5:// or socks5h:// and a host, not {shown!r}"
            )
        if url.userinfo:
            auth = (url.username, url.password)
        values = {
            "scheme": url.scheme,
            "host": url.host,
            "port": url.port or _PROXY_PORTS[url.scheme],
            "auth": auth,
            "headers": tuple(Headers(headers).raw),
            "tls": tls if tls is not None else ssl_context,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def url(self) -> Any:
        """Where it is, without credentials."""
        from .url import URL

        host = f"[{self.host}]" if ":" in self.host else self.host
        return URL(f"{self.scheme}://{host}:{self.port}")

    @property
    def raw_auth(self) -> tuple[bytes, bytes] | None:
        return None if self.auth is None else (self.auth[0].encode(), self.auth[1].encode())

    @classmethod
    def of(cls, value: Any) -> Proxy | None:
        """A URL, a Proxy, httpx's, or None."""
        if value is None or isinstance(value, cls):
            return value
        if hasattr(value, "url"):
            context = getattr(value, "ssl_context", None)
            return cls(str(value.url), auth=value.auth, headers=list(value.headers.raw), tls=context)
        return cls(value)

    def __repr__(self) -> str:
        auth = f", auth=({self.auth[0]!r}, {HIDDEN!r})" if self.auth else ""
        headers = f", headers={without_secrets(self.headers)!r}" if self.headers else ""
        return f"Proxy({str(self.url)!r}{auth}{headers})"


@dataclass(frozen=True)
class Progress:
    """What `progress=` is called with: bytes of the wire's body, without heads. `total`: None where unknown."""

    direction: Literal["upload", "download"]
    transferred: int
    total: int | None


@dataclass(frozen=True)
class PoolOptions:
    """Everything a native pool is made with: one for `AsyncPool`, `SyncPool` and the two client cores.

    - tls: how https peers are verified
    - proxy: for every exchange of this pool; which pool an exchange takes was decided before
    - http1, http2: what may be spoken. Both: https peers choose by ALPN, http peers are spoken to in HTTP/1.1. HTTP/2
      alone: without asking where there is no TLS. Off by default, as in httpx
    - timeout, retries: what a call uses that brings none of its own; a pool uses `connect` and `stale` of Retry
    - stream_window: bytes of a body held while nobody reads. 64 KiB keeps a reader busy at 10 Gbit/s and costs
      64 MB at a thousand streams
    - max_stream_window: HTTP/2: the window of a response whose reader keeps up doubles up to this. 4 MiB, as Go has it,
      carry 300 Mbit/s over 100 ms; no more than stream_window: it does not grow
    - max_header_size: 100 KiB for a response's head, as h11 and httpx have it
    - max_response_size, max_decompressed_size: a body beyond them is an error while it is read
    - tcp_keepalive: (idle s, interval s, count): on, since NAT drops silent connections without a word
    - happy_eyeballs_delay: 0.25 s between attempts (RFC 8305 5)
    - resolve: {"host" or "host:port": "address" or ("address", ...)} instead of the resolver
    - local_address: the address to connect from; uds: the unix socket to connect to, whatever the URL's host
    """

    tls: TLS | ssl.SSLContext = field(default_factory=TLS)
    proxy: Proxy | None = None
    http1: bool = True
    http2: bool = False
    timeout: Timeout = field(default_factory=Timeout)
    limits: Limits = field(default_factory=Limits)
    retries: Retry = field(default_factory=Retry)
    stream_window: int = 65536
    max_stream_window: int = 4194304
    max_header_size: int = 102400
    max_response_size: int | None = None
    max_decompressed_size: int | None = None
    tcp_keepalive: tuple[int, int, int] | None = (60, 30, 5)
    happy_eyeballs_delay: float = 0.25
    resolve: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    local_address: str | None = None
    uds: str | None = None

    def __post_init__(self) -> None:
        if not (self.http1 or self.http2):
            raise ConfigError("http1: at least one of http1 and http2 must be on")
        _count("stream_window", self.stream_window, 1024)
        _count("max_stream_window", self.max_stream_window, 0)
        _count("max_header_size", self.max_header_size, 256)
        _count("max_response_size", self.max_response_size)
        _count("max_decompressed_size", self.max_decompressed_size)
        _seconds("happy_eyeballs_delay", self.happy_eyeballs_delay)
        object.__setattr__(self, "tcp_keepalive", _keepalive(self.tcp_keepalive))
        object.__setattr__(
            self, "resolve", {host.lower(): _addresses(to) for host, to in self.resolve.items()}
        )
        if self.uds is not None:
            object.__setattr__(self, "uds", os.fspath(self.uds))


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
