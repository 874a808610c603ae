"""The primitives that a store provides: bytes by key, one atomic operation on several keys, and channels.

Codecs, namespaces, transactions, locks, semaphores and once-only operations are built on these, once for all stores
(`operations.py`). A store is a `Backend`; its form for an event loop, an `AsyncBackend`, has the same methods.

- A key is at most `MAX_KEY_BYTES` long. One that begins with a zero byte is internal (`keys.py`): it is never evicted,
  and `scan` of an empty prefix leaves it out.
- A time to live (`ttl`) is in seconds: None is "for ever". `KEEP_TTL` in a `Write` keeps that of the old value.
- Every method is atomic: no other process sees a part of it. A method that returns has made its change for good, except
  for what the store's documentation says about power cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from ..errors import StateClosed

MAX_KEY_BYTES = 480
"""Bound of a key with its namespace. LMDB stores 511 bytes; the index of expiry needs 8 of them."""
KEEP_TTL = -1.0
INTERNAL = b"\0"
"""First byte of a key that only the state's own operations use."""

Check: TypeAlias = tuple[bytes, bytes | None]
"""A key and the value that it must have: None, if it must be absent or expired."""
Write: TypeAlias = tuple[bytes, bytes | None, float | None]
"""A key, its new value, and its time to live. None as value removes the key; a missing one is no error."""
Post: TypeAlias = tuple[bytes, bytes]
"""A channel and a message."""
Grant: TypeAlias = tuple[bool, float, float]
"""The decision of a rate limit: allowed, what is left, and the seconds until the same request would be allowed."""
WhenFull = Literal["drop_oldest", "disconnect"]


def closed() -> StateClosed:
    """The error of every call after `close`."""
    return StateClosed("the state is closed")


class BackendSubscription(Protocol):
    """Messages of some channels, in a queue of bounded length."""

    @property
    def dropped(self) -> int:
        """Number of messages that were lost because the queue was full, or because the reader fell behind the store."""

    def receive(self, timeout: float | None = None) -> Post | None:
        """Wait for the next message; None when `timeout` seconds have passed, or after `close`.

        Raises `SlowSubscriber` once messages were lost and the rule is "disconnect".
        """

    def close(self) -> None:
        """End the subscription and wake its reader. A second call does nothing."""


