"""curl_cffi: its session, asynchronous and blocking."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Any

from curl_cffi import CurlHttpVersion
from curl_cffi.requests import AsyncSession, Session

from .base import PIECE_BYTES, Adapter, AsyncLikeRequests, SyncLikeRequests, check


def options(adapter: Adapter) -> dict[str, Any]:
    version = CurlHttpVersion.V2_PRIOR_KNOWLEDGE if adapter.http2 else CurlHttpVersion.V1_1
    return {"http_version": version, "trust_env": False}


class Async(AsyncLikeRequests):
    prior_knowledge = True
    content_name = "data"

    async def open(self) -> None:
        self.client = AsyncSession(max_clients=self.pool, **options(self))

    async def close(self) -> None:
        await self.client.close()

    async def pieces(self, path: str, size: int | None = PIECE_BYTES) -> AsyncGenerator[bytes, None]:
        async with self.client.stream("GET", self.base + path) as response:
            check(response.status_code)
            try:
                async for piece in response.aiter_content():  # the library has no read size
                    yield piece
            finally:
                response.quit_now.set()  # without it, closing waits for the end of the stream


class Sync(SyncLikeRequests):
    prior_knowledge = True
    content_name = "data"

    def open(self) -> None:
        self.client = Session(**options(self))

    def pieces(self, path: str, size: int | None = PIECE_BYTES) -> Generator[bytes, None, None]:
        with self.client.stream("GET", self.base + path) as response:
            check(response.status_code)
            yield from response.iter_content()
