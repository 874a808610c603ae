"""Transports and clients for httpx and httpx2: the same code for both packages.

The packages have the same interface with different classes. A public module combines a class of this module with one
of its package, and sets `package`.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, ClassVar, Literal

from .. import _native, errors
from .._either import maybe_await, run
from .._native_aio import SentFirst
from .._network import NetworkStream
from .._trace import Event, TraceEvents
from ..client.environment import read_proxies, variable_of
from ..client.options import TLS, AltSvcTypes, Limits, Proxy
from ._errors import ErrorMap
from ._pools import pool_options
from ._seams import CoreRequest, OriginalPool, Seams

READ_BYTES = 65536
# httpx's defaults of a transport.
_LIMITS = Limits(
    max_connections=100, max_connections_per_host=None, max_keepalive_connections=20, keepalive_expiry=5.0
)
# Methods of a client that `ClientTransports` overrides.
_METHODS = ("_get_proxy_map", "_init_transport", "_init_proxy_transport")
_NO_TIMEOUT: dict[str, float | None] = {}


class Package:
    """The classes of httpx or httpx2. Raises ImportError for a release with another internal interface."""

    def __init__(self, module: ModuleType, oldest: str) -> None:
        name, version = module.__name__, module.__version__
        if [int(part) for part in version.split(".")[:2]] < [int(part) for part in oldest.split(".")]:
            raise ImportError(
                f"towline.{name} needs {name} {oldest} or later, not {version}: pip install -U {name}"
            )
        for client in (module.Client, module.AsyncClient):
            if any(not hasattr(client, method) for method in _METHODS):
                raise ImportError(
                    f"towline.{name} does not know {name} {version}, whose clients create transports in another way"
                )
        self.module = module
        self.Response = module.Response
        self.ByteStream = module.ByteStream
        self.errors = ErrorMap(module)
        self.seams = Seams(module, module.HTTPTransport, "handle_request", "ConnectionPool")
        self.async_seams = Seams(
            module, module.AsyncHTTPTransport, "handle_async_request", "AsyncConnectionPool"
        )

    def call(self, request: Any, iterate: Callable[[Any], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments of `exchange`. The body is bytes if the package has it as bytes, else an iterator."""
        url, extensions = request.url, request.extensions
        scheme = url.raw_scheme
        if scheme not in (b"http", b"https"):
            raise self._unsupported(scheme.decode("ascii"), request)
        port = url.port
        if port is not None and port > 65535:
            raise self.module.ConnectError(f"port {port} is not between 0 and 65535", request=request)
        stream = request.stream
        if type(stream) is self.ByteStream:
            (stream,) = stream
        else:
            stream = iterate(stream)
        target = extensions.get("target") or url.raw_path
        seconds = extensions.get("timeout", _NO_TIMEOUT).get
        options = {"timeout": (seconds("connect"), seconds("read"), seconds("write"), seconds("pool"), None)}
        if sni := extensions.get("sni_hostname"):
            options["sni"] = sni
        method = request.method.encode("ascii")
        return (method, scheme, url.raw_host, port, target, request.headers.raw, stream or None), options

    def _unsupported(self, scheme: str, request: Any) -> Exception:
        problem = (
            f"has an unsupported protocol '{scheme}://'"
            if scheme
            else "is missing an 'http://' or 'https://' protocol"
        )
        error: Exception = self.module.UnsupportedProtocol(f"Request URL {problem}.", request=request)
        return error

    def response(self, reply: Any, stream: Any) -> Any:
        extensions = {
            "http_version": reply.version.encode("ascii"),
            "reason_phrase": reply.reason,
            "network_stream": NetworkStream(reply),
        }
        return self.Response(reply.status, headers=reply.headers, stream=stream, extensions=extensions)


class _Settings:
    """The constructor of a transport, with the arguments of the package's HTTPTransport."""

    package: ClassVar[Package]
    pool_type: ClassVar[Any]
    body_type: ClassVar[Any]

    def __init__(
        self,
        verify: ssl.SSLContext | str | bool = True,
        cert: Any = None,
        trust_env: bool = True,
        http1: bool = True,
        http2: bool = False,
        limits: Any = None,
        proxy: Any = None,
        uds: str | None = None,
        local_address: str | None = None,
        retries: int = 0,
        socket_options: Iterable[Any] | None = None,
        *,
        http3: bool | Literal["prior"] = False,
        early_data: bool = False,
        alt_svc: AltSvcTypes | None = None,
    ) -> None:
        # For the pool of the package, which mocks and test suites read.
        self._arguments: dict[str, Any] = {
            "verify": verify,
            "cert": cert,
            "http1": http1,
            "http2": http2,
            "proxy": proxy,
            "uds": uds,
            "local_address": local_address,
            "retries": retries,
            "socket_options": socket_options,
        }
        if limits is not None:
            self._arguments["limits"] = limits
        options = pool_options(
            **{"limits": _LIMITS, **self._arguments}, http3=http3, early_data=early_data, alt_svc=alt_svc
        )
        self._arguments["trust_env"] = trust_env
        if isinstance(verify, TLS):
            self._arguments["verify"] = True
        self._engine = self.pool_type(options)
        self._http1, self._http2 = http1, http2

    async def _exchange_traced(self, request: Any, iterate: Callable[[Any], Any]) -> Any:
        package = self.package
        trace = TraceEvents(request, self._http2 and (request.url.scheme == "https" or not self._http1))
        arguments, options = package.call(request, iterate)
        await _notify(trace, *trace.before())
        try:
            reply = await maybe_await(self._engine.exchange(*arguments, **options))
        except errors.Error as error:
            await _notify(trace, *trace.after_failure(error))
            raise package.errors.translate(error, request) from error
        response = package.response(reply, self.body_type(reply, request, package.errors, trace))
        await _notify(trace, *trace.with_head(reply, response.extensions))
        return response

    def pool_status(self) -> dict[str, int]:
        """Returns the numbers of connections by state, as `towline.Client.pool_status`."""
        status: dict[str, int] = self._engine.pool_status()
        return status


