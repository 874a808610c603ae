"""Storages of the package `limits`, which Flask-Limiter uses. Importing this module registers their schemes.

    towline://                      the store of the server
    towline:///var/lib/app/state    a directory
    towline+redis://host            Redis; also +rediss, +unix, +valkey, +valkeys

`async+` before each of them is for `limits.aio`. All three strategies work; the moving window stores the time of each request.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

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

from ..._either import maybe_await, run
from ..._state_location import SCHEMES as STORES
from ...errors import StateError
from ._shared import short_name

T = TypeVar("T")
NAMESPACE = "limits"
SCHEMES = ["towline", *(f"towline+{kind}" for kind in STORES if kind != "file")]
ASYNC_SCHEMES = [f"async+{scheme}" for scheme in SCHEMES]


def _location(uri: str | None) -> str | None:
    """The argument of `open()` for a URI."""
    scheme, _, rest = (uri or "towline://").removeprefix("async+").partition("://")
    kind = scheme.partition("+")[2]
    return f"{kind}://{rest}" if kind else rest or None


def _recent(times: list[float] | None, expiry: int, now: float) -> list[float]:
    """Times within a window. Much later ones are of the boot before; others may be of a machine whose clock is ahead."""
    return [each for each in times or [] if now - expiry < each < now + expiry]


def _blocking(flow: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., T]:
    """The method of a storage whose state blocks."""

    @functools.wraps(flow)
    def method(*arguments: Any, **named: Any) -> T:
        return run(flow(*arguments, **named))

    return method


class _Refused(Exception):
    """The limit is reached."""


class _Windows(TimestampedSlidingWindow):
    """The methods of both storages. The state of `StateStorage` returns results, that of `AsyncStateStorage` awaitables."""

    _state: Any

    def __init__(
        self, uri: str | None, wrap_exceptions: bool, opened: Callable[..., Any], **options: Any
    ) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions)  # type: ignore[call-arg]  # the next base is a Storage
        self._state = opened(_location(uri), namespace=NAMESPACE, **options)
        # The clock that the users of a store share. That of a machine is not set by anybody; several machines have the
        # wall clock.
        is_local = self._state._backend.name == "embedded"
        self._now = partial(time.clock_gettime, time.CLOCK_BOOTTIME) if is_local else time.time

    @property
    def base_exceptions(self) -> type[Exception]:
        return StateError

    async def _incr(self, key: str, expiry: float, amount: int = 1) -> int:
        return int(await maybe_await(self._state.increment(short_name(key), amount, ttl=expiry)))

    async def _get(self, key: str) -> int:
        return int(await maybe_await(self._state.get(short_name(key), 0)))

    async def _get_expiry(self, key: str) -> float:
        return time.time() + (await maybe_await(self._state.ttl(short_name(key))) or 0)

    async def _check(self) -> bool:
        try:
            await maybe_await(self._state.contains("check"))
        except StateError:
            return False
        return True

    async def _reset(self) -> int:
        return int(await maybe_await(self._state.clear()))

    async def _clear(self, key: str) -> None:
        await maybe_await(self._state.delete(short_name(key), short_name(f"moving/{key}")))

    async def _acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        now = self._now()

        def change(times: list[float] | None) -> list[float]:
            recent = _recent(times, expiry, now)  # newest first
            if len(recent) + amount > limit:
                raise _Refused
            return [now] * amount + recent

        try:
            await maybe_await(self._state.update(short_name(f"moving/{key}"), change, ttl=expiry))
        except _Refused:
            return False
        return True

    async def _get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """Time of the wall clock at which the window began, which callers compare with it, and the number of requests."""
        times = await maybe_await(self._state.get(short_name(f"moving/{key}")))
        now = self._now()
        recent = _recent(times, expiry, now)
        return time.time() - (now - recent[-1] if recent else 0), len(recent)

    async def _acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        now = self._now()
        previous, current = map(short_name, self.sliding_window_keys(key, expiry, now))

        async def take(changes: Any) -> bool:
            before = int(await maybe_await(changes.get(previous, 0)))
            since = int(await maybe_await(changes.get(current, 0)))
            if before * (1 - now / expiry % 1) + since + amount > limit:
                return False
            changes.set(current, since + amount, ttl=2 * expiry)
            return True

        is_blocking = isinstance(self._state, towline.state.State)
        taken: bool = await maybe_await(self._state.transact(_blocking(take) if is_blocking else take))
        return taken

    async def _get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """Counters of the two windows and the seconds for which each of them counts."""
        now = self._now()
        previous, current = map(short_name, self.sliding_window_keys(key, expiry, now))
        found = await maybe_await(self._state.get_many([previous, current]))
        left = (1 - now / expiry % 1) * expiry
        before = found.get(previous, 0)
        return before, left if before else 0.0, found.get(current, 0), left + expiry

    async def _clear_sliding_window(self, key: str, expiry: int) -> None:
        names = map(short_name, self.sliding_window_keys(key, expiry, self._now()))
        await maybe_await(self._state.delete(*names))


class StateStorage(_Windows, Storage, SlidingWindowCounterSupport, MovingWindowSupport):
    """For `limits` and Flask-Limiter."""

    STORAGE_SCHEME = SCHEMES

    def __init__(self, uri: str | None = None, wrap_exceptions: bool = False, **options: Any) -> None:
        super().__init__(uri, wrap_exceptions, towline.state.open, **options)

    incr = _blocking(_Windows._incr)
    get = _blocking(_Windows._get)
    get_expiry = _blocking(_Windows._get_expiry)
    check = _blocking(_Windows._check)
    reset = _blocking(_Windows._reset)
    clear = _blocking(_Windows._clear)
    acquire_entry = _blocking(_Windows._acquire_entry)
    get_moving_window = _blocking(_Windows._get_moving_window)
    acquire_sliding_window_entry = _blocking(_Windows._acquire_sliding_window_entry)
    get_sliding_window = _blocking(_Windows._get_sliding_window)
    clear_sliding_window = _blocking(_Windows._clear_sliding_window)


class AsyncStateStorage(_Windows, AsyncStorage, AsyncSlidingWindowCounterSupport, AsyncMovingWindowSupport):
    """For `limits.aio`."""

    STORAGE_SCHEME = ASYNC_SCHEMES

    def __init__(self, uri: str | None = None, wrap_exceptions: bool = False, **options: Any) -> None:
        super().__init__(uri, wrap_exceptions, towline.state.open_async, **options)

    incr = _Windows._incr
    get = _Windows._get
    get_expiry = _Windows._get_expiry
    check = _Windows._check
    reset = _Windows._reset
    clear = _Windows._clear
    acquire_entry = _Windows._acquire_entry
    get_moving_window = _Windows._get_moving_window
    acquire_sliding_window_entry = _Windows._acquire_sliding_window_entry
    get_sliding_window = _Windows._get_sliding_window
    clear_sliding_window = _Windows._clear_sliding_window
