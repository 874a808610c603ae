"""httpcore and httpcorexyz. The second registers itself under the first's name: never both in one process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from importlib import import_module
from typing import Any

from .base import PIECE_BYTES, Answer, AsyncAdapter, SyncAdapter, check

JSON = {"content-type": "application/json"}


class _Async(AsyncAdapter):
    library = ""

    async def open(self) -> None:
        package = import_module(self.library)
        self.client = package.AsyncConnectionPool(
            max_connections=self.pool, max_keepalive_connections=self.pool
        )

    async def close(self) -> None:
        await self.client.aclose()

    async def get(self, path: str) -> Answer:
        response = await self.client.request("GET", self.base + path)
        return response.status, response.content

    async def upload(self, path: str, body: bytes) -> Answer:
        response = await self.client.request("POST", self.base + path, content=body)
        return response.status, response.content

    async def post_json(self, path: str, value: Any) -> Any:
        body = json.dumps(value).encode()
        response = await self.client.request("POST", self.base + path, headers=JSON, content=body)
        return json.loads(response.content)

    async def pieces(self, path: str, size: int | None = PIECE_BYTES) -> AsyncIterator[bytes]:
        async with self.client.stream("GET", self.base + path) as response:
            check(response.status)
            async for piece in response.aiter_stream():  # it has no size of its own
                yield piece


class _Sync(SyncAdapter):
    library = ""

    def open(self) -> None:
        package = import_module(self.library)
        self.client = package.ConnectionPool(max_connections=self.pool, max_keepalive_connections=self.pool)

    def close(self) -> None:
        self.client.close()

    def get(self, path: str) -> Answer:
        response = self.client.request("GET", self.base + path)
        return response.status, response.content

    def upload(self, path: str, body: bytes) -> Answer:
        response = self.client.request("POST", self.base + path, content=body)
        return response.status, response.content

    def post_json(self, path: str, value: Any) -> Any:
        body = json.dumps(value).encode()
        response = self.client.request("POST", self.base + path, headers=JSON, content=body)
        return json.loads(response.content)

    def pieces(self, path: str, size: int | None = PIECE_BYTES) -> Iterator[bytes]:
        with self.client.stream("GET", self.base + path) as response:
            check(response.status)
            yield from response.iter_stream()


class HttpcoreAsync(_Async):
    library = "httpcore"


class HttpcoreSync(_Sync):
    library = "httpcore"


class HttpcorexyzAsync(_Async):
    library = "httpcorexyz"


class HttpcorexyzSync(_Sync):
    library = "httpcorexyz"
