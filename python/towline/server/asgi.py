"""One ASGI worker: an event loop, the native server registered in it, and an orderly shutdown.

```
            stop()                 idle, or deadline           cancelled or ended
 Serving ──────────▶ Draining ──────────────────────▶ Cancelling ───────────────▶ Over
    └──────────────────── stop(now=True) ──────────────────▲
```
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import operator
import os
import selectors
import sys
from collections.abc import Callable, Coroutine, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar

from .. import _native
from ..config import Bind, ServerConfig
from ..errors import StartupError
from . import logs
from .lifespan import Lifespan

T = TypeVar("T")
logger = logging.getLogger("towline.server")

DRAIN_POLL = 0.01
"""Polling interval, in seconds, of the requests in flight while draining."""
LAG_PERIOD = 0.5
"""Seconds between two measurements of the loop's lag, with metrics."""
CANCEL_TIMEOUT = 1.0
"""Seconds for cancelled requests to run their `finally` blocks."""


def loop_module(name: str) -> ModuleType:
    """The module that creates the event loop of `--loop`: uvloop if it is requested and installed, else asyncio."""
    if name != "asyncio":
        try:
            return import_module("uvloop")
        except ImportError:
            pass
    return asyncio


def new_loop(name: str) -> tuple[asyncio.AbstractEventLoop, str]:
    """An event loop for `--loop`, and its name. Raises `StartupError` if uvloop is required and not installed."""
    module = loop_module(name)
    if name == "uvloop" and module is asyncio:
        raise StartupError("--loop uvloop: uvloop is not installed")
    loop: asyncio.AbstractEventLoop = module.new_event_loop()
    return loop, module.__name__


def run_to_end(
    loop: asyncio.AbstractEventLoop,
    main: Coroutine[Any, Any, T],
    *,
    is_serving: Callable[[], bool] = lambda: False,
) -> T:
    """`asyncio.run` on a given loop (asyncio.Runner accepts one from Python 3.11 on only).

    While `is_serving()`, SystemExit and KeyboardInterrupt of the application's tasks do not end the loop.
    """
    asyncio.set_event_loop(loop)
    try:
        task = loop.create_task(main)
        while True:
            try:
                return loop.run_until_complete(task)
            except (SystemExit, KeyboardInterrupt) as error:
                # A task that raises one stops the loop, after it has stored the exception: whoever awaits it, such
                # as a request with a task group, gets it. Other requests must not pay for that.
                if task.done() or not is_serving():
                    raise
                logger.error("%s in a task of the application", type(error).__name__, exc_info=error)
    finally:
        try:
            pending = asyncio.all_tasks(loop)
            for task in pending:
                task.cancel()
            if pending:
                loop.run_until_complete(asyncio.wait(pending, timeout=CANCEL_TIMEOUT))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


class _NoContext:
    """Stands for the context of a callback. A context cannot be entered twice, as it would be where an application runs
    the loop inside a request (nest_asyncio), and every request has a context of its own."""

    run = staticmethod(getattr(operator, "call", lambda function, *arguments: function(*arguments)))


def _add_reader(loop: asyncio.AbstractEventLoop, fd: int, callback: Callable[[], object]) -> None:
    """`loop.add_reader` with a callback that the loop of asyncio may call while it runs."""
    loop.add_reader(fd, callback)
    with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):  # another loop
        reader, _ = loop._selector.get_key(fd).data  # type: ignore[attr-defined]
        reader._context = _NoContext


def _accept_in(loop: asyncio.AbstractEventLoop, native: _native.AsgiServer) -> int | None:
    """Have the poll of the loop itself report new connections: of the workers that wait in theirs the kernel wakes one.

    Returns the descriptor whose reader accepts; `None` if the loop has no epoll that is known, so `turn` accepts.
    """
    if sys.platform != "linux":
        return None
    selector = getattr(loop, "_selector", None)  # of asyncio; uvloop has the other
    find = getattr(loop, "_get_backend_id", None)
    if isinstance(selector, selectors.EpollSelector):
        find = selector.fileno
    if find is None:
        return None
    descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    loop.add_reader(descriptor, native.accept)
    native.accept_in(find(), descriptor)
    return descriptor


