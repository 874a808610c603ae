"""multipart/form-data (RFC 7578). Bodies are streamed: files are read while they are sent."""

from __future__ import annotations

import io
import mimetypes
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, TypeAlias

from ..errors import InvalidHeader
from .encode import READ_BYTES, Body, form_pairs, known_size, primitive_text, reject_text_mode
from .hints import checked_pairs

# name -> content, or (filename, content[, content type[, headers]]); a list of pairs if names repeat.
FileContent: TypeAlias = "bytes | str | io.IOBase | Any"
FileTypes: TypeAlias = "FileContent | tuple[str | None, FileContent] | tuple[Any, ...]"
RequestFiles: TypeAlias = "Mapping[str, FileTypes] | Iterable[tuple[str, FileTypes]]"

# WHATWG HTML, "multipart form data": only these three are escaped; everything is UTF-8.
_ESCAPES = {ord('"'): "%22", ord("\r"): "%0D", ord("\n"): "%0A"}
_UNSENDABLE = re.compile(r"[\r\n\0]")
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,\-./:=? ]{0,69}[0-9A-Za-z'()+_,\-./:=?]")  # RFC 2046 5.1.1


class MultipartBody(Body):
    """A form with files. Its size is known if every file's size is; it is replayable if every file is seekable."""

    def __init__(self, data: Any, files: RequestFiles, boundary: str | None = None) -> None:
        if boundary is not None and not _BOUNDARY.fullmatch(boundary):
            raise ValueError("boundary: expected 1 to 70 characters of those in RFC 2046 5.1.1")
        self.boundary = boundary or os.urandom(16).hex()
        self.content_type = f"multipart/form-data; boundary={_quote(self.boundary)}"
        pairs = files.items() if isinstance(files, Mapping) else checked_pairs("files", files)
        self._parts = [_field(name, value) for name, value in form_pairs(data)]
        self._parts += [_file(name, value) for name, value in pairs]
        self.replayable = all(part.replayable for part in self._parts)
        delimiters = (len(self.boundary) + 6) * len(self._parts) + len(self.boundary) + 6
        sizes = [part.size for part in self._parts]
        self.size = None if None in sizes else delimiters + sum(size or 0 for size in sizes)

    def __iter__(self) -> Iterator[bytes]:
        delimiter = f"--{self.boundary}\r\n".encode()
        for part in self._parts:
            yield delimiter + part.head
            yield from part
            yield b"\r\n"
        yield f"--{self.boundary}--\r\n".encode()

    @property
    def wire(self) -> Any:
        """A small form in memory is sent in one piece, together with the head."""
        small = self.size is not None and self.size <= READ_BYTES
        if small and all(isinstance(part.content, bytes) for part in self._parts):
            return b"".join(self)
        return iter(self)


class _Part:
    """A part: its head, and its content, which is bytes or a binary file."""

    def __init__(self, head: bytes, content: Any) -> None:
        self.head = head
        self.content = content
        self.replayable = True
        self._length: int | None
        if isinstance(content, bytes):
            self._length = len(content)
        else:
            self._length = self._rewind_and_measure()

    @property
    def size(self) -> int | None:
        return None if self._length is None else len(self.head) + self._length

    def _rewind_and_measure(self) -> int | None:
        """Rewinds the file and returns its size: the whole file is sent, although the program may have just written it."""
        reject_text_mode(self.content)
        try:
            self.content.seek(0)
        except (AttributeError, OSError):
            self.replayable = False
            return None
        size = known_size(self.content)
        return size[1] if size else None

    def __iter__(self) -> Iterator[bytes]:
        if isinstance(self.content, bytes):
            if self.content:
                yield self.content
            return
        if self.replayable:
            self.content.seek(0)
        left = self._length
        while left is None or left > 0:
            piece = self.content.read(READ_BYTES if left is None else min(READ_BYTES, left))
            if not piece:
                return
            piece = piece.encode() if isinstance(piece, str) else piece
            left = None if left is None else left - len(piece)
            yield piece


def boundary_of(content_type: str | None) -> str | None:
    """Returns the boundary in a multipart/form-data Content-Type of the program, if there is one."""
    media, _, parameters = (content_type or "").partition(";")
    if media.strip().lower() != "multipart/form-data":
        return None
    for parameter in parameters.split(";"):
        name, _, value = parameter.strip().partition("=")
        if name.lower() == "boundary":
            return value.strip('"') or None
    return None


def _field(name: Any, value: Any) -> _Part:
    if not isinstance(name, str):
        raise TypeError(f"data: expected str as the name of a field, not {type(name).__name__}: {name!r}")
    if not isinstance(value, (str, bytes, int, float, type(None))):
        raise TypeError(
            f"data: expected str, bytes or a number as the value of {name!r}, not {type(value).__name__}"
        )
    text = primitive_text(value)
    return _Part(_head(name, None, {}), text.encode() if isinstance(text, str) else text)


def _file(name: str, value: FileTypes) -> _Part:
    filename, content, content_type, headers = _unpack_file(value)
    if content_type is None and filename:
        content_type = mimetypes.guess_type(filename)[0] or "application/octet-stream"
    headers = dict(headers)
    if content_type is not None and not any(field.lower() == "content-type" for field in headers):
        headers["Content-Type"] = content_type
    if isinstance(content, str):
        content = content.encode()
    elif isinstance(content, (bytearray, memoryview)):
        content = bytes(content)
    elif not isinstance(content, bytes) and not hasattr(content, "read"):
        raise TypeError(
            f"files: expected bytes, str or a binary file for {name!r}, not {type(content).__name__}"
        )
    return _Part(_head(name, filename, headers), content)


def _unpack_file(value: FileTypes) -> tuple[str | None, Any, str | None, Mapping[str, str]]:
    if not isinstance(value, tuple):
        return PurePath(str(getattr(value, "name", "upload"))).name, value, None, {}
    if not 2 <= len(value) <= 4:
        raise TypeError("files: expected content or (filename, content[, content type[, headers]])")
    filename, content, content_type, headers = (*value, None, None)[:4]
    return filename, content, content_type, headers or {}


def _head(name: str, filename: str | None, headers: Mapping[str, str]) -> bytes:
    disposition = f'Content-Disposition: form-data; name="{name.translate(_ESCAPES)}"'
    if filename:
        disposition += f'; filename="{str(filename).translate(_ESCAPES)}"'
    lines = [disposition]
    for field, value in headers.items():
        if _UNSENDABLE.search(field) or _UNSENDABLE.search(value):
            raise InvalidHeader(f"files: the header {field!r} of a part has a line break or NUL")
        lines.append(f"{field}: {value}")
    return "\r\n".join([*lines, "\r\n"]).encode()


def _quote(boundary: str) -> str:
    """Quotes a boundary unless it is a token (RFC 9110 5.6.6)."""
    return boundary if re.fullmatch(r"[0-9A-Za-z'+_\-.]+", boundary) else f'"{boundary}"'
