"""primp: its client, asynchronous and blocking."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Any

import primp

from .base import PIECE_BYTES, AsyncAdapter, Response, SyncLikeRequests, check


class Async(AsyncAdapter):
    prior_knowledge = True

    async def open(self) -> None:
        self.client = primp.AsyncClient(timeout=60, http2_only=self.http2)

    # `content` and `json` read the body while they block the loop, and other streams fill the connection's
    # window.

    async def get(self, path: str) -> Response:
        response = await self.client.get(self.base + path)
        return response.status_code, await response.aread()

    async def upload(self, path: str, body: bytes) -> Response:
        response = await self.client.post(self.base + path, content=body)
        return response.status_code, await response.aread()

    async def post_json(self, path: str, value: Any) -> Any:
        response = await self.client.post(self.base + path, json=value)
        await response.aread()
        return response.json()

    async def pieces(self, path: str, size: int | None = PIECE_BYTES) -> AsyncGenerator[bytes, None]:
        response = await self.client.get(self.base + path, stream=True)
        check(response.status_code)
        async for piece in response.aiter_bytes(size):
            yield piece


class Sync(SyncLikeRequests):
    prior_knowledge = True

    def open(self) -> None:
        self.client = primp.Client(timeout=60, http2_only=self.http2)

    def close(self) -> None:
        """Not supported."""

    def pieces(self, path: str, size: int | None = PIECE_BYTES) -> Generator[bytes, None, None]:
        response = self.client.get(self.base + path, stream=True)
        check(response.status_code)
        yield from response.iter_bytes(size)
