"""towline.AsyncClient and towline.Client, also with the transports of other libraries."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Any

import towline

from .base import PIECE_BYTES, Adapter, AsyncLikeRequests, SyncLikeRequests, check


def options(pool: int, uds: str | None, *, http2: bool, http3: bool) -> dict[str, Any]:
    limits = towline.Limits(max_connections_per_host=pool, max_keepalive_connections=pool)
    found: dict[str, Any] = {"limits": limits, "trust_env": False, "uds": uds}
    if http3:
        return found | {"http1": False, "http3": True, "verify": False}
    return found | ({"http1": False, "http2": True} if http2 else {})


class _Towline(Adapter):
    transport: str | None = None
    unix_sockets = True
    prior_knowledge = True
    http3_alone = True
    streamed: towline.Response | None = None

    def buffered(self) -> int | None:
        return self.streamed.buffered if self.streamed is not None else None


class Async(_Towline, AsyncLikeRequests):
    async def open(self) -> None:
        self.client = towline.AsyncClient(
            **options(self.pool, self.uds, http2=self.http2, http3=self.http3), transport=self.transport
        )

    async def close(self) -> None:
        await self.client.aclose()

    async def pieces(self, path: str, size: int | None = PIECE_BYTES) -> AsyncGenerator[bytes, None]:
        async with self.client.stream("GET", self.base + path) as response:
            check(response.status_code)
            self.streamed = response
            while piece := await response.aread(size or PIECE_BYTES):
                yield piece

    async def events(self, path: str) -> AsyncGenerator[bytes, None]:
        async with self.client.stream("GET", self.base + path) as response:
            check(response.status_code)
            self.streamed = response
            async for event in response.aiter_sse():
                yield event.data.encode()


class Sync(_Towline, SyncLikeRequests):
    def open(self) -> None:
        self.client = towline.Client(
            **options(self.pool, self.uds, http2=self.http2, http3=self.http3), transport=self.transport
        )

    def pieces(self, path: str, size: int | None = PIECE_BYTES) -> Generator[bytes, None, None]:
        with self.client.stream("GET", self.base + path) as response:
            check(response.status_code)
            self.streamed = response
            while piece := response.read(size or PIECE_BYTES):
                yield piece

    def events(self, path: str) -> Generator[bytes, None, None]:
        with self.client.stream("GET", self.base + path) as response:
            check(response.status_code)
            self.streamed = response
            for event in response.iter_sse():
                yield event.data.encode()


class AsyncHttpx(Async):
    transport = "httpx"


class AsyncAiohttp(Async):
    transport = "aiohttp"


class SyncHttpx(Sync):
    transport = "httpx"


class SyncUrllib3(Sync):
    transport = "urllib3"
