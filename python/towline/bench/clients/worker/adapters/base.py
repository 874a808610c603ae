"""The interface of the adapters, and code shared by most of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Generator
from typing import Any

PIECE_BYTES = 65536
Response = tuple[int, bytes]


class WrongStatus(Exception):
    """A stream that does not begin with 200."""


def check(status: int) -> None:
    if status != 200:
        raise WrongStatus(str(status))


class Adapter:
    """`base` is the responder's origin, `pool` the number of connections the client may keep.

    `uds`: the unix socket to connect to, for clients that can (`unix_sockets`).
    `http2`: HTTP/2 only, by prior knowledge, for clients that can (`prior_knowledge`).
    `http3`: HTTP/3 only, at once, with any certificate, for clients that can (`http3_alone`).
    """

    unix_sockets = False
    prior_knowledge = False
    http3_alone = False

    def __init__(
        self, base: str, pool: int, uds: str | None = None, *, http2: bool = False, http3: bool = False
    ) -> None:
        if uds is not None and not self.unix_sockets:
            raise ValueError("this client's adapter does not support unix sockets")
        if http2 and not self.prior_knowledge:
            raise ValueError("this client's adapter does not support HTTP/2")
        if http3 and not self.http3_alone:
            raise ValueError("this client's adapter does not support HTTP/3")
        self.base, self.pool, self.uds, self.http2, self.http3 = base, pool, uds, http2, http3

    def buffered(self) -> int | None:
        """Bytes of the current stream that the client has buffered, if it reports them."""
        return None


class AsyncAdapter(Adapter, ABC):
    @abstractmethod
    async def open(self) -> None:
        """Creates the client, inside the loop."""

    async def close(self) -> None:
        """Closes its connections."""

    @abstractmethod
    async def get(self, path: str) -> Response:
        """Returns the status and the complete body."""

    @abstractmethod
    async def upload(self, path: str, body: bytes) -> Response:
        """Posts given bytes."""

    @abstractmethod
    async def post_json(self, path: str, value: Any) -> Any:
        """Posts JSON and decodes the response, both with the client's own codec."""

    @abstractmethod
    def pieces(self, path: str, size: int | None = PIECE_BYTES) -> AsyncGenerator[bytes, None]:
        """Yields the body in reads of at most `size`; `None`: as it arrives."""

    async def events(self, path: str) -> AsyncGenerator[bytes, None]:
        """Yields server-sent events."""
        pending = b""
        async for piece in self.pieces(path, None):
            *complete, pending = (pending + piece).split(b"\n\n")
            for event in complete:
                yield event


class SyncAdapter(Adapter, ABC):
    @abstractmethod
    def open(self) -> None:
        """Creates the client that all threads share."""

    def close(self) -> None:
        """Closes its connections."""

    @abstractmethod
    def get(self, path: str) -> Response:
        """Returns the status and the complete body."""

    @abstractmethod
    def upload(self, path: str, body: bytes) -> Response:
        """Posts given bytes."""

    @abstractmethod
    def post_json(self, path: str, value: Any) -> Any:
        """Posts JSON and decodes the response, both with the client's own codec."""

    @abstractmethod
    def pieces(self, path: str, size: int | None = PIECE_BYTES) -> Generator[bytes, None, None]:
        """Yields the body in reads of at most `size`; `None`: as it arrives."""

    def events(self, path: str) -> Generator[bytes, None, None]:
        """Yields server-sent events."""
        pending = b""
        for piece in self.pieces(path, None):
            *complete, pending = (pending + piece).split(b"\n\n")
            yield from complete


class AsyncLikeRequests(AsyncAdapter):
    """Clients with `get`, `post(content=...)`, `post(json=...)` whose responses have `status_code` and `content`."""

    client: Any
    content_name = "content"

    async def get(self, path: str) -> Response:
        response = await self.client.get(self.base + path)
        return response.status_code, response.content

    async def upload(self, path: str, body: bytes) -> Response:
        response = await self.client.post(self.base + path, **{self.content_name: body})
        return response.status_code, response.content

    async def post_json(self, path: str, value: Any) -> Any:
        return (await self.client.post(self.base + path, json=value)).json()


class SyncLikeRequests(SyncAdapter):
    """Blocking client whose calls are those of requests."""

    client: Any
    content_name = "content"

    def close(self) -> None:
        self.client.close()

    def get(self, path: str) -> Response:
        response = self.client.get(self.base + path)
        return response.status_code, response.content

    def upload(self, path: str, body: bytes) -> Response:
        response = self.client.post(self.base + path, **{self.content_name: body})
        return response.status_code, response.content

    def post_json(self, path: str, value: Any) -> Any:
        return self.client.post(self.base + path, json=value).json()
