"""Reading the content of a response: on demand, decoded on the fly, blocking or asynchronous.

```
 unread ── read(n), iter_* ──► streaming ── end, error, close() ──► closed
    └──── read(), aread() ────────────────────────────────────────► content is kept
```

Bytes are fetched from the source only when content is requested, and at most `READ_BYTES` at a time.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from .._either import maybe_await
from .._native import ServerSentEvent
from ..errors import ResponseError, StreamConsumed, TransportError, UsageError
from . import decode
from .body_sources import StreamSource
from .encode import BytesBody
from .headers import Headers
from .options import Progress
from .request import Request

READ_BYTES = 65536


class BodyReader:
    """The reading methods of `Response`. Native code skips `__init__`, so attributes have class defaults."""

    # of the native base class
    headers: Headers
    status_code: int
    _content: bytes | None
    _elapsed: float | None

    _source: Any = None  # of raw bytes; None: the content was complete from the start
    _decoded: decode.DecodedReader | None = None
    # `_source` once reading has started, or a source over content that is kept
    _pulled_from: Any = None
    _raw = False  # iter_raw has started: the rest cannot be decoded any more
    _raw_bytes = 0
    _closed = False
    _progress: Any = None
    _started: float | None = None
    _max_size: int | None = None
    _max_decoded: int | None = None
    _request: Request | None = None

    @property
    def is_closed(self) -> bool:
        """Whether the connection has been released or closed."""
        return self._closed or self._source is None

    @property
    def is_stream_consumed(self) -> bool:
        """Whether reading has started."""
        return self._pulled_from is not None or self._content is not None

    @property
    def num_bytes_downloaded(self) -> int:
        """Bytes of the body received, before decoding."""
        return self._raw_bytes or len(self._content or b"")

    @property
    def buffered(self) -> int:
        """Bytes of the body that have been received and not yet read, before decoding."""
        return 0 if self.is_closed else int(getattr(self._source, "buffered", 0))

    # --- blocking ---

    def read(self, n: int | None = None) -> bytes:
        """Returns the whole content; with `n` the next bytes, at least one and at most `n`, `b""` at the end."""
        if n is not None:
            return self._pull(n)
        if self._content is None:
            self._check_unread()
            try:
                self._content = self._read_all()
            except BaseException as error:
                self._name_request(error)
                raise
            finally:
                self.close()
        return self._content

    def readinto(self, buffer: Any) -> int:
        """Reads the next bytes of the content into a writable buffer. Returns their number, 0 at the end."""
        return _copy_into(self._pull(memoryview(buffer).nbytes), buffer)

    def iter_bytes(self, chunk_size: int | None = None) -> Iterator[bytes]:
        """Iterates over the content, in pieces as they arrive, or of `chunk_size` bytes each (the last may be shorter)."""
        chunks = _Chunks(chunk_size, b"")
        self._restart()
        while piece := self._pull(READ_BYTES):
            yield from chunks.add(piece)
        yield from chunks.end()

    def iter_raw(self, chunk_size: int | None = None) -> Iterator[bytes]:
        """Iterates over the body without decoding its Content-Encoding."""
        self._begin_raw()
        yield from self.iter_bytes(chunk_size)

    def iter_text(self, chunk_size: int | None = None) -> Iterator[str]:
        """Iterates over the content as text, in pieces as they arrive, or of `chunk_size` characters each."""
        chunks = _Chunks(chunk_size, "")
        for text in self._parse_with(decode.TextParser(self._text_encoding())):
            yield from chunks.add(text)
        yield from chunks.end()

    def iter_lines(self, max_bytes: int = decode.MAX_LINE_BYTES) -> Iterator[str]:
        """Iterates over lines without their terminators (CR, LF, CRLF). DecodingError for one of more than `max_bytes` (64 KiB)."""
        return self._parse_with(decode.line_parser(self._text_encoding(), max_bytes))

    def iter_sse(self, max_bytes: int = decode.MAX_EVENT_BYTES) -> Iterator[ServerSentEvent]:
        """Iterates over server-sent events (WHATWG HTML 9.2). DecodingError for one of more than `max_bytes` (10 MiB)."""
        return self._parse_with(decode.sse_parser(max_bytes))

    def iter_ndjson(self, max_bytes: int = decode.MAX_EVENT_BYTES) -> Iterator[Any]:
        """Iterates over lines of JSON, one value each. DecodingError for a line of more than `max_bytes` (10 MiB)."""
        return self._parse_with(decode.ndjson_parser(self._json_loads(), max_bytes, self._text_encoding()))

    def close(self) -> None:
        """Releases the connection, or closes it if too much of the body is unread."""
        if not self.is_closed:
            self._check_blocking()
            self._end()
            self._source.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def _parse_with(self, parser: Any) -> Iterator[Any]:
        self._restart()
        return decode.parse(self._pull, parser)

    def _pull(self, n: int) -> bytes:
        self._begin(n)
        self._check_blocking()
        try:
            piece = self._fetch(n) if self._decoded is None else self._decoded.read(self._fetch, n)
        except BaseException as error:
            self._name_request(error)
            self.close()
            raise
        if not piece:
            self.close()
        return piece

    def _fetch(self, n: int) -> bytes:
        return self._count_received(self._pulled_from.read(n))

    def _read_all(self) -> bytes:
        self._check_blocking()
        if self._progress is None and hasattr(self._source, "read_all"):
            content: bytes = self._source.read_all(max_size=self._max_size, max_decoded=self._max_decoded)
            return content
        return b"".join(self.iter_bytes())

    # --- asynchronous ---

    async def aread(self, n: int | None = None) -> bytes:
        """The asynchronous form of `read`."""
        if n is not None:
            return await self._apull(n)
        if self._content is None:
            self._check_unread()
            try:
                self._content = await self._aread_all()
            except UsageError:
                raise  # another task is reading, and continues
            except BaseException as error:
                self._name_request(error)
                await self.aclose()
                raise
            await self.aclose()
        return self._content

    async def areadinto(self, buffer: Any) -> int:
        """The asynchronous form of `readinto`."""
        return _copy_into(await self._apull(memoryview(buffer).nbytes), buffer)

    async def aiter_bytes(self, chunk_size: int | None = None) -> AsyncIterator[bytes]:
        """The asynchronous form of `iter_bytes`."""
        chunks = _Chunks(chunk_size, b"")
        self._restart()
        while piece := await self._apull(READ_BYTES):
            for chunk in chunks.add(piece):
                yield chunk
        for chunk in chunks.end():
            yield chunk

    async def aiter_raw(self, chunk_size: int | None = None) -> AsyncIterator[bytes]:
        """The asynchronous form of `iter_raw`."""
        self._begin_raw()
        async for chunk in self.aiter_bytes(chunk_size):
            yield chunk

    async def aiter_text(self, chunk_size: int | None = None) -> AsyncIterator[str]:
        """The asynchronous form of `iter_text`."""
        chunks = _Chunks(chunk_size, "")
        async for text in self._aparse_with(decode.TextParser(self._text_encoding())):
            for chunk in chunks.add(text):
                yield chunk
        for chunk in chunks.end():
            yield chunk

    def aiter_lines(self, max_bytes: int = decode.MAX_LINE_BYTES) -> AsyncIterator[str]:
        """The asynchronous form of `iter_lines`."""
        return self._aparse_with(decode.line_parser(self._text_encoding(), max_bytes))

    def aiter_sse(self, max_bytes: int = decode.MAX_EVENT_BYTES) -> AsyncIterator[ServerSentEvent]:
        """The asynchronous form of `iter_sse`."""
        return self._aparse_with(decode.sse_parser(max_bytes))

    def aiter_ndjson(self, max_bytes: int = decode.MAX_EVENT_BYTES) -> AsyncIterator[Any]:
        """The asynchronous form of `iter_ndjson`."""
        return self._aparse_with(decode.ndjson_parser(self._json_loads(), max_bytes, self._text_encoding()))

    async def aclose(self) -> None:
        """The asynchronous form of `close`."""
        if not self.is_closed:
            self._end()
            await maybe_await(self._source.close())

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.aclose()

    def _aparse_with(self, parser: Any) -> AsyncIterator[Any]:
        self._restart()
        return decode.aparse(self._apull, parser)

    async def _apull(self, n: int) -> bytes:
        self._begin(n)
        try:
            piece = await (self._afetch(n) if self._decoded is None else self._decoded.aread(self._afetch, n))
        except UsageError:
            raise  # another task is reading, and continues
        except BaseException as error:
            self._name_request(error)
            await self.aclose()
            raise
        if not piece:
            await self.aclose()
        return piece

    async def _afetch(self, n: int) -> bytes:
        return self._count_received(await maybe_await(self._pulled_from.read(n)))

    async def _aread_all(self) -> bytes:
        if self._progress is None and hasattr(self._source, "read_all"):
            reading = self._source.read_all(max_size=self._max_size, max_decoded=self._max_decoded)
            content: bytes = await maybe_await(reading)
            return content
        return b"".join([chunk async for chunk in self.aiter_bytes()])

    # --- common ---

    def _begin(self, n: int) -> None:
        if n < 1:
            raise UsageError(f"read: expected a size of at least 1, not {n}")
        of_source = self._pulled_from is None or self._pulled_from is self._source
        if of_source and self._content is not None:
            self._pulled_from, self._decoded = StreamSource(BytesBody(self._content)), None
            return  # content that is kept is read like a stream
        if self._pulled_from is not None:
            if of_source and self._closed:
                self._pulled_from, self._decoded = _EMPTY_SOURCE, None
            return
        self._check_unread()
        self._pulled_from = self._source
        coding = None if self._raw else self._coding()
        if coding:
            decoded = decode.DecodedReader(coding, self._max_decoded)
            self._decoded = decoded if decoded.active else None

    def _restart(self) -> None:
        """Allows content that is kept to be iterated again."""
        if self._content is not None:
            self._pulled_from = self._decoded = None

    def _begin_raw(self) -> None:
        if self._pulled_from is self._source is not None and not self._raw:
            raise StreamConsumed("the body is being decoded; use either iter_raw() or the decoding methods")
        if self._content is not None and "content-encoding" in self.headers:
            raise StreamConsumed("the content was read and decoded; call iter_raw() before read()")
        self._raw = True

    def _check_unread(self) -> None:
        if self._pulled_from is not None:
            raise StreamConsumed(
                "the body was streamed and is not kept; call read() first, or keep the pieces"
            )
        if self.is_closed:
            raise StreamConsumed("the response was closed before its body was read; read it inside `with`")

    def _check_blocking(self) -> None:
        if not self._closed and getattr(self._source, "is_async", False) and self._content is None:
            raise UsageError("this response is asynchronous: use aread(), aiter_...() and aclose()")

    def _count_received(self, raw: bytes) -> bytes:
        if not raw or self._pulled_from is not self._source:
            return raw
        self._raw_bytes += len(raw)
        if self._max_size is not None and self._raw_bytes > self._max_size:
            raise ResponseError(
                f"the body is larger than max_response_size ({self._max_size} bytes); raise it if that is expected",
            )
        if self._progress is not None:
            length = self.headers.get("content-length", "")
            self._progress(Progress("download", self._raw_bytes, int(length) if length.isdecimal() else None))
        return raw

    def _name_request(self, error: BaseException) -> None:
        if isinstance(error, (ResponseError, TransportError)) and error.request is None:
            error.request = self._own_request()

    def _end(self) -> None:
        self._closed = True
        if self._elapsed is None and self._started is not None:
            self._elapsed = time.monotonic() - self._started

    def _own_request(self) -> Request | None:
        raise NotImplementedError("a subclass returns its request or None")

    def _coding(self) -> str | None:
        raise NotImplementedError("a subclass returns its Content-Encoding or None")

    def _text_encoding(self) -> str:
        raise NotImplementedError("a subclass returns the encoding of its text")

    def _json_loads(self) -> Any:
        raise NotImplementedError("a subclass returns its JSON parser")


_EMPTY_SOURCE = StreamSource(())


class _Chunks:
    """Passes pieces of bytes or text unchanged, or regroups them into chunks of one size."""

    def __init__(self, size: int | None, nothing: Any) -> None:
        if size is not None and size < 1:
            raise UsageError(f"chunk_size: expected at least 1, not {size}")
        self._size = size
        self._rest = self._nothing = nothing

    def add(self, piece: Any) -> Iterator[Any]:
        if self._size is None:
            yield piece
            return
        rest, start = self._rest + piece if self._rest else piece, 0
        while len(rest) - start >= self._size:
            yield rest[start : start + self._size]
            start += self._size
        self._rest = rest[start:]

    def end(self) -> Iterator[Any]:
        if self._rest:
            yield self._rest
        self._rest = self._nothing


def _copy_into(piece: bytes, buffer: Any) -> int:
    memoryview(buffer).cast("B")[: len(piece)] = piece
    return len(piece)
