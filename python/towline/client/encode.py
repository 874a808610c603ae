"""Encoding request content: arguments become header fields and a body, without copying data.

`encode_request` takes httpx's arguments with httpx's precedence: content, files (with data), data, json.
"""

from __future__ import annotations

import io
import os
import stat
import warnings
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from typing import Any, BinaryIO, TypeAlias
from urllib.parse import urlencode

from .._native import dump_json
from ..errors import StreamConsumed
from .query import PrimitiveData

RequestContent: TypeAlias = (
    "str | bytes | bytearray | memoryview | BinaryIO | Iterable[bytes] | AsyncIterable[bytes]"
)
RequestData: TypeAlias = "Mapping[str, Any] | Iterable[tuple[str, Any]]"
Fields: TypeAlias = "list[tuple[str, str]]"

READ_BYTES = 65_536


class Body:
    """The content of a request.

    `size` is its length in bytes, the value of Content-Length; None if unknown. `replayable`: it can be iterated again
    from its start, for a redirect, a retry or an authentication challenge. Iterating yields bytes or memoryviews, of at
    most 64 KiB each unless the body is in memory already.
    """

    size: int | None = None
    replayable: bool = False

    def __iter__(self) -> Iterator[bytes]:
        raise TypeError("an asynchronous iterable cannot be sent by a synchronous client")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece

    @property
    def wire(self) -> Any:
        """The body argument of a native `exchange`: None, bytes, a binary file, an iterator or an async iterator."""
        return iter(self)


class BytesBody(Body):
    """Content in memory."""

    replayable = True

    def __init__(self, data: bytes = b"") -> None:
        self.data = data
        self.size = len(data)

    def __iter__(self) -> Iterator[bytes]:
        if self.data:
            yield self.data

    @property
    def wire(self) -> bytes | None:
        return self.data or None


class FileBody(Body):
    """A binary file, from its position to its end. The engine sends regular files with sendfile."""

    replayable = True

    def __init__(self, file: Any, start: int, size: int) -> None:
        self.file = file
        self.start = start
        self.size = size
        self._size = size

    def __iter__(self) -> Iterator[bytes]:
        self.file.seek(self.start)
        return _read_limited(self.file, self._size)

    @property
    def wire(self) -> Any:
        self.file.seek(self.start)
        return self.file


class IterableBody(Body):
    """The pieces of an iterable, or of a file of unknown size. An iterator can be sent once."""

    def __init__(self, pieces: Iterable[Any], size: int | None = None) -> None:
        self._pieces = pieces
        self.size = size
        self.replayable = not isinstance(pieces, Iterator) and not hasattr(pieces, "read")
        self._started = False

    def __iter__(self) -> Iterator[bytes]:
        _check_single_use(self)
        if isinstance(self._pieces, Generator):
            return self._generate()
        pieces = _read_pieces(self._pieces) if hasattr(self._pieces, "read") else self._pieces
        return map(_as_bytes, pieces)

    def _generate(self) -> Iterator[bytes]:
        try:
            yield from map(_as_bytes, self._pieces)
        finally:
            self.close()

    def close(self) -> None:
        """Closes a generator, so that it cleans up now and not when it is collected."""
        if isinstance(self._pieces, Generator):
            self._pieces.close()


class AsyncIterableBody(Body):
    """The pieces of an asynchronous iterable. An iterator can be sent once."""

    def __init__(self, pieces: AsyncIterable[Any], size: int | None = None) -> None:
        self._pieces = pieces
        self.size = size
        self.replayable = not isinstance(pieces, AsyncIterator)
        self._started = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        _check_single_use(self)
        try:
            async for piece in self._pieces:
                yield _as_bytes(piece)
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """The asynchronous form of `IterableBody.close`."""
        if isinstance(self._pieces, AsyncGenerator):
            await self._pieces.aclose()

    @property
    def wire(self) -> AsyncIterator[bytes]:
        return aiter_of(self)


def aiter_of(body: Body) -> AsyncIterator[bytes]:
    """`aiter()`, typed for a method that is an async generator."""
    return body.__aiter__()


def encode_request(
    content: RequestContent | None = None,
    data: RequestData | None = None,
    files: Any = None,
    json: Any = None,
    *,
    boundary: str | None = None,
    json_dumps: Callable[[Any], str | bytes] | None = None,
) -> tuple[Fields, Body]:
    """Returns the header fields that describe the content, its framing included, and the body."""
    if data is not None and not isinstance(data, Mapping) and not _is_pairs(data):
        warnings.warn("use content= to send bytes, text or a stream", DeprecationWarning, stacklevel=3)
        stream: Any = data
        content, data = (stream if content is None else content), None
    if content is not None:
        return encode_content(content)
    if files:
        from .multipart import MultipartBody

        form = MultipartBody(data or {}, files, boundary)
        return [*_framing(form), ("Content-Type", form.content_type)], form
    if data:
        return encode_urlencoded(data)
    if json is not None:
        return encode_json(json, json_dumps)
    return [], BytesBody()


def encode_content(content: RequestContent) -> tuple[Fields, Body]:
    """Encodes bytes, text and files with their size, everything else chunked."""
    body = _body_of(content)
    return (_framing(body) if body.size != 0 else []), body


