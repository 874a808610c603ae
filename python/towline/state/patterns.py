"""Patterns of channels and keys, as in Redis: `*`, `?`, `[abc]`, `[^a-c]`, and a backslash before a byte that means itself."""

from __future__ import annotations

import re
from collections.abc import Callable


def escaped(text: bytes) -> bytes:
    """The text as a pattern that matches only itself."""
    return b"".join(b"\\" + bytes([byte]) if byte in b"*?[]\\" else bytes([byte]) for byte in text)


def matcher(pattern: bytes) -> Callable[[bytes], object]:
    """A function that is true for the channels that match."""
    parts, at = [], 0
    while at < len(pattern):
        byte = pattern[at : at + 1]
        if byte == b"*":
            parts.append(b".*")
        elif byte == b"?":
            parts.append(b".")
        elif byte == b"[":
            part, at = _byte_class(pattern, at + 1)
            parts.append(part)
        elif byte == b"\\" and at + 1 < len(pattern):
            at += 1
            parts.append(re.escape(pattern[at : at + 1]))
        else:
            parts.append(re.escape(byte))
        at += 1
    return re.compile(b"".join(parts), re.DOTALL).fullmatch


def _byte_class(pattern: bytes, at: int) -> tuple[bytes, int]:
    """The expression for `[...]`, and the position of its end. Without a closing bracket it goes to the end."""
    negated = pattern[at : at + 1] == b"^"
    at += negated
    allowed: set[int] = set()
    while at < len(pattern) and pattern[at : at + 1] != b"]":
        if pattern[at : at + 1] == b"\\" and at + 1 < len(pattern):
            at += 1
            allowed.add(pattern[at])
        elif pattern[at + 1 : at + 2] == b"-" and at + 2 < len(pattern):
            low, high = sorted((pattern[at], pattern[at + 2]))
            allowed.update(range(low, high + 1))
            at += 2
        else:
            allowed.add(pattern[at])
        at += 1
    chosen = set(range(256)) - allowed if negated else allowed
    return (b"[" + b"".join(b"\\x%02x" % byte for byte in sorted(chosen)) + b"]" if chosen else b"(?!)"), at
