"""httpx, httpx2 and what Towline puts below them: the same calls, other classes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from importlib import import_module
from typing import Any

from .base import PIECE_BYTES, Answer, AsyncAdapter, SyncAdapter, check


class _Async(AsyncAdapter):
    library = clients = ""

    async def open(self) -> None:
        package = import_module(self.library)
        limits = package.Limits(max_connections=self.pool, max_keepalive_connections=self.pool)
        self.client = import_module(self.clients).AsyncClient(limits=limits, trust_env=False, timeout=60)

    async def close(self) -> None:
        await self.client.aclose()

    async def get(self, path: str) -> Answer:
        response = await self.client.get(self.base + path)
        return response.status_code, response.content

    async def upload(self, path: str, body: bytes) -> Answer:
        response = await self.client.post(self.base + path, content=body)
        return response.status_code, response.content

    async def post_json(self, path: str, value: Any) -> Any:
        response = await self.client.post(self.base + path, json=value)
        return response.json()

    async def pieces(self, path: str, size: int | None = PIECE_BYTES) -> AsyncIterator[bytes]:
        async with self.client.stream("GET", self.base + path) as response:
            check(response.status_code)
            async for piece in response.aiter_bytes(size):
                yield piece


class _Sync(SyncAdapter):
    library = clients = ""

    def open(self) -> None:
        package = import_module(self.library)
        limits = package.Limits(max_connections=self.pool, max_keepalive_connections=self.pool)
        self.client = import_module(self.clients).Client(limits=limits, trust_env=False, timeout=60)

    def close(self) -> None:
        self.client.close()

    def get(self, path: str) -> Answer:
        response = self.client.get(self.base + path)
        return response.status_code, response.content

    def upload(self, path: str, body: bytes) -> Answer:
        response = self.client.post(self.base + path, content=body)
        return response.status_code, response.content

    def post_json(self, path: str, value: Any) -> Any:
        return self.client.post(self.base + path, json=value).json()

    def pieces(self, path: str, size: int | None = PIECE_BYTES) -> Iterator[bytes]:
        with self.client.stream("GET", self.base + path) as response:
            check(response.status_code)
            yield from response.iter_bytes(size)


class HttpxAsync(_Async):
    library = clients = "httpx"


class HttpxSync(_Sync):
    library = clients = "httpx"


class Httpx2Async(_Async):
    library = clients = "httpx2"


class Httpx2Sync(_Sync):
    library = clients = "httpx2"


class TowlineHttpx2Async(_Async):
    library, clients = "httpx2", "towline.httpx2"


class TowlineHttpx2Sync(_Sync):
    library, clients = "httpx2", "towline.httpx2"


class TowlineHttpxAsync(_Async):
    library, clients = "httpx", "towline.httpx"
