"""Bodies of HAR files. Browsers save text, decoded or as Latin-1, or only the parameters of a form, or nothing.

The recorded Content-Length decides which bytes were sent.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from .curl_form import form_part, multipart

FORM = "application/x-www-form-urlencoded"
BOUNDARY = re.compile(r";[ \t]*boundary=(?:\"([^\"\r\n]+)\"|([^\s;\"]+))", re.IGNORECASE)
ENCODED = re.compile(r"(?:[A-Za-z0-9*._~+!'()-]|%[0-9A-Fa-f]{2})*")
# Placeholder that devtools write for the content of a file.
PLACEHOLDERS = (None, "", "(binary)")


class LostBody(Exception):
    """The file does not have the bytes that were sent."""


@dataclass(frozen=True)
class RecordedBody:
    content: bytes | None
    content_type: str | None = None
    """Replaces the recorded header."""
    recorded: int | None = None
    """The Content-Length that was sent."""


def body_of(request: Any, fields: Sequence[tuple[str, str]]) -> RecordedBody:
    """Raises `LostBody`, and what Python raises for an entry of the wrong form."""
    headers = {name.lower(): value for name, value in fields}
    data = request.get("postData") or {}
    text, params = data.get("text"), data.get("params") or []
    length = headers.get("content-length", "").strip()
    recorded = int(length) if re.fullmatch(r"[0-9]{1,15}", length) else None
    given = headers.get("content-type") or data.get("mimeType") or ""
    # The header was not recorded: the type is that of the data.
    missing = given if given and "content-type" not in headers else None
    if text:
        return RecordedBody(_of_text(text, data, recorded, given), missing, recorded)
    if params and given.lower().startswith("multipart/"):
        return _of_parts(params, recorded, given, missing)
    if params:
        return RecordedBody(_of_form(params, recorded), missing or (None if given else FORM), recorded)
    size = request.get("bodySize", -1)
    if recorded or (recorded is None and isinstance(size, int) and size > 0):
        raise LostBody(f"{recorded or size:,} bytes")
    # Browsers send a length of 0 with these (Fetch, 4.5).
    is_empty = recorded == 0 or request["method"] in ("POST", "PUT")
    return RecordedBody(b"" if is_empty else None)


def _of_text(text: str, data: Any, recorded: int | None, content_type: str) -> bytes:
    if data.get("encoding") == "base64":
        return base64.b64decode(text, validate=True)
    try:
        plain = text.encode()
    except UnicodeEncodeError:
        raise LostBody("half a character") from None
    if recorded is None or len(plain) == recorded:
        return plain
    # Bytes are saved as the characters of the same numbers.
    if len(text) == recorded and max(text) <= "\xff":
        return text.encode("latin-1")
    # Without the contents of files, or with other characters in place of bytes.
    if content_type.lower().startswith("multipart/") or "\ufffd" in text:
        raise LostBody(f"{recorded:,} bytes, of which {len(plain):,} are there")
    return plain


def _of_form(params: Any, recorded: int | None) -> bytes:
    """Browsers differ in whether they save names and values decoded."""
    pairs = [(one["name"], one.get("value") or "") for one in params]
    decoded, as_saved = urlencode(pairs), "&".join(f"{name}={value}" for name, value in pairs)
    candidates = [decoded, as_saved, urlencode(pairs, quote_via=quote)]
    words = [word for pair in pairs for word in pair]
    if all(ENCODED.fullmatch(word) for word in words) and any("%" in word for word in words):
        candidates.insert(0, as_saved)
    fitting = [one for one in candidates if len(one.encode()) == recorded]
    return (fitting or candidates)[0].encode()


def _of_parts(params: Any, recorded: int | None, content_type: str, missing: str | None) -> RecordedBody:
    parts = []
    for one in params:
        value = one.get("value")
        is_file = one.get("fileName") is not None or one.get("contentType") is not None
        if value in PLACEHOLDERS and is_file and recorded is None:
            raise LostBody(f"the content of {one.get('fileName') or one['name']!r}")
        parts.append(
            form_part(one["name"], (value or "").encode(), one.get("fileName"), one.get("contentType"))
        )
    found = BOUNDARY.search(content_type)
    boundary = (found[1] or found[2]) if found else "----towline"
    body = multipart(parts, boundary)
    if recorded is not None and len(body) != recorded:
        raise LostBody(f"{recorded:,} bytes, of which {len(body):,} are there")
    return RecordedBody(body, missing if found else f"{content_type}; boundary={boundary}", recorded)
