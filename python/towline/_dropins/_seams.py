"""Mocks of the other package are seen by the drop-ins.

respx, pytest-httpx, responses, VCR.py and instrumentation replace a method of the other package's classes: the one that
sends, of its transport, or of the pool of httpcore below it. A drop-in overrides that method, so it would never reach the
replacement, and a test suite would call the real servers without a word. It therefore compares the method with the
original for each request, and if they differ, calls the method of the package on itself. The original code of the package
then finds `CorePool` in place of httpcore's pool; that is how requests that a mock lets through return to the engine.
`CorePool` has the settings of the pool that it replaces, since mocks and test suites read them (pytest-httpx the proxy,
elastic-transport the `ssl.SSLContext`).
"""

from __future__ import annotations

import sys
import threading
from types import FunctionType, ModuleType
from typing import Any


class Seam:
    """A method of a class of another package that mocks replace."""

    __slots__ = ("_name", "_owner", "_stock")

    def __init__(self, owner: type, name: str) -> None:
        self._owner = owner
        self._name = name
        self._stock = self._find_stock()

    def _find_stock(self) -> Any:
        """Returns the original method, or None if it is replaced already."""
        found = vars(self._owner).get(self._name)
        # A wrapper can have the name and the module of the original, but not its globals.
        home = vars(self._owner)["__init__"].__globals__
        return found if type(found) is FunctionType and found.__globals__ is home else None

    def is_replaced(self) -> bool:
        if getattr(self._owner, self._name) is self._stock:
            return False
        if self._stock is None:
            self._stock = self._find_stock()
        return getattr(self._owner, self._name) is not self._stock


class Seams:
    """The sending method of a transport class of httpx or httpx2, and that of httpcore's pool below it."""

    __slots__ = ("_core", "_core_name", "_lock", "_method", "_pool", "_pool_types", "_transport", "original")

    def __init__(self, module: ModuleType, original: type, method: str, pool: str) -> None:
        self.original = original
        self._method = method
        self._pool = pool
        self._transport = Seam(original, method)
        self._core_name = module.__name__.replace("httpx", "httpcore")
        self._core: Seam | None = None
        self._pool_types: dict[type, Any] = {}
        self._lock = threading.Lock()

    def are_replaced(self) -> bool:
        """Returns whether a mock is active. httpcore is not imported for it: nobody can have replaced its methods then."""
        core = self._core
        if core is None and self._core_name in sys.modules:
            core = self._find_core()
        return self._transport.is_replaced() or (core is not None and core.is_replaced())

    def _find_core(self) -> Seam | None:
        pool = getattr(sys.modules[self._core_name], self._pool, None)
        if pool is not None:  # else it is being imported
            self._core = Seam(pool, self._method)
        return self._core

    def call_original(self, transport: Any, request: Any) -> Any:
        """Calls the method of the package, as it is now, on a drop-in transport."""
        return getattr(self.original, self._method)(transport, request)

    def pool_for(self, transport: Any) -> Any:
        """Returns a pool of httpcore with the settings of the original transport, whose connections are Towline's."""
        # Older releases do not have every argument.
        given = {name: value for name, value in transport._arguments.items() if value is not None}
        try:
            original = self.original(**given)._pool
        except ImportError:  # socksio, without which the package has no SOCKS proxies
            given.pop("proxy")
            original = self.original(**given)._pool
        with self._lock:
            base = type(original)
            if base not in self._pool_types:
                core = sys.modules[self._core_name]
                make = _async_pool_type if self._pool.startswith("Async") else _sync_pool_type
                self._pool_types[base] = make(core, base, Seam(getattr(core, self._pool), self._method))
            pool = object.__new__(self._pool_types[base])
        vars(pool).update(vars(original), transport=transport)
        return pool


class OriginalPool:
    """`_pool` of a drop-in transport, which the code of the package uses. It is created when it is needed first."""

    def __init__(self, seams: str) -> None:
        self._seams = seams

    def __get__(self, transport: Any, owner: Any) -> Any:
        if transport is None:
            return self
        pool = vars(transport)["_pool"] = getattr(transport.package, self._seams).pool_for(transport)
        return pool


class CoreRequest:
    """A request of httpcore with the attributes of httpx's that a drop-in transport reads."""

    __slots__ = ("extensions", "headers", "method", "stream", "url")

    def __init__(self, request: Any) -> None:
        self.method = request.method.decode("ascii")
        self.url = _Url(request.url)
        self.headers = _Headers(request.headers)
        self.stream = request.stream
        self.extensions = request.extensions


class _Url:
    __slots__ = ("port", "raw_host", "raw_path", "raw_scheme", "scheme")

    def __init__(self, url: Any) -> None:
        self.raw_scheme = url.scheme
        self.scheme = url.scheme.decode("ascii")
        self.raw_host = url.host
        self.port = url.port
        self.raw_path = url.target


class _Headers:
    __slots__ = ("raw",)

    def __init__(self, headers: list[tuple[bytes, bytes]]) -> None:
        self.raw = headers


class _Connection:
    """A connection of httpcore's pool for one request. It counts as closed, so that the pool forgets it at once."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def handle_request(self, request: Any) -> Any:
        return self._pool.send(request)

    async def handle_async_request(self, request: Any) -> Any:
        return await self._pool.asend(request)

    def can_handle_request(self, origin: Any) -> bool:
        return False

    def is_available(self) -> bool:
        return False

    def is_idle(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return True


def _sync_pool_type(core: ModuleType, base: Any, seam: Seam) -> Any:
    class CorePool(base):  # type: ignore[misc]
        """httpcore's pool for code that is called while its methods are replaced."""

        transport: Any

        def create_connection(self, origin: Any) -> _Connection:
            return _Connection(self)

        def send(self, request: Any) -> Any:
            response = self.transport.handle_request(CoreRequest(request))
            return core.Response(
                response.status_code,
                headers=response.headers.raw,
                content=response.stream,
                extensions=response.extensions,
            )

        def handle_request(self, request: Any) -> Any:
            return base.handle_request(self, request) if seam.is_replaced() else self.send(request)

    return CorePool


def _async_pool_type(core: ModuleType, base: Any, seam: Seam) -> Any:
    class AsyncCorePool(base):  # type: ignore[misc]
        """httpcore's pool for code that is called while its methods are replaced."""

        transport: Any

        def create_connection(self, origin: Any) -> _Connection:
            return _Connection(self)

        async def asend(self, request: Any) -> Any:
            response = await self.transport.handle_async_request(CoreRequest(request))
            return core.Response(
                response.status_code,
                headers=response.headers.raw,
                content=response.stream,
                extensions=response.extensions,
            )

        async def handle_async_request(self, request: Any) -> Any:
            if seam.is_replaced():
                return await base.handle_async_request(self, request)
            return await self.asend(request)

    return AsyncCorePool
