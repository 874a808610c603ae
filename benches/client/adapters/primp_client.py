"""primp: its client, asynchronous and blocking."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import primp

from .base import PIECE_BYTES, Answer, AsyncAdapter, SyncAdapter, check


class Async(AsyncAdapter):
    async def open(self) -> None:
        self.client = primp.AsyncClient(timeout=60)

    async def get(self, path: str) -> Answer:
        response = await self.client.get(self.base + path)
        return response.status_code, response.content

    async def upload(self, path: str, body: bytes) -> Answer:
        response = await self.client.post(self.base + path, content=body)
        return response.status_code, response.content

    async def post_json(self, path: str, value: Any) -> Any:
        return (await self.client.post(self.base + path, json=value)).json()

    async def pieces(self, path: str, size: int | None = PIECE_BYTES) -> AsyncIterator[bytes]:
        response = await self.client.get(self.base + path, stream=True)
        check(response.status_code)
        async for piece in response.aiter_bytes(size):
            yield piece


class Sync(SyncAdapter):
    def open(self) -> None:
        self.client = primp.Client(timeout=60)

    def get(self, path: str) -> Answer:
        response = self.client.get(self.base + path)
        return response.status_code, response.content

    def upload(self, path: str, body: bytes) -> Answer:
        response = self.client.post(self.base + path, content=body)
        return response.status_code, response.content

    def post_json(self, path: str, value: Any) -> Any:
        return self.client.post(self.base + path, json=value).json()

    def pieces(self, path: str, size: int | None = PIECE_BYTES) -> Iterator[bytes]:
        response = self.client.get(self.base + path, stream=True)
        check(response.status_code)
        yield from response.iter_bytes(size)
