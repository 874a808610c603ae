"""requests on Towline's engine: an adapter to mount.

    import requests
    import towline.requests

    session = requests.Session()
    session.mount("http://", towline.requests.Adapter())
    session.mount("https://", towline.requests.Adapter())

It takes the arguments of `HTTPAdapter`, including urllib3's `Retry`, and calls the methods that subclasses override
(`add_headers`, `proxy_headers`, `build_response`, `init_poolmanager`). docs/dropins.md lists the differences.
"""

from __future__ import annotations

import functools
import io
import os
import threading
import warnings
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

import requests
import urllib3
from requests import exceptions as theirs
from requests.adapters import DEFAULT_POOLBLOCK, HTTPAdapter
from requests.structures import CaseInsensitiveDict
from requests.utils import prepend_scheme_if_needed, select_proxy
from urllib3 import exceptions as wrapped
from urllib3.util import Retry, parse_url

from . import _native, errors
from ._dropins._pools import dropin_tls, keepalive_of
from ._dropins._seams import Seam
from ._dropins._urllib3 import Raw
from ._redact import without_credentials
from .client.environment import variable_with
from .client.options import Limits, PoolOptions, Proxy
from .client.options import Retry as NativeRetry

__all__ = ["Adapter"]

_INSTALLED: str = vars(urllib3)["__version__"]
_VERSION = tuple(int(part) for part in _INSTALLED.split(".")[:3] if part.isdecimal())
if _VERSION < (1, 26):
    raise ImportError(
        f"towline.requests needs urllib3 1.26 or later, not {_INSTALLED}: pip install -U urllib3"
    )
if _VERSION[2:] >= (900,):  # the numbers of its releases
    warnings.warn(
        f"urllib3-future {_INSTALLED}, of niquests, has replaced urllib3 in this environment; towline.requests is tested "
        "with urllib3 itself: pip install --force-reinstall urllib3",
        RuntimeWarning,
        stacklevel=2,
    )

MAX_POOLS = 32  # with different TLS settings and proxies; the oldest one is removed
_PORTS = {"http": 80, "https": 443}
_SEND = Seam(HTTPAdapter, "send")
# Since urllib3 2.
_NameError: Any = getattr(
    wrapped, "NameResolutionError", lambda host, call, error: wrapped.NewConnectionError(call, str(error))
)
# VCR.py replaces the classes of urllib3's connections.
_CONNECTIONS = (urllib3.HTTPConnectionPool.ConnectionCls, urllib3.HTTPSConnectionPool.ConnectionCls)


