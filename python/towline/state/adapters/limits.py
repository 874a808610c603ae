"""Storages of the package `limits`, which Flask-Limiter uses. Importing this module registers their schemes.

    towline://                      the store of the server
    towline:///var/lib/app/state    a directory
    towline+redis://host            Redis; also +rediss, +unix, +valkey, +valkeys

`async+` before each of them is for `limits.aio`. All three strategies work; the moving window stores the time of each request.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from limits.aio.storage import (
    MovingWindowSupport as AsyncMovingWindowSupport,
)
from limits.aio.storage import (
    SlidingWindowCounterSupport as AsyncSlidingWindowCounterSupport,
)
from limits.aio.storage import Storage as AsyncStorage
from limits.storage import MovingWindowSupport, SlidingWindowCounterSupport, Storage
from limits.storage.base import TimestampedSlidingWindow

import towline.state

from ..._state_location import SCHEMES as STORES
from ...errors import StateError
from ._shared import short_name

NAMESPACE = "limits"
SCHEMES = ["towline", *(f"towline+{kind}" for kind in STORES if kind != "file")]
ASYNC_SCHEMES = [f"async+{scheme}" for scheme in SCHEMES]


def _location(uri: str | None) -> str | None:
    """The argument of `open()` for a URI."""
    scheme, _, rest = (uri or "towline://").removeprefix("async+").partition("://")
    kind = scheme.partition("+")[2]
    return f"{kind}://{rest}" if kind else rest or None


def _clock_of(state: towline.state.State[Any] | towline.state.AsyncState[Any]) -> Callable[[], float]:
    """The clock that the users of a store share. That of a machine is not set by anybody; several machines have the wall clock."""
    if state._backend.name == "embedded":
        return partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    return time.time


def _recent(times: list[float] | None, expiry: int, now: float) -> list[float]:
    """Times within a window. Much later ones are of the boot before; others may be of a machine whose clock is ahead."""
    return [each for each in times or [] if now - expiry < each < now + expiry]


class _Windows(TimestampedSlidingWindow):
    """Arithmetic of both storages."""

    _now: Callable[[], float]

    @staticmethod
    def _moving(limit: int, expiry: int, amount: int, now: float) -> Callable[[Any], Any]:
        """A change of the times of the last requests, newest first. Raises `_Refused`."""

        def change(times: list[float] | None) -> list[float]:
            recent = _recent(times, expiry, now)
            if len(recent) + amount > limit:
                raise _Refused
            return [now] * amount + recent

        return change

    def _started(self, times: list[float] | None, expiry: int) -> tuple[float, int]:
        """Time of the wall clock at which the window began, which callers compare with it, and the number of requests."""
        now = self._now()
        recent = _recent(times, expiry, now)
        return time.time() - (now - recent[-1] if recent else 0), len(recent)

    @staticmethod
    def _weighted(previous: int, current: int, expiry: int, now: float) -> tuple[int, float, int, float]:
        """Counters of the two windows and the seconds for which each of them counts."""
        left = (1 - now / expiry % 1) * expiry
        return previous, left if previous else 0.0, current, left + expiry


class _Refused(Exception):
    """The limit is reached."""


class StateStorage(_Windows, Storage, SlidingWindowCounterSupport, MovingWindowSupport):
    """For `limits` and Flask-Limiter."""

    STORAGE_SCHEME = SCHEMES

    def __init__(self, uri: str | None = None, wrap_exceptions: bool = False, **options: Any) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        self._state: towline.state.State[Any] = towline.state.open(
            _location(uri), namespace=NAMESPACE, **options
        )
        self._now = _clock_of(self._state)

    @property
    def base_exceptions(self) -> type[Exception]:
        return StateError

    def incr(self, key: str, expiry: float, amount: int = 1) -> int:
        return self._state.increment(short_name(key), amount, ttl=expiry)

    def get(self, key: str) -> int:
        return int(self._state.get(short_name(key), 0))

    def get_expiry(self, key: str) -> float:
        return time.time() + (self._state.ttl(short_name(key)) or 0)

    def check(self) -> bool:
        try:
            self._state.contains("check")
        except StateError:
            return False
        return True

    def reset(self) -> int:
        return self._state.clear()

    def clear(self, key: str) -> None:
        self._state.delete(short_name(key), short_name(f"moving/{key}"))

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        try:
            self._state.update(
                short_name(f"moving/{key}"), self._moving(limit, expiry, amount, self._now()), ttl=expiry
            )
        except _Refused:
            return False
        return True

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        return self._started(self._state.get(short_name(f"moving/{key}")), expiry)

    def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        now = self._now()
        previous, current = map(short_name, self.sliding_window_keys(key, expiry, now))

        def take(changes: towline.state.Transaction[Any]) -> bool:
            before, since = int(changes.get(previous, 0)), int(changes.get(current, 0))
            if before * (1 - now / expiry % 1) + since + amount > limit:
                return False
            changes.set(current, since + amount, ttl=2 * expiry)
            return True

        return self._state.transact(take)

    def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        now = self._now()
        previous, current = map(short_name, self.sliding_window_keys(key, expiry, now))
        found = self._state.get_many([previous, current])
        return self._weighted(found.get(previous, 0), found.get(current, 0), expiry, now)

    def clear_sliding_window(self, key: str, expiry: int) -> None:
        self._state.delete(*map(short_name, self.sliding_window_keys(key, expiry, self._now())))


class AsyncStateStorage(_Windows, AsyncStorage, AsyncSlidingWindowCounterSupport, AsyncMovingWindowSupport):
    """For `limits.aio`."""

    STORAGE_SCHEME = ASYNC_SCHEMES

    def __init__(self, uri: str | None = None, wrap_exceptions: bool = False, **options: Any) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        self._state: towline.state.AsyncState[Any] = towline.state.open_async(
            _location(uri), namespace=NAMESPACE, **options
        )
        self._now = _clock_of(self._state)

    @property
    def base_exceptions(self) -> type[Exception]:
        return StateError

    async def incr(self, key: str, expiry: float, amount: int = 1) -> int:
        return await self._state.increment(short_name(key), amount, ttl=expiry)

    async def get(self, key: str) -> int:
        return int(await self._state.get(short_name(key), 0))

    async def get_expiry(self, key: str) -> float:
        return time.time() + (await self._state.ttl(short_name(key)) or 0)

    async def check(self) -> bool:
        try:
            await self._state.contains("check")
        except StateError:
            return False
        return True

    async def reset(self) -> int:
        return await self._state.clear()

    async def clear(self, key: str) -> None:
        await self._state.delete(short_name(key), short_name(f"moving/{key}"))

    async def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        try:
            await self._state.update(
                short_name(f"moving/{key}"), self._moving(limit, expiry, amount, self._now()), ttl=expiry
            )
        except _Refused:
            return False
        return True

    async def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        return self._started(await self._state.get(short_name(f"moving/{key}")), expiry)

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        now = self._now()
        previous, current = map(short_name, self.sliding_window_keys(key, expiry, now))

        async def take(changes: towline.state.AsyncTransaction[Any]) -> bool:
            before, since = int(await changes.get(previous, 0)), int(await changes.get(current, 0))
            if before * (1 - now / expiry % 1) + since + amount > limit:
                return False
            changes.set(current, since + amount, ttl=2 * expiry)
            return True

        return await self._state.transact(take)

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        now = self._now()
        previous, current = map(short_name, self.sliding_window_keys(key, expiry, now))
        found = await self._state.get_many([previous, current])
        return self._weighted(found.get(previous, 0), found.get(current, 0), expiry, now)

    async def clear_sliding_window(self, key: str, expiry: int) -> None:
        await self._state.delete(*map(short_name, self.sliding_window_keys(key, expiry, self._now())))
