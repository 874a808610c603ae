"""requests, requests on Towline, niquests (which needs an environment of its own: it replaces urllib3)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from .base import PIECE_BYTES, Answer, AsyncAdapter, SyncAdapter, check


class _Session(SyncAdapter):
    session: Any

    def close(self) -> None:
        self.session.close()

    def get(self, path: str) -> Answer:
        response = self.session.get(self.base + path)
        return response.status_code, response.content

    def upload(self, path: str, body: bytes) -> Answer:
        response = self.session.post(self.base + path, data=body)
        return response.status_code, response.content

    def post_json(self, path: str, value: Any) -> Any:
        return self.session.post(self.base + path, json=value).json()

    def pieces(self, path: str, size: int | None = PIECE_BYTES) -> Iterator[bytes]:
        with self.session.get(self.base + path, stream=True) as response:
            check(response.status_code)
            yield from response.iter_content(size)


class Requests(_Session):
    def open(self) -> None:
        import requests

        self.session = requests.Session()
        self.session.trust_env = False
        self.session.mount("http://", requests.adapters.HTTPAdapter(pool_maxsize=self.pool, pool_block=True))


class Towline(_Session):
    def open(self) -> None:
        import requests
        import towline.requests

        self.session = requests.Session()
        self.session.trust_env = False
        self.session.mount("http://", towline.requests.Adapter())


class Niquests(_Session):
    def open(self) -> None:
        import niquests

        self.session = niquests.Session(pool_maxsize=self.pool)
        self.session.trust_env = False


class NiquestsAsync(AsyncAdapter):
    async def open(self) -> None:
        import niquests

        self.session = niquests.AsyncSession(pool_maxsize=self.pool)
        self.session.trust_env = False

    async def close(self) -> None:
        await self.session.close()

    async def get(self, path: str) -> Answer:
        response = await self.session.get(self.base + path)
        return response.status_code, response.content

    async def upload(self, path: str, body: bytes) -> Answer:
        response = await self.session.post(self.base + path, data=body)
        return response.status_code, response.content

    async def post_json(self, path: str, value: Any) -> Any:
        return (await self.session.post(self.base + path, json=value)).json()

    async def pieces(self, path: str, size: int | None = PIECE_BYTES) -> AsyncIterator[bytes]:
        response = await self.session.get(self.base + path, stream=True)
        check(response.status_code)
        async for piece in await response.iter_content(-1 if size is None else size):
            yield piece