class Adapter(HTTPAdapter):
    """`requests.adapters.HTTPAdapter` on Towline's engine. It is thread-safe.

    - pool_connections * pool_maxsize: maximum number of idle connections
    - pool_block: at most pool_maxsize connections to a host; calls wait for a free one
    - max_retries: a number of attempts to connect, or urllib3's `Retry`
    """

    poolmanager: Any

    def init_poolmanager(
        self, connections: int, maxsize: int, block: bool = DEFAULT_POOLBLOCK, **pool_kwargs: Any
    ) -> None:
        """`pool_kwargs`: ssl_context, source_address and socket_options, as for urllib3."""
        self._pool_connections = connections
        self._pool_maxsize = maxsize
        self._pool_block = block
        self._recorded: HTTPAdapter | None = None
        self.poolmanager = _Pools(connections, maxsize, block, **pool_kwargs)

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: Any = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> requests.Response:
        if _SEND.is_replaced() or _is_recorded():
            return super().send(request, stream, timeout, verify, cert, proxies)
        url = urlsplit(request.url or "")
        origin = _origin(url.scheme, url.netloc)
        if not origin.host:
            raise theirs.InvalidURL(f"Invalid URL {request.url!r}: No host supplied", request=request)
        pool, proxied = self._pool_for(request, url.scheme, verify, cert, proxies)
        self.add_headers(request, stream=stream, timeout=timeout, verify=verify, cert=cert, proxies=proxies)
        call = _Call(pool, request, url, origin, _timeouts(timeout), proxied=proxied)
        try:
            raw = call.with_retries(self.max_retries)
        except wrapped.MaxRetryError as error:
            raise _retry_error(error, request) from error
        except wrapped.ReadTimeoutError as error:
            raise theirs.ReadTimeout(error, request=request) from error
        except (wrapped.ProtocolError, wrapped.ClosedPoolError, wrapped.EmptyPoolError) as error:
            raise theirs.ConnectionError(error, request=request) from error
        except (errors.InvalidHeader, wrapped.InvalidHeader) as error:
            raise theirs.InvalidHeader(error, request=request) from error
        except errors.InvalidURL as error:
            raise theirs.InvalidURL(error, request=request) from error
        return self.build_response(request, raw)

    def _pool_for(
        self, request: requests.PreparedRequest, scheme: str, verify: Any, cert: Any, proxies: Any
    ) -> tuple[Any, bool]:
        proxy = select_proxy(request.url or "", proxies) if proxies else None
        key = (verify, cert, proxy) if scheme == "https" else (True, None, proxy)
        pool = self.poolmanager.find(key)
        if pool is not None:
            return pool, bool(proxy)
        if scheme == "https":
            _check_files(verify, cert)
        return self.poolmanager.make(key, self._proxy(proxy) if proxy else None), bool(proxy)

    def _proxy(self, value: str) -> Proxy:
        """Creates a Proxy; `proxy_headers`, which subclasses may override, sets Proxy-Authorization."""
        variable = variable_with(value)
        try:
            proxy = prepend_scheme_if_needed(value, "http")
            parsed = parse_url(proxy)
            if not parsed.host:
                raise wrapped.LocationValueError
            if (parsed.scheme or "").startswith("socks"):
                return Proxy(proxy, variable=variable)
            without_auth = parsed._replace(auth=None).url
            return Proxy(without_auth, headers=self.proxy_headers(proxy), variable=variable)
        except (wrapped.LocationValueError, TypeError):  # the text may have a part of the password
            shown = without_credentials(value)
            raise theirs.InvalidProxyURL(
                f"{variable or 'proxies'}: Please check proxy URL {shown!r}. It is malformed and could be missing the host."
            ) from None
        except errors.ConfigError as error:
            raise theirs.InvalidProxyURL(str(error)) from error

    def get_connection_with_tls_context(
        self, request: requests.PreparedRequest, verify: Any, proxies: Any = None, cert: Any = None
    ) -> Any:
        """Returns an object whose `urlopen` sends `request`: `HTTPAdapter.send` calls it while a mock has replaced it."""
        if not _is_recorded():
            return _Connection(self, request, verify, cert, proxies)
        if self._recorded is None:
            self._recorded = HTTPAdapter(
                self._pool_connections, self._pool_maxsize, self.max_retries, self._pool_block
            )
        return self._recorded.get_connection_with_tls_context(request, verify, proxies=proxies, cert=cert)

    def get_connection(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("towline.requests.Adapter does not use urllib3 connections")

    def close(self) -> None:
        super().close()
        if self._recorded is not None:
            self._recorded.close()


def _is_recorded() -> bool:
    """Returns whether the classes of urllib3's connections are replaced, as they are while VCR.py has a cassette."""
    http, https = _CONNECTIONS
    return (
        urllib3.HTTPConnectionPool.ConnectionCls is not http
        or urllib3.HTTPSConnectionPool.ConnectionCls is not https
    )


class _Connection:
    """The part of a urllib3 pool that `HTTPAdapter.send` uses."""

    def __init__(
        self, adapter: Adapter, request: requests.PreparedRequest, verify: Any, cert: Any, proxies: Any
    ) -> None:
        self._adapter = adapter
        self._request = request
        self._settings = (verify, cert, proxies)
        self.cert_reqs: Any = None  # HTTPAdapter.cert_verify sets these
        self.ca_certs: Any = None
        self.ca_cert_dir: Any = None
        self.cert_file: Any = None
        self.key_file: Any = None

    def urlopen(self, *, timeout: Any, retries: Retry, **options: Any) -> Raw:
        url = urlsplit(self._request.url or "")
        pool, proxied = self._adapter._pool_for(self._request, url.scheme, *self._settings)
        origin = _origin(url.scheme, url.netloc)
        call = _Call(pool, self._request, url, origin, _timeouts(timeout), proxied=proxied)
        try:
            return call.with_retries(retries)
        except errors.InvalidHeader as error:
            raise theirs.InvalidHeader(error, request=self._request) from error
        except errors.InvalidURL as error:
            raise theirs.InvalidURL(error, request=self._request) from error


class _Pools:
    """Native pools by `verify`, `cert` and proxy."""

    def __init__(
        self,
        connections: int,
        maxsize: int,
        block: bool,
        *,
        ssl_context: Any = None,
        source_address: tuple[str, int] | None = None,
        socket_options: Iterable[Any] | None = None,
        **others: Any,
    ) -> None:
        if others:
            raise TypeError(
                f"init_poolmanager: {', '.join(others)} cannot be used with towline.requests, "
                "only ssl_context, source_address and socket_options"
            )
        # Attributes of urllib3's PoolManager that subclasses of HTTPAdapter read, and elastic-transport sets.
        self.connection_pool_kw = {"maxsize": maxsize, "block": block, "ssl_context": ssl_context}
        self.pool_classes_by_scheme: dict[str, Any] = {}
        self._ssl_context = ssl_context
        self._settings: dict[str, Any] = {
            "limits": Limits(
                max_connections=None,
                max_connections_per_host=maxsize if block else None,
                max_keepalive_connections=max(1, connections) * max(1, maxsize),
            ),
            "retries": NativeRetry(connect=0),
            "local_address": source_address[0] if source_address else None,
        }
        if socket_options is not None:
            self._settings["tcp_keepalive"] = keepalive_of(socket_options)
        self._lock = threading.Lock()
        self._pools: dict[Any, Any] = {}
        self.find = self._pools.get

    def make(self, key: tuple[Any, Any, Any], proxy: Proxy | None) -> Any:
        verify, cert, _ = key
        given = self._ssl_context
        tls = dropin_tls(verify, cert) if given is None or verify is False else given
        pool = _native.SyncPool(PoolOptions(tls=tls, proxy=proxy, **self._settings))
        with self._lock:
            if len(self._pools) >= MAX_POOLS:
                del self._pools[next(iter(self._pools))]
            return self._pools.setdefault(key, pool)

    def clear(self) -> None:
        """Removes the pools. Their idle connections close; responses that are being read keep their connection."""
        with self._lock:
            self._pools.clear()


class _Call:
    """A request and its retries, as `urllib3.HTTPConnectionPool.urlopen` does them."""

    __slots__ = (
        *("_body", "_headers", "_origin", "_pool", "_position", "_timeout"),
        *("method", "proxied", "target"),
    )

    def __init__(
        self,
        pool: Any,
        request: requests.PreparedRequest,
        url: SplitResult,
        origin: _Origin,
        timeout: tuple[Any, ...],
        *,
        proxied: bool,
    ) -> None:
        self._pool = pool
        self.proxied = proxied
        self._timeout = timeout
        self._origin = origin
        self._headers = _headers(request.headers, origin)
        self._body, self._position = request.body, _position(request.body)
        self.method = request.method or "GET"
        self.target = f"{url.path or '/'}?{url.query}" if url.query else url.path or "/"

    @property
    def host(self) -> str:
        return self._origin.host

    def __str__(self) -> str:
        scheme = self._origin.scheme
        port = self._origin.port or _PORTS[scheme]
        return f"HTTP{'S' * (scheme == 'https')}ConnectionPool(host={self.host!r}, port={port})"

    def with_retries(self, retries: Retry) -> Raw:
        while True:
            try:
                reply = self._exchange()
            except errors.TransportError as error:
                failure = _as_urllib3(error, self)
                if isinstance(failure, wrapped.InvalidHeader):
                    raise failure from error
                if not self._can_repeat():
                    retries = Retry(0, read=False)
                retries = self._increment(retries, error=failure)
                retries.sleep()
            else:
                raw = Raw(reply, self.method, self.target, retries)
                if not retries.is_retry(self.method, raw.status, "Retry-After" in raw.headers):
                    return raw
                if not self._can_repeat():
                    return raw
                try:
                    retries = self._increment(retries, response=raw)
                except wrapped.MaxRetryError:
                    if retries.raise_on_status:
                        raw.drain_conn()
                        raise
                    return raw
                raw.drain_conn()
                retries.sleep(raw)
            if self._position is not None:
                self._body.seek(self._position)  # type: ignore[union-attr]

    def _exchange(self) -> Any:
        origin = self._origin
        try:
            return self._pool.exchange(
                self.method.encode("ascii"),
                origin.wire_scheme,
                origin.wire_host,
                origin.port,
                self.target.encode("ascii"),
                self._headers,
                _wire_body(self._body),
                timeout=self._timeout,
            )
        except errors.ClientClosed as error:
            raise wrapped.ClosedPoolError(self, "Pool is closed.") from error  # type: ignore[arg-type]

    def _can_repeat(self) -> bool:
        return self._position is not None or self._body is None or isinstance(self._body, (bytes, str))

    def _increment(self, retries: Retry, **outcome: Any) -> Retry:
        trace: TracebackType | None = None
        if error := outcome.get("error"):
            trace = error.__traceback__
        return retries.increment(self.method, self.target, _pool=self, _stacktrace=trace, **outcome)  # type: ignore[arg-type]


def _as_urllib3(error: errors.TransportError, call: Any) -> Exception:
    """Returns the exception that urllib3 raises for the same failure."""
    message = str(error)
    failure: Exception
    if isinstance(error, errors.ProxyError) or (call.proxied and error.phase in ("dns", "connect", "proxy")):
        failure = wrapped.ProxyError("Unable to connect to proxy", error)
    elif isinstance(error, errors.ConnectTimeout):
        failure = wrapped.ConnectTimeoutError(call, message)
    elif isinstance(error, errors.PoolTimeout):
        failure = wrapped.EmptyPoolError(call, message)
    elif isinstance(error, errors.TimeoutError):
        failure = wrapped.ReadTimeoutError(call, call.target, f"Read timed out. {message}")
    elif isinstance(error, errors.DNSError):
        failure = _NameError(call.host, call, error)
    elif isinstance(error, errors.TLSError):
        failure = wrapped.SSLError(error)
    elif isinstance(error, errors.ConnectError):
        failure = wrapped.NewConnectionError(call, message)
    elif isinstance(error, errors.ProtocolError) and "content-length" in (error.rule or "").lower():
        failure = wrapped.InvalidHeader(message)
    else:
        failure = wrapped.ProtocolError("Connection aborted.", error)
    failure.__cause__ = error
    return failure


def _retry_error(error: wrapped.MaxRetryError, request: requests.PreparedRequest) -> Exception:
    """Returns the error of requests for exhausted retries, as HTTPAdapter does."""
    reason = error.reason
    if isinstance(reason, wrapped.ConnectTimeoutError) and not isinstance(reason, wrapped.NewConnectionError):
        return theirs.ConnectTimeout(error, request=request)
    if isinstance(reason, wrapped.ResponseError):
        return theirs.RetryError(error, request=request)
    if isinstance(reason, wrapped.ProxyError):
        return theirs.ProxyError(error, request=request)
    if isinstance(reason, wrapped.SSLError):
        return theirs.SSLError(error, request=request)
    return theirs.ConnectionError(error, request=request)


class _Origin(NamedTuple):
    scheme: str
    host: str  # empty if missing
    port: int | None
    wire_scheme: bytes
    wire_host: bytes
    host_header: bytes


@functools.lru_cache(maxsize=256)
def _origin(scheme: str, netloc: str) -> _Origin:
    """Parses the origin of a URL. Raises ValueError for an invalid port."""
    parsed = SplitResult(scheme, netloc, "", "", "")
    host, port = parsed.hostname or "", parsed.port
    authority = netloc.rpartition("@")[2]
    if port is not None and port == _PORTS.get(scheme):
        authority = authority.rpartition(":")[0]
    host_header = authority.removesuffix(":").encode("ascii")
    return _Origin(scheme, host, port, scheme.encode("ascii"), host.encode("ascii"), host_header)


def _headers(headers: Any, origin: _Origin) -> list[tuple[bytes, bytes]]:
    """Returns the headers of the request in their order, after Host unless they contain it."""
    fields = [] if "host" in headers else [(b"Host", origin.host_header)]
    # `items()` would convert every name to lower case again.
    pairs = headers._store.values() if type(headers) is CaseInsensitiveDict else headers.items()
    try:
        fields += [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in pairs
            if value != urllib3.util.SKIP_HEADER
        ]
    except AttributeError:  # not text
        fields += [
            (_encode(name), _encode(value)) for name, value in pairs if value != urllib3.util.SKIP_HEADER
        ]
    return fields


def _encode(text: Any) -> bytes:
    return text.encode("latin-1") if isinstance(text, str) else bytes(text)


def _wire_body(body: Any) -> Any:
    """Converts a body to None, bytes, a binary file or an iterator of bytes. Text is encoded as UTF-8."""
    if body is None or isinstance(body, bytes):
        return body or None
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, (bytearray, memoryview)):
        return bytes(body)
    if hasattr(body, "read") and not isinstance(body, io.TextIOBase):
        return body
    return _encode_parts(body)


