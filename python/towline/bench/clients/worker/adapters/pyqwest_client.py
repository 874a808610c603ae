"""pyqwest: its client, asynchronous and blocking."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator
from typing import Any

import pyqwest

from .base import PIECE_BYTES, Adapter, AsyncAdapter, Response, SyncAdapter, check

JSON = {"content-type": "application/json"}  # it encodes no JSON itself


def options(adapter: Adapter) -> dict[str, Any]:
    version = pyqwest.HTTPVersion.HTTP2 if adapter.http2 else pyqwest.HTTPVersion.HTTP1
    return {"http_version": version, "pool_max_idle_per_host": adapter.pool}


class Async(AsyncAdapter):
    prior_knowledge = True

    async def open(self) -> None:
        self.transport = pyqwest.HTTPTransport(**options(self))
        self.client = pyqwest.Client(self.transport)

    async def close(self) -> None:
        await self.transport.aclose()

    async def get(self, path: str) -> Response:
        response = await self.client.get(self.base + path)
        return response.status, response.content

    async def upload(self, path: str, body: bytes) -> Response:
        response = await self.client.post(self.base + path, content=body)
        return response.status, response.content

    async def post_json(self, path: str, value: Any) -> Any:
        body = json.dumps(value).encode()
        return (await self.client.post(self.base + path, headers=JSON, content=body)).json()

    async def pieces(self, path: str, size: int | None = PIECE_BYTES) -> AsyncGenerator[bytes, None]:
        async with self.client.stream("GET", self.base + path) as response:
            check(response.status)
            async for piece in response.content:  # the library has no read size
                yield bytes(piece)


class Sync(SyncAdapter):
    prior_knowledge = True

    def open(self) -> None:
        self.transport = pyqwest.SyncHTTPTransport(**options(self))
        self.client = pyqwest.SyncClient(self.transport)

    def close(self) -> None:
        self.transport.close()

    def get(self, path: str) -> Response:
        response = self.client.get(self.base + path)
        return response.status, response.content

    def upload(self, path: str, body: bytes) -> Response:
        response = self.client.post(self.base + path, content=body)
        return response.status, response.content

    def post_json(self, path: str, value: Any) -> Any:
        return self.client.post(self.base + path, headers=JSON, content=json.dumps(value).encode()).json()

    def pieces(self, path: str, size: int | None = PIECE_BYTES) -> Generator[bytes, None, None]:
        with self.client.stream("GET", self.base + path) as response:
            check(response.status)
            yield from map(bytes, response.content)
