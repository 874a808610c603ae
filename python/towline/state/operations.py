"""Operations made of several primitive calls, written once for both front ends.

Each is a generator. It yields a call of the back end, `(method, *arguments)`, or `("sleep", seconds)`, and is sent the
result. `State` runs it with blocking calls and `AsyncState` with awaited ones.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias, TypeVar

from ..errors import LockLost, LockTimeout, OnceInProgress, StateConflict
from .backend import INTERNAL
from .view import positive

T = TypeVar("T")
Flow: TypeAlias = Generator[tuple[Any, ...], Any, T]

ATTEMPTS = 64
"""Times that an optimistic change is tried. Each failure means that another writer has succeeded."""
PAGE = 128
"""Pairs that one call of `scan` or `delete` handles, so that it stays short."""
FIRST_DELAY, MAX_DELAY = 0.001, 0.05
"""Seconds between two attempts to get a lock: doubled each time, with jitter."""
DONE, RUNNING = b"+", b"-"


def delays() -> Generator[float, None, None]:
    """Pauses between attempts: exponential, with full jitter, so that waiters do not run in step."""
    bound = FIRST_DELAY
    while True:
        yield random.uniform(bound / 2, bound)
        bound = min(MAX_DELAY, bound * 2)


def compare_and_set(
    key: bytes, is_expected: Callable[[bytes | None], bool], value: bytes | None, ttl: float | None
) -> Flow[bool]:
    """Compare as values, write on the condition that the bytes are still the same."""
    for _ in range(ATTEMPTS):
        current = yield "get", key
        if not is_expected(current):
            return False
        if (yield "apply", [(key, current)], [(key, value, ttl)]):
            return True
    raise StateConflict(f"compare_and_set: other writers changed the key {ATTEMPTS} times")


def update(
    key: bytes, change: Callable[[bytes | None], bytes | None], ttl: float | None
) -> Flow[bytes | None]:
    """Apply a function to the value. It runs again whenever another writer was faster."""
    pauses = delays()
    for attempt in range(ATTEMPTS):
        current = yield "get", key
        value = change(current)
        if (yield "apply", [(key, current)], [(key, value, ttl)]):
            return value
        if attempt > 2:
            yield "sleep", next(pauses)
    raise StateConflict(f"update: other writers changed the key {ATTEMPTS} times")


def delete_prefix(prefix: bytes) -> Flow[int]:
    """Remove all keys with a prefix, page by page: not atomic, but each page is."""
    removed, cursor = 0, None
    while True:
        pairs, cursor = yield "scan", prefix, cursor, PAGE, False
        keys = [key for key, _ in pairs if prefix or key[:1] != INTERNAL]
        if keys:
            removed += yield "delete", keys
        if cursor is None:
            return removed


def page(
    prefix: bytes, cursor: bytes | None, values: bool
) -> Flow[tuple[list[tuple[bytes, bytes]], bytes | None]]:
    """One page of a scan, without internal keys."""
    pairs, cursor = yield "scan", prefix, cursor, PAGE, values
    return [pair for pair in pairs if prefix or pair[0][:1] != INTERNAL], cursor


def new_token() -> bytes:
    """A value that identifies one holder of a lock."""
    return os.urandom(12).hex().encode()


def acquire(
    candidates: Sequence[bytes], token: bytes, lease: float, timeout: float | None, name: str
) -> Flow[bytes]:
    """Take the first free one of several keys, and return it: one key is a lock, several are a semaphore.

    `timeout`: None waits for ever, 0 tries once. Raises `LockTimeout`.
    """
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    pauses = delays()
    while True:
        held = yield "get_many", candidates
        free = [key for key, value in zip(candidates, held, strict=True) if value is None]
        random.shuffle(free)  # otherwise all waiters try the same one
        for key in free[:4]:
            if (yield "apply", [(key, None)], [(key, token, lease)]):
                return key
        pause = next(pauses)
        left = deadline - time.monotonic()
        if left <= 0:
            raise LockTimeout(f"{name!r} was not free within {timeout:g} s")
        yield "sleep", min(pause, left)


def release(key: bytes, token: bytes, name: str) -> Flow[None]:
    """Give up a lock. Raises `LockLost` if the lease had expired."""
    if not (yield "apply", [(key, token)], [(key, None, None)]):
        raise LockLost(f"the lease of {name!r} had expired before it was released")


def extend(key: bytes, token: bytes, lease: float, name: str) -> Flow[None]:
    """Start the lease again. Raises `LockLost` if it had expired."""
    if not (yield "apply", [(key, token)], [(key, token, lease)]):
        raise LockLost(f"the lease of {name!r} had expired before it was extended")


def begin_once(key: bytes, token: bytes, lease: float) -> Flow[bytes | None]:
    """Claim a once-only operation. None: it is ours to run; otherwise its stored result. Raises `OnceInProgress`."""
    for _ in range(ATTEMPTS):
        (current,) = yield "get_many", [key]  # `get` refuses an internal key
        if current is not None and current[:1] == DONE:
            result: bytes = current[1:]
            return result
        if current is not None:
            raise OnceInProgress("the same operation is running and has no result yet")
        if (yield "apply", [(key, None)], [(key, RUNNING + token, lease)]):
            return None
    raise StateConflict(f"once: other writers changed the key {ATTEMPTS} times")


def finish_once(key: bytes, token: bytes, result: bytes, ttl: float | None) -> Flow[None]:
    """Store the result. Raises `LockLost` if the lease had expired, so that another may run the operation too."""
    if not (yield "apply", [(key, RUNNING + token)], [(key, DONE + result, ttl)]):
        raise LockLost("the lease of the once-only operation had expired before it ended")


def cancel_once(key: bytes, token: bytes) -> Flow[None]:
    """Let another run the operation, after it has failed."""
    yield "apply", [(key, RUNNING + token)], [(key, None, None)]


class Lease:
    """A lock or a permit of a semaphore, with a lease. One object is one holder."""

    def __init__(
        self, state: Any, candidates: Sequence[bytes], name: str, lease: float, timeout: float | None
    ) -> None:
        self._state = state
        self._candidates = candidates
        self._name = name
        self._lease = positive(lease) or 0.0
        self._timeout = timeout
        self._held: tuple[bytes, bytes] | None = None

    def _acquire(self) -> Flow[None]:
        token = new_token()
        key = yield from acquire(self._candidates, token, self._lease, self._timeout, self._name)
        self._held = key, token

    def _extend(self, lease: float | None) -> Flow[None]:
        key, token = self._held or (self._candidates[0], b"")
        yield from extend(key, token, lease or self._lease, self._name)

    def _release(self) -> Flow[None]:
        key, token = self._held or (self._candidates[0], b"")
        self._held = None
        yield from release(key, token, self._name)
