"""requests, requests on Towline, niquests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from importlib import import_module
from typing import Any

from .base import PIECE_BYTES, Adapter, AsyncLikeRequests, SyncLikeRequests, check


class _Session(SyncLikeRequests):
    content_name = "data"

    def session(self) -> Any:
        requests = import_module("requests")
        session = requests.Session()
        session.trust_env = False
        return session

    def pieces(self, path: str, size: int | None = PIECE_BYTES) -> Generator[bytes, None, None]:
        with self.client.get(self.base + path, stream=True) as response:
            check(response.status_code)
            yield from response.iter_content(size)


class Requests(_Session):
    def open(self) -> None:
        self.client = self.session()
        adapter = import_module("requests.adapters").HTTPAdapter(pool_maxsize=self.pool, pool_block=True)
        self.client.mount("http://", adapter)


class Towline(_Session):
    def open(self) -> None:
        self.client = self.session()
        self.client.mount("http://", import_module("towline.requests").Adapter())


def niquests_session(name: str, adapter: Adapter) -> Any:
    session = getattr(import_module("niquests"), name)(
        pool_maxsize=adapter.pool,
        disable_http1=adapter.http2 or adapter.http3,
        disable_http2=not adapter.http2,
        disable_http3=not adapter.http3,
    )
    session.trust_env = False
    if adapter.http3:
        host, _, port = adapter.base.removeprefix("https://").partition(":")
        session.verify = False
        session.quic_cache_layer.add_domain(host, int(port))
    return session


class Niquests(_Session):
    prior_knowledge = True
    http3_alone = True

    def open(self) -> None:
        self.client = niquests_session("Session", self)


class NiquestsAsync(AsyncLikeRequests):
    content_name = "data"
    prior_knowledge = True
    http3_alone = True

    async def open(self) -> None:
        self.client = niquests_session("AsyncSession", self)

    async def close(self) -> None:
        await self.client.close()

    async def pieces(self, path: str, size: int | None = PIECE_BYTES) -> AsyncGenerator[bytes, None]:
        response = await self.client.get(self.base + path, stream=True)
        check(response.status_code)
        async for piece in await response.iter_content(-1 if size is None else size):
            yield piece
