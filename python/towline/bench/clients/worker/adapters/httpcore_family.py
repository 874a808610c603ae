"""httpcore and httpcorexyz. The second registers itself under the first's name, so each needs its own process."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator
from importlib import import_module
from typing import Any

from .base import PIECE_BYTES, Adapter, AsyncAdapter, Response, SyncAdapter, check

JSON = {"content-type": "application/json"}


def first_request(library: str, base: str) -> Any:
    return import_module(library).Request("GET", f"{base}/", headers={"Host": base.removeprefix("http://")})


def pool_of(adapter: Adapter, library: str, name: str) -> Any:
    """A pool of the library's class `name`."""
    return getattr(import_module(library), name)(
        max_connections=adapter.pool,
        max_keepalive_connections=adapter.pool,
        uds=adapter.uds,
        http1=not adapter.http2,
        http2=adapter.http2,
    )


class _Async(AsyncAdapter):
    library = ""
    unix_sockets = True
    prior_knowledge = True

    async def open(self) -> None:
        self.client = pool_of(self, self.library, "AsyncConnectionPool")

    async def close(self) -> None:
        await self.client.aclose()

    async def get(self, path: str) -> Response:
        response = await self.client.request("GET", self.base + path)
        return response.status, response.content

    async def upload(self, path: str, body: bytes) -> Response:
        response = await self.client.request("POST", self.base + path, content=body)
        return response.status, response.content

    async def post_json(self, path: str, value: Any) -> Any:
        body = json.dumps(value).encode()
        response = await self.client.request("POST", self.base + path, headers=JSON, content=body)
        return json.loads(response.content)

    async def pieces(self, path: str, size: int | None = PIECE_BYTES) -> AsyncGenerator[bytes, None]:
        async with self.client.stream("GET", self.base + path) as response:
            check(response.status)
            async for piece in response.aiter_stream():  # the library has no read size
                yield piece

    async def add_idle_connection(self, base: str) -> None:
        """Adds an open, idle connection: a thousand through the pool itself would take httpcore minutes."""
        request = first_request(self.library, base)
        connection = self.client.create_connection(request.url.origin)
        response = await connection.handle_async_request(request)
        await response.aread()
        await response.aclose()
        self.client._connections.append(connection)


class _Sync(SyncAdapter):
    library = ""
    unix_sockets = True
    prior_knowledge = True

    def open(self) -> None:
        self.client = pool_of(self, self.library, "ConnectionPool")

    def close(self) -> None:
        self.client.close()

    def get(self, path: str) -> Response:
        response = self.client.request("GET", self.base + path)
        return response.status, response.content

    def upload(self, path: str, body: bytes) -> Response:
        response = self.client.request("POST", self.base + path, content=body)
        return response.status, response.content

    def post_json(self, path: str, value: Any) -> Any:
        body = json.dumps(value).encode()
        response = self.client.request("POST", self.base + path, headers=JSON, content=body)
        return json.loads(response.content)

    def pieces(self, path: str, size: int | None = PIECE_BYTES) -> Generator[bytes, None, None]:
        with self.client.stream("GET", self.base + path) as response:
            check(response.status)
            yield from response.iter_stream()

    def add_idle_connection(self, base: str) -> None:
        request = first_request(self.library, base)
        connection = self.client.create_connection(request.url.origin)
        response = connection.handle_request(request)
        response.read()
        response.close()
        self.client._connections.append(connection)


def adapters(library: str) -> tuple[type[_Async], type[_Sync]]:
    """Both adapters of a library."""
    names = {"library": library}
    return type("Async", (_Async,), names), type("Sync", (_Sync,), names)


HttpcoreAsync, HttpcoreSync = adapters("httpcore")
HttpcorexyzAsync, HttpcorexyzSync = adapters("httpcorexyz")
