"""Callers: concurrent tasks or threads that make calls in sequence, for a time or a count.

A slice by time discards its beginning; one by count is preceded by a warm-up of two calls per caller. Threads live as
long as the worker and wait between slices, because connections may belong to a thread.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import repeat
from typing import Any

from .job import Job
from .window import Window


class Quota:
    """Limits the number of calls. Thread-safe: `next` of an iterator is atomic."""

    def __init__(self, count: int | None, window: Window) -> None:
        self._tickets: Iterator[int] = repeat(0) if count is None else iter(range(count))
        self._window = window

    def more(self) -> bool:
        return not self._window.closed and next(self._tickets, None) is not None


def plan(job: Job, seconds: float, discard_s: float, count: int | None) -> Iterator[tuple[Window, Quota]]:
    """The windows that the callers run in sequence; the last is measured."""
    wanted = count if count is not None else job.count
    if wanted is not None:
        window = Window(None, 0.0)
        yield window, Quota(2 * job.concurrency, window)
        gc.collect()
    window = Window(seconds if wanted is None else None, discard_s)
    yield window, Quota(wanted, window)


class AsyncCallers:
    def __init__(self, call: Callable[[], Awaitable[Any]], job: Job, loop: asyncio.AbstractEventLoop) -> None:
        self.call, self.job, self.loop = call, job, loop

    def slice(self, seconds: float, discard_s: float, count: int | None) -> Window:
        for window, quota in plan(self.job, seconds, discard_s, count):
            self.loop.run_until_complete(self._run(window, quota))
        return window

    async def _run(self, window: Window, quota: Quota) -> None:
        window.begin()
        await asyncio.gather(*(self._caller(window, quota) for _ in range(self.job.concurrency)))
        window.end()

    async def _caller(self, window: Window, quota: Quota) -> None:
        clock, call, note, more = time.perf_counter, self.call, window.note, quota.more
        while more():
            began = clock()
            try:
                await call()
            except Exception as error:
                window.fail(error)
            else:
                note(began, clock())


class SyncCallers:
    def __init__(self, call: Callable[[], Any], job: Job) -> None:
        self.call, self.job = call, job
        self.gate = threading.Barrier(job.concurrency + 1)
        self.window = Window(None, 0.0)
        self.quota = Quota(0, self.window)
        if job.concurrency > 1:
            for _ in range(job.concurrency):
                threading.Thread(target=self._live, daemon=True).start()

    def slice(self, seconds: float, discard_s: float, count: int | None) -> Window:
        for window, quota in plan(self.job, seconds, discard_s, count):
            self._run(window, quota)
        return window

    def _run(self, window: Window, quota: Quota) -> None:
        self.window, self.quota = window, quota
        window.begin()
        if self.job.concurrency == 1:
            self._caller(window, quota)
        else:
            self.gate.wait()
            self.gate.wait()
        window.end()

    def _live(self) -> None:
        while True:
            self.gate.wait()
            self._caller(self.window, self.quota)
            self.gate.wait()

    def _caller(self, window: Window, quota: Quota) -> None:
        clock, call, note, more = time.perf_counter, self.call, window.note, quota.more
        while more():
            began = clock()
            try:
                call()
            except Exception as error:
                window.fail(error)
            else:
                note(began, clock())
