"""Decoding response content: content codings, text, lines, server-sent events, NDJSON.

A source is a function `read(n)` that returns at least one byte and at most `n`, and `b""` at the end. It is called only
when the caller wants an item. The parsers do no I/O: one loop, in a synchronous and an asynchronous form, runs them all.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from .._native import Decoder, LineParser, ServerSentEvent, SseParser, load_json
from ..errors import DecodingError

Read: TypeAlias = Callable[[int], bytes]
AsyncRead: TypeAlias = Callable[[int], Awaitable[bytes]]
T = TypeVar("T")

READ_BYTES = 65_536
MAX_LINE_BYTES = 64 * 1024
MAX_EVENT_BYTES = 10 * 1024 * 1024

_CHARSET = re.compile(r""";\s*charset\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s;]*))""", re.IGNORECASE)
_UTF8 = {"utf-8", "ascii"}  # which the native parsers read


class Parser(Protocol[T]):
    """Takes pieces and returns the items that they complete. A violation is raised after the items before it."""

    def feed(self, data: bytes, /) -> list[T]: ...
    def finish(self) -> list[T]: ...


def parse(read: Read, parser: Parser[T], n: int = READ_BYTES) -> Iterator[T]:
    """Yields the items of a source, each before another byte is read."""
    while piece := read(n):
        items = parser.feed(piece)
        if items:
            yield from items
            parser.feed(b"")  # raises a violation after these items
    yield from parser.finish()


async def aparse(read: AsyncRead, parser: Parser[T], n: int = READ_BYTES) -> AsyncIterator[T]:
    """Yields the items of an asynchronous source, each before another byte is read."""
    while piece := await read(n):
        items = parser.feed(piece)
        if items:
            for item in items:
                yield item
            parser.feed(b"")
    for item in parser.finish():
        yield item


class DecodedReader:
    """Decodes the Content-Encoding of a source, and is itself a source: `read(n)` and `aread(n)`."""

    def __init__(self, codings: str | bytes, max_size: int | None = None) -> None:
        self._decoder = Decoder(codings.encode("latin-1") if isinstance(codings, str) else codings, max_size)
        self._ended = False

    @property
    def active(self) -> bool:
        """Whether there is a coding to decode; if not, the source can be read directly."""
        return self._decoder.active

    def read(self, source: Read, n: int) -> bytes:
        while not (piece := self._decoder.read(n)) and not self._ended:
            self._take(source(READ_BYTES))
        return piece

    async def aread(self, source: AsyncRead, n: int) -> bytes:
        while not (piece := self._decoder.read(n)) and not self._ended:
            self._take(await source(READ_BYTES))
        return piece

    def _take(self, data: bytes) -> None:
        if data:
            self._decoder.feed(data)
        else:
            self._decoder.finish()
            self._ended = True


class TextParser:
    """Decodes text piece by piece. Malformed bytes become U+FFFD; an incomplete character is kept for the next piece."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")

    def feed(self, data: bytes, /) -> list[str]:
        text = self._decoder.decode(data)
        return [text] if text else []

    def finish(self) -> list[str]:
        text = self._decoder.decode(b"", True)
        return [text] if text else []


class Transcoder(Generic[T]):
    """Converts another charset to UTF-8 for a parser."""

    def __init__(self, encoding: str, parser: Parser[T]) -> None:
        self._text = TextParser(encoding)
        self._parser = parser

    def feed(self, data: bytes, /) -> list[T]:
        return self._parser.feed("".join(self._text.feed(data)).encode("utf-8", "replace"))

    def finish(self) -> list[T]:
        last = self._parser.feed("".join(self._text.finish()).encode("utf-8", "replace"))
        return last + self._parser.finish()


class NdjsonParser:
    """Parses a JSON value from each line that is not empty. A malformed line raises after the values before it."""

    def __init__(self, lines: Parser[str], loads: Callable[[str], Any] = load_json) -> None:
        self._lines = lines
        self._loads = loads
        self._failure: DecodingError | None = None
        self._number = 0

    def feed(self, data: bytes, /) -> list[Any]:
        if self._failure is not None:
            raise self._failure
        return self._values(self._lines.feed(data))

    def finish(self) -> list[Any]:
        values = self._values(self._lines.finish())
        if self._failure is not None and not values:
            raise self._failure
        return values

    def _values(self, lines: list[str]) -> list[Any]:
        values: list[Any] = []
        for line in lines:
            self._number += 1
            if self._number == 1:
                line = line.removeprefix("\ufeff")  # a parser may ignore it (RFC 8259 8.1)
            if not line or line.isspace():
                continue
            try:
                values.append(self._loads(line))
            except ValueError as error:
                self._failure = DecodingError(f"line {self._number} is not JSON: {error}")
                self._failure.__cause__ = error
                if not values:
                    raise self._failure from error
                break
        return values


def named_charset(content_type: str | None) -> str | None:
    """Returns the charset of a Content-Type as it is written, without quotation marks."""
    found = _CHARSET.search(content_type or "")
    return next((name for name in found.groups() if name), None) if found else None


def charset_of(content_type: str | None) -> str | None:
    """Returns the charset of a Content-Type, if Python has it as a text encoding."""
    return known_encoding(named_charset(content_type) or "")


def known_encoding(name: str) -> str | None:
    """Returns Python's name of a text encoding; None for other names and codecs such as `base64`."""
    try:
        info = codecs.lookup(name.strip())
    except (LookupError, ValueError):
        return None
    return info.name if getattr(info, "_is_text_encoding", True) else None


def decode_text(data: bytes, encoding: str = "utf-8") -> str:
    """Decodes the whole content, with the rules of TextParser."""
    return data.decode(encoding, "replace")


def line_parser(encoding: str = "utf-8", max_bytes: int = MAX_LINE_BYTES) -> Parser[str]:
    """Returns a parser of lines that end in CR, LF or CRLF. `max_bytes` counts UTF-8."""
    lines = LineParser(max_bytes)
    return lines if (known_encoding(encoding) or encoding) in _UTF8 else Transcoder(encoding, lines)


def sse_parser(max_bytes: int = MAX_EVENT_BYTES) -> Parser[ServerSentEvent]:
    """Returns a parser of server-sent events, which are UTF-8 regardless of the charset."""
    return SseParser(max_bytes)


def ndjson_parser(
    loads: Callable[[str], Any] | None = None, max_bytes: int = MAX_EVENT_BYTES, encoding: str = "utf-8"
) -> Parser[Any]:
    """Returns a parser of newline-delimited JSON. The limit is that of an event."""
    return NdjsonParser(line_parser(encoding, max_bytes), loads or load_json)
