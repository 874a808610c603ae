"""pyreqwest: its client, asynchronous and blocking."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Any

from pyreqwest.client import ClientBuilder, SyncClientBuilder

from .base import PIECE_BYTES, AsyncAdapter, Response, SyncAdapter, check


class Async(AsyncAdapter):
    prior_knowledge = True

    async def open(self) -> None:
        builder = ClientBuilder().no_proxy().max_connections(self.pool)
        self.client = (builder.http2_prior_knowledge() if self.http2 else builder).build()

    async def close(self) -> None:
        await self.client.close()

    async def get(self, path: str) -> Response:
        response = await self.client.get(self.base + path).build().send()
        return response.status, bytes(await response.bytes())

    async def upload(self, path: str, body: bytes) -> Response:
        response = await self.client.post(self.base + path).body_bytes(body).build().send()
        return response.status, bytes(await response.bytes())

    async def post_json(self, path: str, value: Any) -> Any:
        response = await self.client.post(self.base + path).body_json(value).build().send()
        return await response.json()

    async def pieces(self, path: str, size: int | None = PIECE_BYTES) -> AsyncGenerator[bytes, None]:
        async with self.client.get(self.base + path).build_streamed() as response:
            check(response.status)
            reader = response.body_reader
            while piece := await (reader.read_chunk() if size is None else reader.read(size)):
                yield bytes(piece)


class Sync(SyncAdapter):
    prior_knowledge = True

    def open(self) -> None:
        builder = SyncClientBuilder().no_proxy().max_connections(self.pool)
        self.client = (builder.http2_prior_knowledge() if self.http2 else builder).build()

    def close(self) -> None:
        self.client.close()

    def get(self, path: str) -> Response:
        response = self.client.get(self.base + path).build().send()
        return response.status, bytes(response.bytes())

    def upload(self, path: str, body: bytes) -> Response:
        response = self.client.post(self.base + path).body_bytes(body).build().send()
        return response.status, bytes(response.bytes())

    def post_json(self, path: str, value: Any) -> Any:
        return self.client.post(self.base + path).body_json(value).build().send().json()

    def pieces(self, path: str, size: int | None = PIECE_BYTES) -> Generator[bytes, None, None]:
        with self.client.get(self.base + path).build_streamed() as response:
            check(response.status)
            reader = response.body_reader
            while piece := (reader.read_chunk() if size is None else reader.read(size)):
                yield bytes(piece)