class Backend(Protocol):
    """A store for programs that block. Its methods may be called by several threads."""

    @property
    def name(self) -> str:
        """A short name for messages: "embedded", "redis"."""

    def get(self, key: bytes, /) -> bytes | None:
        """The value. Raises `UsageError` for a key that `keys.stored` refuses: `State.get` leaves the check to the store."""

    def get_many(self, keys: Sequence[bytes], /) -> list[bytes | None]:
        """The values in the order of the keys, from one snapshot. The only way to read internal keys."""

    def set(self, key: bytes, value: bytes, ttl: float | None = None, /) -> None:
        """Replace the value and its time to live. Raises `StateFull`."""

    def delete(self, keys: Sequence[bytes], /) -> int:
        """Remove keys; returns how many existed."""

    def apply(self, checks: Sequence[Check], writes: Sequence[Write], posts: Sequence[Post] = (), /) -> bool:
        """Make all writes and publish all posts if every check holds; otherwise change nothing and return False.

        Raises `StateFull`, in which case nothing has changed either.
        """

    def add(self, key: bytes, delta: int, ttl: float | None = None, /) -> int:
        """Add to a decimal integer and return the sum. A missing key counts as 0, and gets `ttl`; another keeps its own.

        Raises `StateError` if the value is not a decimal integer, or if the sum does not fit 64 bits.
        """

    def ttl(self, key: bytes, /) -> float | None:
        """Seconds until the key expires: infinity without a time to live, None if there is no such key."""

    def expire(self, key: bytes, ttl: float | None, /) -> bool:
        """Set the time to live, or remove it; False if there is no such key."""

    def scan(
        self, prefix: bytes, cursor: bytes | None, limit: int, values: bool, /
    ) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Some pairs whose key has the prefix, about `limit`, and the cursor for the next call: None at the end.

        Without `values` each value is empty. A key that exists during the whole scan is returned at least once.
        """

    def take_tokens(self, key: bytes, capacity: float, per_second: float, cost: float, /) -> Grant:
        """Take `cost` from a token bucket, which is full at first and gains `per_second` up to `capacity`.

        Nothing is taken if there is not enough. The clock is that of the store, not of the caller.
        """

    def take_window(self, key: bytes, limit: int, seconds: float, cost: int, /) -> Grant:
        """Count `cost` events if the sliding window of `seconds` then has at most `limit`.

        The window is weighted from two fixed ones: the events of the previous, times the part of it that the
        sliding window still covers, and those of the current.
        """

    def publish(self, channel: bytes, message: bytes, /) -> None: ...

    def subscribe(
        self, channels: Sequence[bytes], patterns: Sequence[bytes], queue: int, when_full: WhenFull, /
    ) -> BackendSubscription:
        """Receive what is published from now on to the channels, and to those that match a pattern.

        A pattern has `*` (any text), `?` (one byte), `[abc]`, `[a-c]`, `[^a]`; a backslash takes the next byte as it is.
        A message is received once, however many channels and patterns match. `queue`: messages that may wait.
        """

    def info(self) -> dict[str, Any]:
        """Figures for people: at least `backend` and `keys`; for the embedded store also sizes and processes."""

    def close(self) -> None:
        """Release what this process holds. The values stay."""


PRIMITIVES = (
    *("get", "get_many", "set", "delete", "apply", "add", "ttl", "expire", "scan", "take_tokens"),
    *("take_window", "publish"),
)


class Primitives:
    """The methods of `Backend`, or of `AsyncBackend`, that are one call of the store each: attributes of an object."""

    get: Any
    get_many: Any
    set: Any
    delete: Any
    apply: Any
    add: Any
    ttl: Any
    expire: Any
    scan: Any
    take_tokens: Any
    take_window: Any
    publish: Any

    def _set_primitives(self, function: Callable[[str], Callable[..., Any]]) -> None:
        """`function` returns that of a name."""
        for name in PRIMITIVES:
            setattr(self, name, function(name))


class AsyncBackendSubscription(Protocol):
    """The form of `BackendSubscription` for an event loop."""

    @property
    def dropped(self) -> int: ...

    async def receive(self) -> Post | None:
        """The next message; None after `close`. Raises `SlowSubscriber`. May be cancelled without loss."""

    async def close(self) -> None: ...


class AsyncBackend(Protocol):
    """A store for an event loop: calls that wait, or handle many bytes or keys, run elsewhere."""

    @property
    def name(self) -> str: ...
    async def get(self, key: bytes, /) -> bytes | None: ...
    async def get_many(self, keys: Sequence[bytes], /) -> list[bytes | None]: ...
    async def set(self, key: bytes, value: bytes, ttl: float | None = None, /) -> None: ...
    async def delete(self, keys: Sequence[bytes], /) -> int: ...
    async def apply(
        self, checks: Sequence[Check], writes: Sequence[Write], posts: Sequence[Post] = (), /
    ) -> bool: ...
    async def add(self, key: bytes, delta: int, ttl: float | None = None, /) -> int: ...
    async def ttl(self, key: bytes, /) -> float | None: ...
    async def expire(self, key: bytes, ttl: float | None, /) -> bool: ...
    async def scan(
        self, prefix: bytes, cursor: bytes | None, limit: int, values: bool, /
    ) -> tuple[list[tuple[bytes, bytes]], bytes | None]: ...
    async def take_tokens(self, key: bytes, capacity: float, per_second: float, cost: float, /) -> Grant: ...
    async def take_window(self, key: bytes, limit: int, seconds: float, cost: int, /) -> Grant: ...
    async def publish(self, channel: bytes, message: bytes, /) -> None: ...
    async def subscribe(
        self, channels: Sequence[bytes], patterns: Sequence[bytes], queue: int, when_full: WhenFull, /
    ) -> AsyncBackendSubscription: ...
    async def info(self) -> dict[str, Any]: ...
    async def close(self) -> None: ...
