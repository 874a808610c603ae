"""The embedded store as a back end: `_native.StateStore`, and its form for an event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar

from .. import _native, _state_location
from ..errors import StateUnavailable, UsageError
from .backend import Primitives, WhenFull, closed
from .delivery import LoopQueue, LoopReader, ThreadQueue, ThreadReader

T = TypeVar("T")
THREADS = 4
"""Threads of a process for the calls that an event loop must not make itself."""


def connect(
    url: str,
    *,
    size: int | None = None,
    when_full: Literal["error", "evict"] | None = None,
    sync: bool | None = None,
) -> Embedded:
    """Open the store in a directory: `/path` or `file:///path`."""
    return Embedded(_store(url, size=size, when_full=when_full, sync=sync))


def connect_async(
    url: str,
    *,
    size: int | None = None,
    when_full: Literal["error", "evict"] | None = None,
    sync: bool | None = None,
) -> AsyncEmbedded:
    """Open the store for an event loop."""
    store = _store(url, size=size, when_full=when_full, sync=sync)
    return AsyncEmbedded(store, _store(url, short=True))


def _store(url: str, **options: Any) -> _native.StateStore:
    if not hasattr(_native, "StateStore"):
        raise StateUnavailable(
            "the store in a directory needs Linux; use redis:// or valkey:// on other systems"
        )
    return _native.StateStore(path_of(url), workers=_state_location.workers_user, **options)


def path_of(url: str) -> str:
    """The directory of a URL. Raises `UsageError` if it names another machine."""
    if not url.startswith("file://"):
        return url
    path = url.removeprefix("file://")
    if not path.startswith("/"):
        raise UsageError(f"a store is in a directory of this machine: file:///path, not {url}")
    return path


class Embedded(Primitives):
    """The store for programs that block. Its methods are those of the native store, called without a step between."""

    def __init__(self, store: _native.StateStore) -> None:
        self._store = store
        self._reader: tuple[int, ThreadReader] | None = None
        self.name = store.name
        self._set_primitives(lambda name: getattr(store, name))
        self.info = store.info

    def subscribe(
        self, channels: Sequence[bytes], patterns: Sequence[bytes], queue: int, when_full: WhenFull, /
    ) -> ThreadQueue:
        pid = os.getpid()
        if self._reader is None or self._reader[0] != pid:  # the thread of a parent does not exist here
            self._reader = pid, ThreadReader(self._store)
        return self._reader[1].subscribe(channels, patterns, queue, when_full)

    def close(self) -> None:
        self._store.close()
        if self._reader is not None and self._reader[0] == os.getpid():
            self._reader[1].close()


class AsyncEmbedded(Primitives):
    """The store for an event loop: a call that would take long is made by a thread instead."""

    def __init__(self, store: _native.StateStore, short: _native.StateStore) -> None:
        self._store = store
        self._short = short
        self._threads: tuple[int, ThreadPoolExecutor] | None = None
        self._readers: dict[asyncio.AbstractEventLoop, LoopReader] = {}
        self._is_closed = False
        self.name = store.name
        self._set_primitives(self._short_or_in_thread)

    async def _in_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        pid = os.getpid()
        if self._threads is None or self._threads[0] != pid:
            self._threads = pid, ThreadPoolExecutor(THREADS, "towline-state")
        return await asyncio.get_running_loop().run_in_executor(self._threads[1], call, *arguments)

    def _short_or_in_thread(self, name: str) -> Callable[..., Any]:
        """The primitive, called at once, or in a thread if it would take long."""
        short, long = getattr(self._short, name), getattr(self._store, name)

        async def call(*arguments: Any) -> Any:
            try:
                return short(*arguments)
            except BlockingIOError:
                return await self._in_thread(long, *arguments)

        return call

    async def subscribe(
        self, channels: Sequence[bytes], patterns: Sequence[bytes], queue: int, when_full: WhenFull, /
    ) -> LoopQueue:
        loop = asyncio.get_running_loop()
        self._check_open()
        reader = self._readers.get(loop)
        if reader is None or reader.closed:
            log = await self._in_thread(self._store.open_log)
            if self._is_closed:
                log.close()
            self._check_open()
            reader = self._readers.get(loop)  # another task may have been faster
            if reader is None or reader.closed:
                for other in [each for each in self._readers if each.is_closed()]:
                    del self._readers[other]
                reader = self._readers[loop] = LoopReader(loop, log)
            else:
                log.close()
        return reader.add(channels, patterns, queue, when_full)

    def _check_open(self) -> None:
        if self._is_closed:
            raise closed()

    async def info(self) -> dict[str, Any]:
        return self._short.info()

    async def close(self) -> None:
        self._is_closed = True
        running = asyncio.get_running_loop()
        for loop, reader in self._readers.items():
            if reader.pid != os.getpid():
                continue  # its descriptors are those of the parent, too
            if loop is running:
                reader.close()
            elif not loop.is_closed():
                loop.call_soon_threadsafe(reader.close)
        self._readers.clear()
        if self._threads is not None and self._threads[0] == os.getpid():
            self._threads[1].shutdown(wait=False)
        self._store.close()
        self._short.close()
