"""The loads: lanes that ask one after the other, so many at once, for a count or a time.

Every answer is compared to its last byte. A slice begins with a warm-up that is not counted, and threads
stand at a barrier before the clock starts.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from .adapters.base import AsyncAdapter, SyncAdapter
from .cells import Cell

WARM_UP_SHARE = 0.1
# A p99 of fewer samples would be their maximum.
LEAST_SAMPLES = 1000


class WrongAnswer(Exception):
    """What came instead."""


@dataclass
class Slice:
    """What one slice of one client cost."""

    latencies: list[float] = field(default_factory=list)
    seconds: float = 0.0
    cpu_s: float = 0.0

    def record(self, batch: int) -> dict[str, Any]:
        times, n = sorted(self.latencies), len(self.latencies) * batch
        return {
            "n": n,
            "seconds": round(self.seconds, 4),
            "requests_per_s": round(n / self.seconds, 1),
            "cpu_us": round(self.cpu_s / n * 1e6, 2),
            "mean_ms": round(sum(times) / len(times) * 1e3, 4),
            "median_ms": round(times[len(times) // 2] * 1e3, 4),
            "p99_ms": round(times[int(len(times) * 0.99)] * 1e3, 4) if len(times) >= LEAST_SAMPLES else None,
            "min_ms": round(times[0] * 1e3, 4),
            "max_ms": round(times[-1] * 1e3, 4),
        }


class Quota:
    """Who may still ask. Safe for threads: `next` of an iterator is one step."""

    def __init__(self, count: int | None, seconds: float) -> None:
        self._tickets = iter(range(count)) if count is not None else None
        self._seconds = seconds
        self._end = 0.0

    def start(self) -> None:
        self._end = time.perf_counter() + self._seconds

    def more(self) -> bool:
        if self._tickets is not None:
            return next(self._tickets, None) is not None
        return time.perf_counter() < self._end


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def warm_up(cell: Cell, seconds: float) -> Quota:
    return Quota(2 * cell.at_once if cell.count is not None else None, seconds * WARM_UP_SHARE)


def document(cell: Cell) -> dict[str, str]:
    return {"hello": "a" * cell.body_bytes}


def compare(answer: tuple[int, bytes], expected: bytes) -> None:
    status, body = answer
    if status != 200 or body != expected:
        raise WrongAnswer(f"{status} with {len(body)} bytes: {bytes(body[:60])!r}")


def compare_json(answer: Any, expected: Any) -> None:
    if answer != expected:
        raise WrongAnswer(f"not the JSON that was sent: {str(answer)[:60]!r}")


# --- asynchronous -------------------------------------------------------------------------------


def async_call(adapter: AsyncAdapter, cell: Cell) -> Callable[[], Awaitable[None]]:
    """One request of the cell, or one batch."""
    one = _async_one(adapter, cell)
    if cell.batch == 1:
        return one

    async def batch() -> None:
        await asyncio.gather(*(one() for _ in range(cell.batch)))

    return batch


def _async_one(adapter: AsyncAdapter, cell: Cell) -> Callable[[], Awaitable[None]]:
    path, expected = cell.path, cell.expected
    if cell.load == "get":

        async def one() -> None:
            compare(await adapter.get(path), expected)
    elif cell.load == "upload":
        body = b"x" * cell.body_bytes

        async def one() -> None:
            compare(await adapter.upload(path, body), expected)
    else:
        value = document(cell)

        async def one() -> None:
            compare_json(await adapter.post_json(path, value), value)

    return one


async def async_slice(adapter: AsyncAdapter, cell: Cell, seconds: float) -> dict[str, Any]:
    one = async_call(adapter, cell)
    await _lanes(one, cell.at_once, warm_up(cell, seconds))
    gc.collect()
    return (await _lanes(one, cell.at_once, Quota(cell.count, seconds))).record(cell.batch)


async def _lanes(one: Callable[[], Awaitable[None]], at_once: int, quota: Quota) -> Slice:
    found = Slice()
    clock, note, more = time.perf_counter, found.latencies.append, quota.more

    async def lane() -> None:
        while more():
            began = clock()
            await one()
            note(clock() - began)

    spent, began = cpu_s(), clock()
    quota.start()
    await asyncio.gather(*(lane() for _ in range(at_once)))
    found.seconds, found.cpu_s = clock() - began, cpu_s() - spent
    return found


# --- synchronous --------------------------------------------------------------------------------


def sync_call(adapter: SyncAdapter, cell: Cell) -> Callable[[], None]:
    path, expected = cell.path, cell.expected
    if cell.load == "get":
        return lambda: compare(adapter.get(path), expected)
    if cell.load == "stream":
        return lambda: compare((200, b"".join(adapter.pieces(path))), expected)
    if cell.load == "upload":
        body = b"x" * cell.body_bytes
        return lambda: compare(adapter.upload(path, body), expected)
    value = document(cell)
    return lambda: compare_json(adapter.post_json(path, value), value)


def sync_slice(adapter: SyncAdapter, cell: Cell, seconds: float) -> dict[str, Any]:
    """Warm-up and measurement run on the same threads: connections may belong to a thread."""
    one = sync_call(adapter, cell)
    first, second = warm_up(cell, seconds), Quota(cell.count, seconds)
    if cell.at_once == 1:
        found = Slice()
        first.start()
        _lane(one, first, [])
        gc.collect()
        _timed(lambda: _lane(one, second, found.latencies), second, found)
        return found.record(1)
    return _threads(one, cell.at_once, first, second).record(1)


def _lane(one: Callable[[], None], quota: Quota, latencies: list[float]) -> None:
    clock, note, more = time.perf_counter, latencies.append, quota.more
    while more():
        began = clock()
        one()
        note(clock() - began)


def _timed(work: Callable[[], Any], quota: Quota, found: Slice) -> None:
    spent, began = cpu_s(), time.perf_counter()
    quota.start()
    work()
    found.seconds, found.cpu_s = time.perf_counter() - began, cpu_s() - spent


def _threads(one: Callable[[], None], at_once: int, first: Quota, second: Quota) -> Slice:
    found, errors = Slice(), []
    gate = threading.Barrier(at_once + 1)

    def lane() -> None:
        try:
            gate.wait()
            _lane(one, first, [])
            gate.wait()
            gate.wait()
            _lane(one, second, found.latencies)
        except threading.BrokenBarrierError:
            pass
        except BaseException as error:
            errors.append(error)
            gate.abort()

    lanes = [threading.Thread(target=lane, daemon=True) for _ in range(at_once)]
    for thread in lanes:
        thread.start()

    def work() -> None:
        gate.wait()
        for thread in lanes:
            thread.join()

    try:
        first.start()
        gate.wait()
        gate.wait()
        gc.collect()
        _timed(work, second, found)
    except threading.BrokenBarrierError:
        pass
    if errors:
        raise errors[0]
    return found
