"""httpr: its client, asynchronous (on threads) and blocking."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Any

import httpr

from .base import PIECE_BYTES, Adapter, AsyncLikeRequests, SyncLikeRequests, check


def options(adapter: Adapter) -> dict[str, Any]:
    return {"http2_only": adapter.http2, "http1_only": not adapter.http2}


class Async(AsyncLikeRequests):
    prior_knowledge = True

    async def open(self) -> None:
        self.client = httpr.AsyncClient(max_concurrency=self.pool, **options(self))

    async def close(self) -> None:
        await self.client.aclose()

    async def pieces(self, path: str, size: int | None = PIECE_BYTES) -> AsyncGenerator[bytes, None]:
        async with self.client.stream("GET", self.base + path) as response:
            check(response.status_code)
            async for piece in response.aiter_bytes():  # the library has no read size
                yield piece


class Sync(SyncLikeRequests):
    prior_knowledge = True

    def open(self) -> None:
        self.client = httpr.Client(**options(self))

    def pieces(self, path: str, size: int | None = PIECE_BYTES) -> Generator[bytes, None, None]:
        with self.client.stream("GET", self.base + path) as response:
            check(response.status_code)
            yield from response.iter_bytes()
