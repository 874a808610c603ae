"""aiohttp.ClientSession."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import aiohttp

from .base import PIECE_BYTES, AsyncAdapter, Response, check


class Async(AsyncAdapter):
    unix_sockets = True

    async def open(self) -> None:
        if self.uds is not None:
            connector: aiohttp.BaseConnector = aiohttp.UnixConnector(self.uds, limit=self.pool)
        else:
            connector = aiohttp.TCPConnector(limit=self.pool)
        self.session = aiohttp.ClientSession(connector=connector)

    async def close(self) -> None:
        await self.session.close()

    async def get(self, path: str) -> Response:
        async with self.session.get(self.base + path) as response:
            return response.status, await response.read()

    async def upload(self, path: str, body: bytes) -> Response:
        async with self.session.post(self.base + path, data=body) as response:
            return response.status, await response.read()

    async def post_json(self, path: str, value: Any) -> Any:
        async with self.session.post(self.base + path, json=value) as response:
            return await response.json()

    async def pieces(self, path: str, size: int | None = PIECE_BYTES) -> AsyncGenerator[bytes, None]:
        async with self.session.get(self.base + path) as response:
            check(response.status)
            if size is None:
                async for piece in response.content.iter_any():
                    yield piece
                return
            while piece := await response.content.read(size):
                yield piece
