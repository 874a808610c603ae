"""Body streams, and the sources that a `Response` reads from.

A stream is an iterable of bytes, as programs and transports pass it. A source has `read(n)`, which returns at least one
byte and at most `n`, and `b""` at the end, as native replies do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from ..errors import UsageError
from .encode import AsyncIterableBody


class SyncByteStream:
    """A response body for `Client`: iterated, then closed with `close()`."""

    def __iter__(self) -> Iterator[bytes]:
        raise NotImplementedError(
            "a subclass of SyncByteStream defines __iter__, which yields the pieces of the body"
        )

    def close(self) -> None:
        """Releases the resources of the stream."""


class AsyncByteStream:
    """A response body for `AsyncClient`: iterated, then closed with `await aclose()`."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        raise NotImplementedError(
            "a subclass of AsyncByteStream defines __aiter__, which yields the pieces of the body"
        )

    async def aclose(self) -> None:
        """Releases the resources of the stream."""


class StreamSource:
    """A source that reads a synchronous stream."""

    is_async = False

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self._pieces: Iterator[bytes] | None = None
        self._rest = b""

    @property
    def buffered(self) -> int:
        return len(self._rest)

    def read(self, n: int = -1) -> bytes:
        if self._pieces is None:
            self._pieces = iter(self.stream)
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._rest = bytes(piece)
        piece, self._rest = _cut(self._rest, n)
        return piece

    def close(self) -> None:
        # closing a partly consumed generator runs its `finally` blocks now, not when it is collected
        for opened in (self._pieces, self.stream):
            if close := getattr(opened, "close", None):
                close()


class AsyncStreamSource:
    """A source that reads an asynchronous stream."""

    is_async = True

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self._pieces: AsyncIterator[bytes] | None = None
        self._rest = b""

    @property
    def buffered(self) -> int:
        return len(self._rest)

    async def read(self, n: int = -1) -> bytes:
        if self._pieces is None:
            self._pieces = self.stream.__aiter__()
        while not self._rest:
            try:
                self._rest = bytes(await self._pieces.__anext__())
            except StopAsyncIteration:
                return b""
        piece, self._rest = _cut(self._rest, n)
        return piece

    async def close(self) -> None:
        for opened in (self._pieces, self.stream):
            if close := getattr(opened, "aclose", None):
                await close()


def source_of(stream: Any) -> StreamSource | AsyncStreamSource:
    """Returns a source over any stream. A stream of both kinds counts as synchronous, which both clients can read."""
    if isinstance(stream, AsyncIterableBody):
        return AsyncStreamSource(stream)
    if hasattr(stream, "__iter__"):
        return StreamSource(stream)
    if hasattr(stream, "__aiter__"):
        return AsyncStreamSource(stream)
    raise UsageError(f"expected an iterable or asynchronous iterable of bytes, not {type(stream).__name__}")


def _cut(data: bytes, n: int) -> tuple[bytes, bytes]:
    return (data, b"") if n < 0 or n >= len(data) else (data[:n], data[n:])
