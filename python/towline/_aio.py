"""Sleeping, signalling and background tasks, for asyncio and trio."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Awaitable, Callable
from typing import Any


def in_trio() -> bool:
    """Returns whether the current task is a trio task."""
    trio = sys.modules.get("trio")
    if trio is None:
        return False
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return False
    return True


async def sleep(seconds: float) -> None:
    """Suspends the current task."""
    if in_trio():
        await sys.modules["trio"].sleep(seconds)
    else:
        await asyncio.sleep(seconds)


class Signal:
    """An event that may occur many times; `wait()` returns at the next `fire()`."""

    def __init__(self) -> None:
        self._trio: Any = sys.modules["trio"] if in_trio() else None
        self._event: Any = None

    def fire(self) -> None:
        event, self._event = self._event, None
        if event is not None:
            event.set()

    async def wait(self) -> None:
        if self._event is None:
            self._event = self._trio.Event() if self._trio else asyncio.Event()
        await self._event.wait()


class Task:
    """Runs a function in a background task. The function must not raise; the task can be cancelled."""

    def __init__(self, function: Callable[[], Awaitable[None]]) -> None:
        self._function = function
        self._ended = Signal()
        self.done = False
        if in_trio():
            trio: Any = sys.modules["trio"]
            self._scope: Any = trio.CancelScope()
            # a system task does not inherit the context by itself
            trio.lowlevel.spawn_system_task(self._in_scope, context=contextvars.copy_context())
        else:
            self._scope = asyncio.ensure_future(self._run())

    async def wait(self) -> None:
        while not self.done:
            await self._ended.wait()

    def cancel(self) -> None:
        self._scope.cancel()

    async def _in_scope(self) -> None:
        with self._scope:
            await self._run()

    async def _run(self) -> None:
        try:
            await self._function()
        finally:
            self.done = True
            self._ended.fire()
