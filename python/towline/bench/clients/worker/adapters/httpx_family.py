"""httpx, httpx2 and the drop-ins for them: the same calls, other classes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from importlib import import_module
from typing import Any

from .base import PIECE_BYTES, AsyncLikeRequests, SyncLikeRequests, check


def client(library: str, clients: str, name: str, pool: int, *, http2: bool) -> Any:
    """`clients` has the classes, `library` the options that they take."""
    limits = import_module(library).Limits(max_connections=pool, max_keepalive_connections=pool)
    protocols = {"http1": not http2, "http2": http2}
    return getattr(import_module(clients), name)(limits=limits, trust_env=False, timeout=60, **protocols)


class _Async(AsyncLikeRequests):
    library = clients = ""
    prior_knowledge = True

    async def open(self) -> None:
        self.client = client(self.library, self.clients, "AsyncClient", self.pool, http2=self.http2)

    async def close(self) -> None:
        await self.client.aclose()

    async def pieces(self, path: str, size: int | None = PIECE_BYTES) -> AsyncGenerator[bytes, None]:
        async with self.client.stream("GET", self.base + path) as response:
            check(response.status_code)
            async for piece in response.aiter_bytes(size):
                yield piece


class _Sync(SyncLikeRequests):
    library = clients = ""
    prior_knowledge = True

    def open(self) -> None:
        self.client = client(self.library, self.clients, "Client", self.pool, http2=self.http2)

    def pieces(self, path: str, size: int | None = PIECE_BYTES) -> Generator[bytes, None, None]:
        with self.client.stream("GET", self.base + path) as response:
            check(response.status_code)
            yield from response.iter_bytes(size)


def adapters(library: str, clients: str | None = None) -> tuple[type[_Async], type[_Sync]]:
    """Both adapters of a library; `clients`: the package of the drop-in that has the classes in its place."""
    names = {"library": library, "clients": clients or library}
    return type("Async", (_Async,), names), type("Sync", (_Sync,), names)


HttpxAsync, HttpxSync = adapters("httpx")
Httpx2Async, Httpx2Sync = adapters("httpx2")
TowlineHttpx2Async, TowlineHttpx2Sync = adapters("httpx2", "towline.httpx2")
TowlineHttpxAsync, TowlineHttpxSync = adapters("httpx", "towline.httpx")
