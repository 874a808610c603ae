"""wreq: its client, asynchronous and blocking."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Any

import wreq
import wreq.blocking

from .base import PIECE_BYTES, AsyncAdapter, Response, SyncAdapter, check


def options(pool: int, *, http2: bool) -> dict[str, Any]:
    only = "http2_only" if http2 else "http1_only"
    return {only: True, "no_proxy": True, "pool_max_idle_per_host": pool, "pool_max_size": pool}


class Async(AsyncAdapter):
    prior_knowledge = True

    async def open(self) -> None:
        self.client = wreq.Client(**options(self.pool, http2=self.http2))

    async def get(self, path: str) -> Response:
        response = await self.client.get(self.base + path)
        return response.status.as_int(), bytes(await response.bytes())

    async def upload(self, path: str, body: bytes) -> Response:
        response = await self.client.post(self.base + path, body=body)
        return response.status.as_int(), bytes(await response.bytes())

    async def post_json(self, path: str, value: Any) -> Any:
        response = await self.client.post(self.base + path, json=value)
        return await response.json()

    async def pieces(self, path: str, size: int | None = PIECE_BYTES) -> AsyncGenerator[bytes, None]:
        response = await self.client.get(self.base + path)
        check(response.status.as_int())
        async with response.stream() as streamer:  # the library has no read size
            async for piece in streamer:
                yield piece


class Sync(SyncAdapter):
    prior_knowledge = True

    def open(self) -> None:
        self.client = wreq.blocking.Client(**options(self.pool, http2=self.http2))

    def get(self, path: str) -> Response:
        response = self.client.get(self.base + path)
        return response.status.as_int(), bytes(response.bytes())

    def upload(self, path: str, body: bytes) -> Response:
        response = self.client.post(self.base + path, body=body)
        return response.status.as_int(), bytes(response.bytes())

    def post_json(self, path: str, value: Any) -> Any:
        return self.client.post(self.base + path, json=value).json()

    def pieces(self, path: str, size: int | None = PIECE_BYTES) -> Generator[bytes, None, None]:
        response = self.client.get(self.base + path)
        check(response.status.as_int())
        with response.stream() as streamer:
            yield from streamer
