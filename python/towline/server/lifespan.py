"""The ASGI lifespan protocol: one call of the application from start-up to shutdown.

```
            startup.complete            shutdown.complete
 Starting ───────────────────▶ Running ──────────────────▶ Ended
    │ startup.failed, or raised with `on`
    ├──────────────▶ StartupError
    │ raised with `auto`
    └──────────────▶ Unsupported: served without lifespan
```
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from ..errors import StartupError
from .importer import own_traceback

logger = logging.getLogger("towline.server")

SHUTDOWN_TIMEOUT = 10.0
"""Seconds for the application to shut down after its last request, before its task is cancelled."""


def share(lifespans: Sequence[Lifespan]) -> list[Lifespan]:
    """One lifespan for several loops (`--lifespan-scope process`): the first runs it, and the others have its state.

    They serve once it has started, and it shuts down once they have ended.
    """
    first, *others = lifespans
    started: Future[None] = Future()
    followers = [_Follower(first, started) for _ in others]
    return [_Leader(first, started, [follower.ended for follower in followers]), *followers]


class Lifespan:
    """Runs the protocol for one application. `state`: the state that it provides to its requests."""

    def __init__(self, app: Any, mode: str) -> None:
        self.state: dict[str, Any] = {}
        self._app = app
        self._mode = mode
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._started: asyncio.Future[None] | None = None
        self._stopped: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def startup(self) -> None:
        """Return when the application is ready. Raises `StartupError` if its start-up fails."""
        if self._mode == "off":
            return
        loop = asyncio.get_running_loop()
        self._started, self._stopped = loop.create_future(), loop.create_future()
        self._inbox.put_nowait({"type": "lifespan.startup"})
        self._task = loop.create_task(self._run(), name="towline-lifespan")
        await asyncio.wait({self._started, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if self._started.done():
            self._started.result()  # raises the error of startup.failed
            return
        self._on_unsupported(self._task)

    def _on_unsupported(self, task: asyncio.Task[None]) -> None:
        """Handle a call that ended without startup.complete: no support with `auto`, an error with `on`."""
        error = None if task.cancelled() else task.exception()
        self._task = None
        if isinstance(error, StartupError):
            raise error
        if self._mode == "on":
            reason = own_traceback(error) if error else "it returned without lifespan.startup.complete"
            raise StartupError(f"the application does not support lifespan (--lifespan on): {reason}")
        # By raising an exception an application reports that it does not support the protocol; a bug looks the same.
        logger.debug("the application does not support lifespan", exc_info=error)

    async def shutdown(self) -> None:
        """Notify the application of the shutdown and wait for it, at most SHUTDOWN_TIMEOUT."""
        task, stopped = self._task, self._stopped
        if task is None or stopped is None:
            return
        if not task.done():
            self._inbox.put_nowait({"type": "lifespan.shutdown"})
            await asyncio.wait({stopped, task}, timeout=SHUTDOWN_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
        if not task.done() and stopped.done():
            # Shutdown is complete: let the call return.
            await asyncio.wait({task}, timeout=1.0)
        if not task.done():
            if not stopped.done():
                logger.error("the application did not shut down within %g s", SHUTDOWN_TIMEOUT)
            task.cancel()
            await asyncio.wait({task}, timeout=1.0)
        self._report(task, stopped)

    def _report(self, task: asyncio.Task[None], stopped: asyncio.Future[None]) -> None:
        if stopped.done() and stopped.exception() is not None:
            logger.error("%s", stopped.exception())
        if task.done() and not task.cancelled() and task.exception() is not None:
            logger.error("the application raised in its lifespan", exc_info=task.exception())

    async def _run(self) -> None:
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": self.state}
        called = self._app(scope, self._inbox.get, self._send)
        if not inspect.isawaitable(called):
            raise StartupError(
                f"the application returned {called!r} and no awaitable: it is no ASGI application (--interface wsgi, "
                "or --factory?)"
            )
        await called

    async def _send(self, message: dict[str, Any]) -> None:
        kind = message.get("type")
        detail = message.get("message") or "no message given"
        if kind == "lifespan.startup.complete":
            self._complete(self._started, None)
        elif kind == "lifespan.startup.failed":
            self._complete(self._started, StartupError(f"the application failed to start: {detail}"))
        elif kind == "lifespan.shutdown.complete":
            self._complete(self._stopped, None)
        elif kind == "lifespan.shutdown.failed":
            self._complete(self._stopped, StartupError(f"the application failed to shut down: {detail}"))
        else:
            raise RuntimeError(f"unexpected lifespan message {kind!r}")

    @staticmethod
    def _complete(future: asyncio.Future[None] | None, error: Exception | None) -> None:
        if future is None or future.done():
            raise RuntimeError("this lifespan message was already sent")
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


class _Leader(Lifespan):
    """The shared lifespan, in its own loop."""

    def __init__(self, own: Lifespan, started: Future[None], ends: Sequence[Future[None]]) -> None:
        self.state, self._own, self._shared_start, self._ends = own.state, own, started, ends

    async def startup(self) -> None:
        try:
            await self._own.startup()
        except BaseException as error:
            self._shared_start.set_exception(error)
            raise
        self._shared_start.set_result(None)

    async def shutdown(self) -> None:
        await asyncio.gather(*map(asyncio.wrap_future, self._ends))
        await self._own.shutdown()


class _Follower(Lifespan):
    """The shared lifespan, in another loop. `ended`: set when this loop needs it no longer."""

    def __init__(self, leader: Lifespan, started: Future[None]) -> None:
        self.state, self._shared_start = leader.state, started
        self.ended: Future[None] = Future()

    async def startup(self) -> None:
        try:
            await asyncio.wrap_future(self._shared_start)
        except BaseException:
            self.ended.set_result(None)
            raise

    async def shutdown(self) -> None:
        self.ended.set_result(None)
