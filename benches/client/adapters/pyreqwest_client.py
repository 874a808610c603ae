"""pyreqwest: its client, asynchronous and not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from pyreqwest.client import ClientBuilder, SyncClientBuilder

from .base import PIECE_BYTES, Answer, AsyncAdapter, SyncAdapter, check


class Async(AsyncAdapter):
    async def open(self) -> None:
        self.client = ClientBuilder().no_proxy().max_connections(self.pool).build()

    async def close(self) -> None:
        await self.client.close()

    async def get(self, path: str) -> Answer:
        response = await self.client.get(self.base + path).build().send()
        return response.status, bytes(await response.bytes())

    async def upload(self, path: str, body: bytes) -> Answer:
        response = await self.client.post(self.base + path).body_bytes(body).build().send()
        return response.status, bytes(await response.bytes())

    async def post_json(self, path: str, value: Any) -> Any:
        response = await self.client.post(self.base + path).body_json(value).build().send()
        return await response.json()

    async def pieces(self, path: str, size: int | None = PIECE_BYTES) -> AsyncIterator[bytes]:
        async with self.client.get(self.base + path).build_streamed() as response:
            check(response.status)
            reader = response.body_reader
            while piece := await (reader.read_chunk() if size is None else reader.read(size)):
                yield bytes(piece)


class Sync(SyncAdapter):
    def open(self) -> None:
        self.client = SyncClientBuilder().no_proxy().max_connections(self.pool).build()

    def close(self) -> None:
        self.client.close()

    def get(self, path: str) -> Answer:
        response = self.client.get(self.base + path).build().send()
        return response.status, bytes(response.bytes())

    def upload(self, path: str, body: bytes) -> Answer:
        response = self.client.post(self.base + path).body_bytes(body).build().send()
        return response.status, bytes(response.bytes())

    def post_json(self, path: str, value: Any) -> Any:
        return self.client.post(self.base + path).body_json(value).build().send().json()

    def pieces(self, path: str, size: int | None = PIECE_BYTES) -> Iterator[bytes]:
        with self.client.get(self.base + path).build_streamed() as response:
            check(response.status)
            reader = response.body_reader
            while piece := (reader.read_chunk() if size is None else reader.read(size)):
                yield bytes(piece)