class SyncExchange(_Settings):
    """The methods of a synchronous transport, on a native pool that all threads share."""

    pool_type = _native.SyncPool
    _pool: Any = OriginalPool("seams")

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def handle_request(self, request: Any) -> Any:
        seams = self.package.seams
        if seams.are_replaced() and type(request) is not CoreRequest:
            return seams.call_original(self, request)
        if "trace" in request.extensions:
            return self._handle_traced(request)
        package = self.package
        arguments, options = package.call(request, iter)
        try:
            reply = self._engine.exchange(*arguments, **options)
        except errors.Error as error:
            raise package.errors.translate(error, request) from error
        return package.response(reply, self.body_type(reply, request, package.errors))

    def _handle_traced(self, request: Any) -> Any:
        return run(self._exchange_traced(request, iter))

    def close(self) -> None:
        self._engine.close()


class _Body:
    """The body of a response, read from the connection while it is iterated. `body_type` of a transport."""

    def __init__(
        self, reply: Any, request: Any, error_map: ErrorMap, trace: TraceEvents | None = None
    ) -> None:
        self._reply = reply
        self._request = request
        self._errors = error_map
        self._trace = trace

    async def _close(self) -> None:
        if self._trace is not None:
            await _notify(self._trace, self._trace.closed("started"))
        await maybe_await(self._reply.close())
        if self._trace is not None:
            await _notify(self._trace, self._trace.closed("complete"))


class SyncBody(_Body):
    def __iter__(self) -> Iterator[bytes]:
        read, trace = self._reply.read, self._trace
        if trace is not None:
            trace.notify(*trace.body("started"))
        try:
            while data := read(READ_BYTES):
                yield data
        except errors.Error as error:
            if trace is not None:
                trace.notify(*trace.body("failed", exception=error))
            raise self._errors.translate(error, self._request) from error
        if trace is not None:
            trace.notify(*trace.body("complete", return_value=None))

    def close(self) -> None:
        run(self._close())


class AsyncExchange(_Settings):
    """The methods of an asynchronous transport, on a native pool that works in every event loop."""

    pool_type = _native.AsyncPool
    _pool: Any = OriginalPool("async_seams")

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.aclose()

    async def handle_async_request(self, request: Any) -> Any:
        seams = self.package.async_seams
        if seams.are_replaced() and type(request) is not CoreRequest:
            return await seams.call_original(self, request)
        if "trace" in request.extensions:
            return await self._exchange_traced(request, SentFirst)
        package = self.package
        arguments, options = package.call(request, SentFirst)
        try:
            reply = await self._engine.exchange(*arguments, **options)
        except errors.Error as error:
            raise package.errors.translate(error, request) from error
        return package.response(reply, self.body_type(reply, request, package.errors))

    async def aclose(self) -> None:
        await self._engine.aclose()


class AsyncBody(_Body):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        read, trace = self._reply.read, self._trace
        if trace is not None:
            await trace.notify(*trace.body("started"))
        try:
            while data := await read(READ_BYTES):
                yield data
        except errors.Error as error:
            if trace is not None:
                await trace.notify(*trace.body("failed", exception=error))
            raise self._errors.translate(error, self._request) from error
        if trace is not None:
            await trace.notify(*trace.body("complete", return_value=None))

    async def aclose(self) -> None:
        await self._close()


class ClientTransports:
    """Overrides the methods with which a client of the package creates its transports."""

    transport_type: ClassVar[Any]

    def _get_proxy_map(self, proxy: Any, allow_env_proxies: bool) -> dict[str, Any]:
        """Reads the environment like the package. Errors name the variable, and NO_PROXY may have brackets around an
        address of IPv6.
        """
        module = self.transport_type.package.module
        try:
            found: dict[str, Any] = super()._get_proxy_map(proxy, allow_env_proxies)  # type: ignore[misc]
        except (ValueError, module.InvalidURL) as error:
            # The text of the error may have a part of the password.
            try:
                read_proxies() if proxy is None else Proxy.of(proxy)
            except errors.ConfigError as named:
                raise type(error)(str(named)) from None
            raise
        if proxy is not None:
            return found
        proxies = {}
        for key, value in found.items():
            if value is not None:
                value.variable = variable_of(key.partition(":")[0])
            pattern = key.replace("://*[", "://[")
            try:
                module.URL(pattern)
            except module.InvalidURL as error:
                message = (
                    f"{variable_of('no')}: {module.__name__} does not read the entry of {pattern!r}: {error}"
                )
                raise module.InvalidURL(message) from None
            proxies[pattern] = value
        return proxies

    def _init_transport(self, *args: Any, **settings: Any) -> Any:
        # `app`: until httpx 0.27.
        if settings.get("transport") is not None or settings.get("app") is not None:
            return super()._init_transport(*args, **settings)  # type: ignore[misc]
        for name in ("transport", "app"):
            settings.pop(name, None)
        return self.transport_type(*args, **settings)

    def _init_proxy_transport(self, proxy: Any, *args: Any, **settings: Any) -> Any:
        return self.transport_type(*args, proxy=proxy, **settings)


async def _notify(trace: TraceEvents, *events: Event) -> None:
    for name, info in events:
        await maybe_await(trace.notify(name, info))
