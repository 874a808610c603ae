"""The event loops or WSGI servers of a worker process: one in the main thread, or several in a thread each.

Signals arrive in the main thread only. With several loops it serves nothing: it waits for signals, for the end of the
supervisor and for the threads. A thread that fails ends the process, as a failure of its only loop would.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from .application import Application
from .health import is_old
from .logs import counted
from .signal_handlers import install

if TYPE_CHECKING:
    import asyncio

    from .lifespan import Lifespan
    from .worker import LoopContext, WorkerContext

logger = logging.getLogger("towline.server")

CLOSE_IDLE = signal.SIGUSR2
"""Drains the worker like SIGTERM, and closes idle connections at once."""
SUPERVISOR_ENDED = "the supervisor has ended: finishing requests in flight, then exiting"
CRASH_TIMEOUT = 2.0
"""Seconds for the other loops to end after one has failed."""
STOP_POLL = 0.25
"""Seconds between two looks at the loops that have not ended, while the process stops."""
READY, ENDED = b"r", b"e"
"""Bytes that a thread writes to the pipe of `LoopThreads`. Signals write their numbers, which are less than these."""


class Stoppable(Protocol):
    """Methods that the handlers of signals call."""

    def stop(self, now: bool = False, close_idle: bool = False) -> None: ...
    def reopen_logs(self) -> None: ...


class Loop(Stoppable, Protocol):
    """An event loop or a WSGI server. `stop` and `reopen_logs` may be called from any thread."""

    detail: str

    @property
    def cancelled(self) -> int: ...
    def run(self, on_ready: Callable[[], None]) -> None: ...
    def run_alone(self) -> None:
        """Serve in the main thread, and handle the signals."""


def serve(application: Application, context: WorkerContext) -> int:
    """Serve until the process has to end. Returns the number of requests that have not finished."""
    if application.interface == "wsgi":
        loops: Sequence[Loop] = [WsgiLoop(application.call, context, part) for part in context.loops]
    else:
        loops = _asgi_loops(application.call, context)
    if len(loops) == 1:
        loops[0].run_alone()
    else:
        LoopThreads(loops, context).run()
    return sum(loop.cancelled for loop in loops)


def _asgi_loops(app: Any, context: WorkerContext) -> Sequence[Loop]:
    from .lifespan import Lifespan, share

    lifespans = [Lifespan(app, context.config.lifespan) for _ in context.loops]
    if context.config.lifespan_scope == "process":
        lifespans = share(lifespans)
    return [AsgiLoop(app, context, *both) for both in zip(context.loops, lifespans, strict=True)]


class AsgiLoop:
    """An event loop with a server."""

    def __init__(self, app: Any, context: WorkerContext, part: LoopContext, lifespan: Lifespan) -> None:
        from .asgi import AsgiWorker, new_loop

        self._context, self._slot = context, part.slot
        self._loop, name = new_loop(context.config.loop)
        self._worker = AsgiWorker(app, context.config, part.binds, slot=part.slot, lifespan=lifespan)
        self.detail = f"asgi {name}"

    @property
    def cancelled(self) -> int:
        return self._worker.cancelled

    def stop(self, now: bool = False, close_idle: bool = False) -> None:
        self._call(self._worker.stop, now, close_idle)

    def reopen_logs(self) -> None:
        self._call(self._worker.reopen_logs)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: it has stopped
            self._loop.call_soon_threadsafe(function, *arguments)

    def run(self, on_ready: Callable[[], None]) -> None:
        self._run(self._serve(on_ready))

    def run_alone(self) -> None:
        self._run(self._serve_alone())

    def _run(self, main: Coroutine[Any, Any, None]) -> None:
        from .asgi import run_to_end

        run_to_end(self._loop, main, is_serving=lambda: self._worker.is_serving)

    async def _serve(self, on_ready: Callable[[], None]) -> None:
        def tick() -> None:
            # An idle loop does not run otherwise.
            self._slot.turned()
            self._loop.call_later(self._context.turn_period, tick)

        tick()
        await self._worker.serve(on_ready)

    async def _serve_alone(self) -> None:
        loop, lifeline = self._loop, self._context.lifeline

        def orphaned() -> None:
            loop.remove_reader(lifeline)
            logger.error(SUPERVISOR_ENDED)
            self._worker.stop()

        handle_signals(self._worker, self._context, loop, shown=self._worker.handle_exit)
        loop.add_reader(lifeline, orphaned)
        try:
            await self._serve(lambda: self._context.ready(self.detail))
        finally:
            loop.remove_reader(lifeline)


class WsgiLoop:
    """A WSGI server, whose loop is native."""

    def __init__(self, app: Any, context: WorkerContext, part: LoopContext) -> None:
        from .wsgi import WsgiWorker

        self._context = context
        self._worker = WsgiWorker(app, context.config, part.binds, slot=part.slot)
        self.stop, self.reopen_logs = self._worker.stop, self._worker.reopen_logs
        self.run = self._worker.serve
        each = " each" if len(context.loops) > 1 else ""
        self.detail = f"wsgi {counted(context.config.threads, 'thread')}{each}"

    @property
    def cancelled(self) -> int:
        return self._worker.cancelled

    def run_alone(self) -> None:
        handle_signals(self._worker, self._context)

        def watch_lifeline() -> None:
            poller = select.poll()
            poller.register(self._context.lifeline, select.POLLIN)
            poller.poll()
            logger.error(SUPERVISOR_ENDED)
            self._worker.stop()

        threading.Thread(target=watch_lifeline, name="towline-lifeline", daemon=True).start()
        self.run(lambda: self._context.ready(self.detail))


class LoopThreads:
    """Runs each loop in a thread, until all have ended."""

    def __init__(self, loops: Sequence[Loop], context: WorkerContext) -> None:
        self._loops, self._context = loops, context
        self._threads = [
            threading.Thread(target=self._run, args=(loop,), name=f"towline-loop-{part.number}", daemon=True)
            for loop, part in zip(loops, context.loops, strict=True)
        ]
        self._errors: list[BaseException] = []
        self.should_exit = False
        """Whether the process has begun to stop. `AsgiWorker.handle_exit` says who reads this name."""
        self._read, self._write = os.pipe()
        for fd in (self._read, self._write):
            os.set_blocking(fd, False)

    def run(self) -> None:
        """Raises the first error of a thread."""
        handle_signals(self, self._context, shown=self.handle_exit)
        # The system may give a signal to any thread. This one wakes up for it, and the handler runs.
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for thread in self._threads:
            thread.start()
        self._wait()
        if self._errors:
            raise self._errors[0]

    def stop(self, now: bool = False, close_idle: bool = False) -> None:
        self.should_exit = True
        for loop in self._loops:
            loop.stop(now, close_idle)

    def handle_exit(self, number: int, frame: object) -> None:
        self.stop()

    def reopen_logs(self) -> None:
        for loop in self._loops:
            loop.reopen_logs()

    def _run(self, loop: Loop) -> None:
        try:
            loop.run(lambda: self._tell(READY))
            if not self.should_exit:
                raise RuntimeError("the loop has ended although nobody has stopped it")
        except BaseException as error:
            self._errors.append(error)
        finally:
            self._tell(ENDED)

    def _tell(self, event: bytes) -> None:
        os.write(self._write, event)

    def _wait(self) -> None:
        poller = select.poll()
        poller.register(self._read, select.POLLIN)
        poller.register(self._context.lifeline, select.POLLIN)
        missing = {READY: len(self._loops), ENDED: len(self._loops)}
        give_up_at = float("inf")
        while missing[ENDED] and time.monotonic() < give_up_at:
            events = dict(poller.poll(STOP_POLL * 1000 if self.should_exit else None))
            if self._context.lifeline in events:
                poller.unregister(self._context.lifeline)
                logger.error(SUPERVISOR_ENDED)
                self.stop()
            if self._read in events:
                told = os.read(self._read, 4096)
                if READY in told and missing[READY] == told.count(READY):
                    self._context.ready(self._loops[0].detail)
                for event in missing:
                    missing[event] -= told.count(event)
            if self._errors and give_up_at == float("inf"):
                give_up_at = time.monotonic() + CRASH_TIMEOUT
                self.stop(True)
            self._abort_if_stuck()

    def _abort_if_stuck(self) -> None:
        """Print the stacks and end the process, if it stops and only loops that are stuck have not ended."""
        left = [
            part for part, thread in zip(self._context.loops, self._threads, strict=True) if thread.is_alive()
        ]
        timeout = self._context.config.timeout_worker_healthcheck
        if self.should_exit and left and all(is_old(part.slot, timeout) for part in left):
            logger.error("loop %s is stuck; its stack follows", ", ".join(str(part.number) for part in left))
            os.abort()


def handle_signals(
    target: Stoppable,
    context: WorkerContext,
    loop: asyncio.AbstractEventLoop | None = None,
    *,
    shown: Callable[[int, object], None] | None = None,
) -> None:
    """Install the handlers of a worker, which `loop` calls if there is one. `shown`: see `install`."""

    def interrupted() -> None:
        context.interrupted()
        target.stop(True)

    install(signal.SIGTERM, target.stop, loop=loop, shown=shown)
    install(CLOSE_IDLE, target.stop, False, True, loop=loop)
    install(signal.SIGQUIT, interrupted, loop=loop)
    install(signal.SIGUSR1, target.reopen_logs, loop=loop)
