"""Forms of curl (-F): multipart/form-data to the byte, but with a boundary that is the same in each run."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import PurePath

from .imported import content_of
from .table import ScenarioError

# curl's own list (lib/mime.c); anything else is application/octet-stream.
TYPES = {
    **{
        "gif": "image/gif",
        "jpg": "image/jpeg",
        "jpeg": "image/jpeg",
        "png": "image/png",
        "svg": "image/svg+xml",
    },
    **{"txt": "text/plain", "htm": "text/html", "html": "text/html", "pdf": "application/pdf"},
    **{"xml": "application/xml"},
}
# A type may have parameters of its own.
PARAMETER = re.compile(
    r";[ \t]*(?:(type)=[ \t]*([^;]*(?:;(?![ \t]*(?:filename|headers|encoder)=)[^;]*)*)"
    r"|(filename)=[ \t]*(\"(?:[^\"\\]|\\.)*\"|[^;]*))",
    re.DOTALL,
)
WORD = re.compile(r"[ \t]*(\"(?:[^\"\\]|\\.)*\"|[^;]*)", re.DOTALL)
ESCAPES = {'"': "%22", "\r": "%0D", "\n": "%0A"}


def form_body(where: str, fields: Sequence[tuple[str, bool]]) -> tuple[bytes, str]:
    """The body and its boundary. Each field is `NAME=VALUE`, and whether the value is plain text."""
    parts = [_part(where, text, is_text) for text, is_text in fields]
    boundary = "-" * 24 + hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    return multipart(parts, boundary), boundary


def multipart(parts: Sequence[bytes], boundary: str) -> bytes:
    """The parts, which have heads, with their delimiters (RFC 2046 5.1.1)."""
    delimiter = f"--{boundary}".encode()
    return b"".join(b"%b\r\n%b\r\n" % (delimiter, part) for part in parts) + delimiter + b"--\r\n"


def form_part(name: str, content: bytes, file_name: str | None, content_type: str | None) -> bytes:
    """A part of a form (RFC 7578), with names as browsers write them."""
    head = f'Content-Disposition: form-data; name="{_escaped(name)}"'
    head += f'; filename="{_escaped(file_name)}"' if file_name is not None else ""
    head += f"\r\nContent-Type: {content_type}" if content_type else ""
    return head.encode("utf-8", "surrogateescape") + b"\r\n\r\n" + content


def _escaped(name: str) -> str:
    return re.sub(r'["\r\n]', lambda found: ESCAPES[found[0]], name)


def _part(where: str, text: str, is_text: bool) -> bytes:
    name, equals, value = text.partition("=")
    wrong = ScenarioError(
        f"{where}: -F {text[:60]!r} is not imported: NAME=TEXT, NAME=@FILE or NAME=<FILE, with type, filename"
    )
    if not equals:
        raise wrong
    if is_text:
        return form_part(name, value.encode("utf-8", "surrogateescape"), None, None)
    sign = value[:1] if value[:1] in ("@", "<") else ""
    word = WORD.match(value, len(sign))
    given: dict[str, str] = {}
    at = word.end() if word else 0
    while found := PARAMETER.match(value, at):
        given[found[1] or found[3]], at = _word(found[2] or found[4] or ""), found.end()
    if (
        word is None
        or at != len(value)
        or value.startswith("(")
        or (sign and "," in re.sub(r'"[^"]*"', "", value))
    ):
        raise wrong
    content = _word(word[1])
    if not sign:
        return form_part(
            name, content.encode("utf-8", "surrogateescape"), given.get("filename"), given.get("type")
        )
    if content == "-":
        raise ScenarioError(f"{where}: what comes from the standard input is not known; name a file")
    path = PurePath(content)
    is_file = sign == "@"
    kind = TYPES.get(path.suffix[1:].lower(), "application/octet-stream") if is_file else None
    file_name = given.get("filename", path.name if is_file else None)
    return form_part(name, content_of(where, content), file_name, given.get("type", kind))


def _word(text: str) -> str:
    """Without quotes and their escapes, or without blanks at the end."""
    if text[:1] == '"' and len(text) > 1:
        return re.sub(r'\\(["\\])', r"\1", text[1:-1])
    return text.rstrip(" \t")
