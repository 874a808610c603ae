"""Bodies that come in pieces, and the sources from which a `Response` pulls.

A stream is what users and transports hand over: something to iterate. A source is what a response reads:
`read(n)` gives at least one byte and at most `n`, and `b""` at the end, as the native replies do.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

from ..errors import UsageError
from .encode import AsyncIterableBody


class SyncByteStream:
    """A body in pieces for `Client`: iterate it, then `close()`."""

    def __iter__(self) -> Iterator[bytes]:
        raise NotImplementedError("a subclass of SyncByteStream has __iter__: the pieces of its body")

    def close(self) -> None:
        """Gives back what the stream holds."""


class AsyncByteStream:
    """A body in pieces for `AsyncClient`: iterate it, then `await aclose()`."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        raise NotImplementedError("a subclass of AsyncByteStream has __aiter__: the pieces of its body")

    async def aclose(self) -> None:
        """Gives back what the stream holds."""


class StreamSource:
    """A source over a synchronous stream."""

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
        # a generator that is only half consumed runs its own clean-up now, not when it is collected
        for opened in (self._pieces, self.stream):
            if close := getattr(opened, "close", None):
                close()


class AsyncStreamSource:
    """A source over an asynchronous stream."""

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
    """A source over any stream; one of both kinds counts as synchronous and is read by both faces."""
    if isinstance(stream, AsyncIterableBody):
        return AsyncStreamSource(stream)
    if hasattr(stream, "__iter__"):
        return StreamSource(stream)
    if hasattr(stream, "__aiter__"):
        return AsyncStreamSource(stream)
    raise UsageError(f"expected an iterable or asynchronous iterable of bytes, not {type(stream).__name__}")


async def awaited(value: Any) -> Any:
    """The value, awaited where that is asked for: hooks and sources may be of either kind."""
    return await value if inspect.isawaitable(value) else value


def _cut(data: bytes, n: int) -> tuple[bytes, bytes]:
    return (data, b"") if n < 0 or n >= len(data) else (data[:n], data[n:])