class AsgiWorker:
    """Serves `app` on open sockets in the running loop."""

    def __init__(
        self,
        app: Any,
        config: ServerConfig,
        binds: Sequence[Bind],
        *,
        slot: _native.Slot | None = None,
        lifespan: Lifespan | None = None,
    ) -> None:
        self._app, self._config, self._binds = app, config, binds
        self._slot = slot
        self._lifespan = lifespan or Lifespan(app, config.lifespan)
        self._stopping = asyncio.Event()
        self._now = False
        self._close_idle = False
        self.is_serving = False
        """From the end of start-up until the last request has ended."""
        self.cancelled = 0
        """Requests that did not finish before the end."""
        self._native: _native.AsgiServer | None = None

    def reopen_logs(self) -> None:
        """Reopen the access log's file before the next line, after rotation."""
        if self._native is not None:
            self._native.reopen_logs()

    def fail_readiness(self) -> None:
        """Let readiness checks fail, before the shutdown."""
        if self._native is not None:
            self._native.fail_readiness()

    def handle_exit(self, number: int, frame: object) -> None:
        """Do nothing at a signal, whose handler of the loop follows.

        sse-starlette ends its streams when the object behind the handler of SIGTERM says that it `should_exit`, as
        uvicorn's server does.
        """

    @property
    def should_exit(self) -> bool:
        """Whether the server has begun to stop."""
        return self._stopping.is_set()

    def stop(self, now: bool = False, close_idle: bool = False) -> None:
        """Start the shutdown, from the loop's thread. `now`: cancel requests in flight instead of finishing them.

        `close_idle`: close idle connections at once, without `timeout_drain_idle`.

        It may be called more than once: systemd and the supervisor may both stop a worker.
        """
        self._now = self._now or now
        self._close_idle = self._close_idle or close_idle
        self._stopping.set()

    async def serve(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop()` or until this call is cancelled. Raises `StartupError`."""
        await self._lifespan.startup()
        try:
            await self._serve(self._lifespan.state, on_ready)
        finally:
            await self._lifespan.shutdown()

    async def _serve(self, state: dict[str, Any], on_ready: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        native = self._native = self._open(loop, state)
        _add_reader(loop, native.fileno(), native.turn)
        accepting = _accept_in(loop, native)
        try:
            self.is_serving = True
            if self._config.metrics or self._config.metrics_address is not None:
                self._sample_loop_lag(loop, native, loop.time())
            on_ready()
            await self._stopping.wait()
        finally:
            # After a cancellation too: Ctrl-C in an embedding program must not abort requests.
            try:
                await self._end(native)
            finally:
                self.is_serving = False
                if accepting is not None:
                    loop.remove_reader(accepting)
                    os.close(accepting)
                loop.remove_reader(native.fileno())
                native.close()

    def _sample_loop_lag(
        self, loop: asyncio.AbstractEventLoop, native: _native.AsgiServer, due: float
    ) -> None:
        """Measure how late this timer runs, and start the next one, until the native server is closed."""
        if not self.is_serving:
            return
        now = loop.time()
        native.record_loop_lag(max(0.0, now - due))
        due = now + LAG_PERIOD
        loop.call_at(due, self._sample_loop_lag, loop, native, due)

    def _open(self, loop: asyncio.AbstractEventLoop, state: dict[str, Any]) -> _native.AsgiServer:
        if self._slot is not None:
            self._slot.stop_forwarding()
        try:
            return _native.AsgiServer(
                self._app,
                loop,
                self._config,
                self._binds,
                state=state,
                slot=self._slot,
                log=logs.native_log,
            )
        except ValueError as error:
            raise StartupError(str(error)) from error

    async def _end(self, native: _native.AsgiServer) -> None:
        loop = asyncio.get_running_loop()
        native.stop_listening()
        # Cancelled by the embedding program, which waits for the end.
        self._close_idle = self._close_idle or not self._stopping.is_set()
        closes_idle = self._close_idle
        native.drain(close_idle=closes_idle)
        deadline = loop.time() + self._config.timeout_graceful_shutdown
        while _busy(native) and not self._now and loop.time() < deadline:
            await asyncio.sleep(DRAIN_POLL)
            if self._close_idle and not closes_idle:
                closes_idle = True
                native.drain(close_idle=True)
        if _busy(native):
            self.cancelled = native.in_flight
            if self.cancelled:
                late = "" if self._now else " that did not finish in time"
                logger.warning("cancelling %s%s", logs.counted(self.cancelled, "request"), late)
            native.cancel_all()
            deadline = loop.time() + CANCEL_TIMEOUT
            while native.in_flight and loop.time() < deadline:
                await asyncio.sleep(DRAIN_POLL)


def _busy(native: _native.AsgiServer) -> bool:
    return native.in_flight > 0 or native.connections > 0
