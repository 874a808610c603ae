"""Keys in the store: a namespace and a name, or an internal key of an operation of the state."""

from __future__ import annotations

from ..errors import UsageError
from .backend import INTERNAL, MAX_KEY_BYTES

SEPARATOR = b":"
EMPTY = "a key has at least one byte"


def stored(prefix: bytes, key: str | bytes) -> bytes:
    """The key in the store. Raises `UsageError` for one that is empty, too long, or begins with a zero byte."""
    name = key.encode() if isinstance(key, str) else bytes(key)
    full = prefix + name
    if not name or len(full) > MAX_KEY_BYTES or full[:1] == INTERNAL:
        raise UsageError(_fault(name, full))
    return full


def _fault(name: bytes, full: bytes) -> str:
    if not name:
        return EMPTY
    if full[:1] == INTERNAL:
        return "a key must not begin with a zero byte"
    return f"a key with its namespace has at most {MAX_KEY_BYTES} bytes, this one has {len(full)}"


def internal(kind: bytes, prefix: bytes, name: str | bytes) -> bytes:
    """The key of a lock, a limit or a once-only operation, apart from all keys of values."""
    full = INTERNAL + kind + SEPARATOR + stored(prefix, name)
    if len(full) > MAX_KEY_BYTES:
        raise UsageError(f"the name {name!r} is too long: its key has {len(full)} bytes of {MAX_KEY_BYTES}")
    return full


def nested(prefix: bytes, namespace: str) -> bytes:
    """The prefix of a namespace in another. Raises `UsageError` for an empty name or one with a colon."""
    name = namespace.encode()
    if not name or SEPARATOR in name or name[:1] == INTERNAL or len(prefix) + len(name) > MAX_KEY_BYTES // 2:
        raise UsageError(f"a namespace is a short name without a colon, not {namespace!r}")
    return prefix + name + SEPARATOR