def _encode_parts(body: Iterable[Any]) -> Iterator[bytes]:
    for part in body:
        yield part.encode() if isinstance(part, str) else part


def _position(body: Any) -> int | None:
    """Returns the position of a file, so that it can be sent again; None if it has none."""
    if body is None or isinstance(body, (bytes, str)) or not hasattr(body, "seek"):
        return None
    try:
        position: int = body.tell()
    except (AttributeError, OSError):
        return None
    return position


def _timeouts(timeout: Any) -> tuple[Any, ...]:
    """Converts a timeout of requests (seconds, a pair, urllib3's Timeout, None) to (connect, read, write, pool, total)."""
    if isinstance(timeout, urllib3.Timeout):
        clock = timeout.clone()
        clock.start_connect()
        return _seconds(clock.connect_timeout, clock.read_timeout)
    if isinstance(timeout, tuple):
        try:
            connect, read = timeout
        except ValueError:
            raise ValueError(
                f"Invalid timeout {timeout}. Pass a (connect, read) timeout tuple, "
                "or a single float to set both timeouts to the same value."
            ) from None
        return _seconds(connect, read)
    return _seconds(timeout, timeout)


def _seconds(connect: Any, read: Any) -> tuple[Any, ...]:
    for value in (connect, read):
        if value is not None and (type(value) not in (int, float) or value <= 0):
            urllib3.Timeout(connect=connect, read=read)  # raises the ValueError of urllib3
    return (connect, read, read, None, None)


def _check_files(verify: Any, cert: Any) -> None:
    """Raises OSError for a missing file before anything is sent, as HTTPAdapter does."""
    if isinstance(verify, (str, os.PathLike)) and not os.path.exists(verify):
        raise OSError(f"Could not find a suitable TLS CA certificate bundle, invalid path: {verify}")
    for kind, path in zip(
        ("certificate", "key"), (cert,) if isinstance(cert, str) else cert or (), strict=False
    ):
        if not os.path.exists(path):
            raise OSError(f"Could not find the TLS {kind} file, invalid path: {path}")