def encode_urlencoded(data: RequestData) -> tuple[Fields, Body]:
    """Encodes as application/x-www-form-urlencoded. A list as value repeats its name."""
    pairs = [(name, primitive_text(value)) for name, value in form_pairs(data)]
    return _with_content_type(urlencode(pairs).encode("ascii"), "application/x-www-form-urlencoded")


def encode_json(value: Any, dumps: Callable[[Any], str | bytes] | None = None) -> tuple[Fields, Body]:
    """Encodes compact JSON in UTF-8. NaN and infinities raise ValueError (RFC 8259 6)."""
    encoded = (dumps or dump_json)(value)
    return _with_content_type(
        encoded.encode() if isinstance(encoded, str) else bytes(encoded), "application/json"
    )


def encode_response(
    content: RequestContent | None = None, text: str | None = None, html: str | None = None, json: Any = None
) -> tuple[Fields, Body]:
    """Encodes the body of a response of a mock or a test."""
    if content is not None:
        return encode_content(content)
    if text is not None:
        return _with_content_type(text.encode(), "text/plain; charset=utf-8")
    if html is not None:
        return _with_content_type(html.encode(), "text/html; charset=utf-8")
    return encode_json(json) if json is not None else ([], BytesBody())


def form_pairs(data: RequestData) -> Iterator[tuple[str, Any]]:
    """Yields the pairs of a form. A list or tuple as value yields several."""
    for name, value in data.items() if isinstance(data, Mapping) else data:
        if isinstance(value, (list, tuple)):
            yield from ((name, part) for part in value)
        else:
            yield name, value


def primitive_text(value: PrimitiveData | bytes) -> str | bytes:
    """Converts the value of a form field: JSON's words for booleans, empty for None, bytes unchanged."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return ""
    return value if isinstance(value, (str, bytes)) else str(value)


def known_size(file: Any) -> tuple[int, int] | None:
    """Returns (position, bytes from there to the end) of a binary file without reading it; None if that is unknown."""
    reject_text_mode(file)
    try:
        position = file.tell()
        status = os.fstat(file.fileno())
        if stat.S_ISREG(status.st_mode) and not hasattr(file, "getvalue"):
            _flush(file)
            return position, max(os.fstat(file.fileno()).st_size - position, 0)
    except (AttributeError, OSError, ValueError):
        pass
    try:
        position = file.tell()
        end = file.seek(0, os.SEEK_END)
        file.seek(position)
    except (AttributeError, OSError, ValueError):
        return None
    return (position, max(end - position, 0)) if isinstance(end, int) else None


def reject_text_mode(file: Any) -> None:
    if isinstance(file, io.TextIOBase):
        raise TypeError("a file to send must be opened in binary mode")


def _body_of(content: Any) -> Body:
    if isinstance(content, str):
        return BytesBody(content.encode())
    if isinstance(content, bytes):
        return BytesBody(content)
    if isinstance(content, (bytearray, memoryview)):
        return BytesBody(bytes(content))  # a copy: the program may change the buffer before it is sent
    if isinstance(content, Body):
        return content
    if isinstance(content, AsyncIterable):
        return AsyncIterableBody(_aread_pieces(content) if hasattr(content, "aread") else content)
    if hasattr(content, "read"):
        size = known_size(content)
        return IterableBody(content) if size is None else FileBody(content, *size)
    # A dict is iterable, but data= or json= was meant.
    if isinstance(content, Iterable) and not isinstance(content, Mapping):
        return IterableBody(content)
    raise TypeError(
        f"content: expected bytes, str, a file or an iterable, not {type(content).__name__}; see data= and json="
    )


def _is_pairs(data: Any) -> bool:
    return isinstance(data, (list, tuple)) and all(isinstance(pair, (list, tuple)) for pair in data)


def _framing(body: Body) -> Fields:
    if body.size is None:
        return [("Transfer-Encoding", "chunked")]
    return [("Content-Length", str(body.size))]


def _with_content_type(data: bytes, content_type: str) -> tuple[Fields, Body]:
    body = BytesBody(data)
    return [*_framing(body), ("Content-Type", content_type)], body


def _check_single_use(body: IterableBody | AsyncIterableBody) -> None:
    if body._started and not body.replayable:
        raise StreamConsumed("the content of the request is an iterator that has been sent already")
    body._started = True


def _flush(file: Any) -> None:
    """Flushes a file that the program has written to, so that its size is right."""
    if getattr(file, "writable", lambda: False)():
        file.flush()


def _read_pieces(file: Any) -> Iterator[Any]:
    while piece := file.read(READ_BYTES):
        yield piece


def _read_limited(file: Any, size: int) -> Iterator[bytes]:
    """Reads at most `size` bytes: the file may have grown since its Content-Length was determined."""
    left = size
    while left and (piece := file.read(min(READ_BYTES, left))):
        left -= len(piece)
        yield piece


async def _aread_pieces(file: Any) -> AsyncIterator[Any]:
    while piece := await file.aread(READ_BYTES):
        yield piece


def _as_bytes(piece: Any) -> bytes:
    if isinstance(piece, (bytes, bytearray, memoryview)):
        return piece  # type: ignore[return-value]  # the engine sends any buffer
    raise TypeError(f"content must yield bytes, not {type(piece).__name__}")
