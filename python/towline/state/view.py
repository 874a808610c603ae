"""Parts of a state that do no I/O, shared by `State` and `AsyncState`: keys, values, buffered transactions, decisions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from ..errors import UsageError
from . import keys
from .backend import KEEP_TTL, Check, Grant, Post, WhenFull, Write
from .codecs import Codec
from .patterns import escaped

V = TypeVar("V")
MAX_PERMITS = 1024
"""Bound of a semaphore, which has one key for each permit."""


class View(Generic[V]):
    """A namespace of a store, and the codec of its values."""

    def __init__(self, codec: Codec[V], prefix: bytes) -> None:
        self._codec = codec
        self._prefix = prefix

    def _key(self, key: str | bytes) -> bytes:
        return keys.stored(self._prefix, key)

    def _name(self, stored: bytes) -> str:
        """The key as the program knows it. Bytes that are not UTF-8 become lone surrogates."""
        return stored[len(self._prefix) :].decode(errors="surrogateescape")

    def _pattern(self, text: str) -> bytes:
        """A pattern of channels; the namespace is taken literally."""
        return escaped(self._prefix) + text.encode()

    def _writes(self, values: Mapping[str, V], ttl: float | None) -> list[Write]:
        positive(ttl)
        return [(self._key(key), self._codec.dumps(value), ttl) for key, value in values.items()]

    def _change(self, function: Callable[[Any], V | None]) -> Callable[[bytes | None], bytes | None]:
        def change(data: bytes | None) -> bytes | None:
            value = function(None if data is None else self._codec.loads(data))
            return None if value is None else self._codec.dumps(value)

        return change

    def _optional(self, data: bytes | None) -> V | None:
        return None if data is None else self._codec.loads(data)

    def _equals(self, expected: V | None) -> Callable[[bytes | None], bool]:
        def is_expected(data: bytes | None) -> bool:
            if data is None or expected is None:
                return data is None and expected is None
            return bool(self._codec.loads(data) == expected)

        return is_expected

    def _slots(self, name: str, limit: int) -> list[bytes]:
        if not 1 <= limit <= MAX_PERMITS:
            raise UsageError(f"a semaphore has 1 to {MAX_PERMITS} permits, not {limit}")
        base = keys.internal(b"sem", self._prefix, name)
        return [base + b"/%d" % number for number in range(limit)]


def positive(ttl: float | None) -> float | None:
    """A time to live. Raises `UsageError` unless it is None or more than 0."""
    if ttl is not None and not ttl > 0:
        raise UsageError(f"a time to live is more than 0 seconds, not {ttl}")
    return ttl


def kept_or(ttl: float | None, keep: bool) -> float | None:
    return KEEP_TTL if keep else positive(ttl)


def check_subscription(
    channels: Sequence[str], patterns: Sequence[str], queue: int, when_full: WhenFull
) -> None:
    """Raise `UsageError` for a subscription that would receive nothing, or has no bound."""
    if not channels and not patterns:
        raise UsageError("subscribe() needs a channel, or patterns=[...]")
    if isinstance(patterns, str):
        raise UsageError("patterns= is a list of patterns, not one text")
    if queue < 1:
        raise UsageError(f"the queue of a subscription holds at least 1 message, not {queue}")
    if when_full not in ("drop_oldest", "disconnect"):
        raise UsageError(f'when_full is "drop_oldest" or "disconnect", not {when_full!r}')


@dataclasses.dataclass(frozen=True)
class Message(Generic[V]):
    """A published message: its channel, without the namespace, and its value."""

    channel: str
    data: V


@dataclasses.dataclass(frozen=True)
class Decision:
    """The result of a rate limit. `if not decision: ...` refuses; `retry_after` is then the wait in seconds."""

    allowed: bool
    remaining: float
    """Requests that would be allowed now: rounded down, for a header."""
    retry_after: float

    def __bool__(self) -> bool:
        return self.allowed


def decision(grant: Grant) -> Decision:
    return Decision(*grant)


class Changes(Generic[V]):
    """The reads and buffered writes of a transaction. What it reads must still be so when it is committed."""

    def __init__(self, view: View[V]) -> None:
        self._view = view
        self._seen: dict[bytes, bytes | None] = {}
        self._writes: dict[bytes, Write] = {}
        self._posts: list[Post] = []

    def set(self, key: str | bytes, value: V, ttl: float | None = None) -> None:
        """Set the value when the transaction is committed."""
        stored = self._view._key(key)
        self._writes[stored] = (stored, self._view._codec.dumps(value), positive(ttl))

    def delete(self, *names: str | bytes) -> None:
        """Remove keys when the transaction is committed."""
        for stored in map(self._view._key, names):
            self._writes[stored] = (stored, None, None)

    def publish(self, channel: str, data: V) -> None:
        """Publish a message when the transaction is committed."""
        self._posts.append((self._view._key(channel), self._view._codec.dumps(data)))

    def _known(self, stored: bytes) -> tuple[bool, bytes | None]:
        """Whether the value is known already, from an own write or an earlier read, and the value."""
        if stored in self._writes:
            return True, self._writes[stored][1]
        return stored in self._seen, self._seen.get(stored)

    def _commit(self) -> tuple[list[Check], list[Write], list[Post]]:
        return list(self._seen.items()), list(self._writes.values()), self._posts
