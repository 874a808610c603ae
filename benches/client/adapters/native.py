"""towline.AsyncClient and towline.Client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import towline

from .base import PIECE_BYTES, Answer, AsyncAdapter, SyncAdapter, check


def limits(pool: int) -> towline.Limits:
    return towline.Limits(max_connections_per_host=pool, max_keepalive_connections=pool)


class Async(AsyncAdapter):
    async def open(self) -> None:
        self.client = towline.AsyncClient(limits=limits(self.pool), trust_env=False)
        self.streamed: towline.Response | None = None

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
            self.streamed = response
            while piece := await response.aread(size or PIECE_BYTES):
                yield piece

    def buffered(self) -> int | None:
        return self.streamed.buffered if self.streamed is not None else None

    async def events(self, path: str) -> AsyncIterator[bytes]:
        async with self.client.stream("GET", self.base + path) as response:
            check(response.status_code)
            self.streamed = response
            async for event in response.aiter_sse():
                yield event.data.encode()


class Sync(SyncAdapter):
    def open(self) -> None:
        self.client = towline.Client(limits=limits(self.pool), trust_env=False)
        self.streamed: towline.Response | None = None

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
            self.streamed = response
            while piece := response.read(size or PIECE_BYTES):
                yield piece

    def buffered(self) -> int | None:
        return self.streamed.buffered if self.streamed is not None else None

    def events(self, path: str) -> Iterator[bytes]:
        with self.client.stream("GET", self.base + path) as response:
            check(response.status_code)
            self.streamed = response
            for event in response.iter_sse():
                yield event.data.encode()
