"""The face that every adapter has. `pieces` is the only thing that a load asks of a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

PIECE_BYTES = 65536
Answer = tuple[int, bytes]


class WrongStatus(Exception):
    """A stream that does not begin with 200."""


def check(status: int) -> None:
    if status != 200:
        raise WrongStatus(str(status))


class AsyncAdapter:
    def __init__(self, base: str, pool: int) -> None:
        self.base, self.pool = base, pool

    async def open(self) -> None:
        """Makes the client, inside the loop."""

    async def close(self) -> None:
        """Gives its connections up."""

    async def get(self, path: str) -> Answer:
        raise NotImplementedError

    async def upload(self, path: str, body: bytes) -> Answer:
        raise NotImplementedError

    async def post_json(self, path: str, value: Any) -> Any:
        raise NotImplementedError

    def pieces(self, path: str, size: int | None = PIECE_BYTES) -> AsyncIterator[bytes]:
        """The body as the consumer takes it, in reads of at most `size`; `None`: as it comes."""
        raise NotImplementedError

    def buffered(self) -> int | None:
        """Bytes that the client holds of the stream under way, where it says so."""
        return None

    async def events(self, path: str) -> AsyncIterator[bytes]:
        """Server-sent events, one by one."""
        held = b""
        async for piece in self.pieces(path, None):
            *complete, held = (held + piece).split(b"\n\n")
            for event in complete:
                yield event


class SyncAdapter:
    def __init__(self, base: str, pool: int) -> None:
        self.base, self.pool = base, pool

    def open(self) -> None:
        """Makes the client that all threads share."""

    def close(self) -> None:
        """Gives its connections up."""

    def get(self, path: str) -> Answer:
        raise NotImplementedError

    def upload(self, path: str, body: bytes) -> Answer:
        raise NotImplementedError

    def post_json(self, path: str, value: Any) -> Any:
        raise NotImplementedError

    def pieces(self, path: str, size: int | None = PIECE_BYTES) -> Iterator[bytes]:
        raise NotImplementedError

    def buffered(self) -> int | None:
        return None

    def events(self, path: str) -> Iterator[bytes]:
        held = b""
        for piece in self.pieces(path, None):
            *complete, held = (held + piece).split(b"\n\n")
            yield from complete
