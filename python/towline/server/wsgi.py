"""One WSGI worker: the native server blocks in Rust on this thread, and a second thread shuts it down."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from .. import _native
from ..config import Bind, ServerConfig
from ..errors import StartupError
from . import logs

logger = logging.getLogger("towline.server")

DRAIN_POLL = 0.02
"""Polling interval, in seconds, of the requests in flight while draining."""


class WsgiWorker:
    """Serves `app` on open sockets on the calling thread."""

    def __init__(
        self, app: Any, config: ServerConfig, binds: Sequence[Bind], *, slot: _native.Slot | None = None
    ) -> None:
        self._grace = config.timeout_graceful_shutdown
        self._stopping = threading.Event()
        self._now = threading.Event()
        self._close_idle = threading.Event()
        self._ended = threading.Event()
        self.cancelled = 0
        """Requests that did not finish before the end."""
        if slot is not None:
            slot.stop_forwarding()
        try:
            self._native = _native.WsgiServer(app, config, binds, slot=slot, log=logs.native_log)
        except ValueError as error:
            raise StartupError(str(error)) from error

    def stop(self, now: bool = False, close_idle: bool = False) -> None:
        """Start the shutdown, from any thread or signal handler. It may be called more than once.

        `now`: close requests in flight instead of finishing them. `close_idle`: close idle connections at once,
        without `timeout_drain_idle`.
        """
        if now:
            self._now.set()
        if close_idle:
            self._close_idle.set()
        self._stopping.set()

    def reopen_logs(self) -> None:
        """Reopen the access log's file before the next line, after rotation."""
        self._native.reopen_logs()

    def fail_readiness(self) -> None:
        """Let readiness checks fail, before the shutdown."""
        self._native.fail_readiness()

    def serve(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop()`; requests in flight then have `--timeout-graceful-shutdown` to finish."""
        stopper = threading.Thread(target=self._shut_down, name="towline-stop", daemon=True)
        stopper.start()
        on_ready()
        try:
            self._native.run()
        finally:
            self._ended.set()
            self._stopping.set()
            stopper.join(1.0)

    def _shut_down(self) -> None:
        self._stopping.wait()
        if self._ended.is_set():
            return
        self._native.stop_listening()
        closes_idle = self._close_idle.is_set()
        self._native.drain(close_idle=closes_idle)
        # `run()` returns once nothing is left. Its counters are no reason to stop it: they are as old as its last
        # turn, and may not include the connections that have just been accepted.
        deadline = time.monotonic() + self._grace
        while not self._ended.wait(DRAIN_POLL) and not self._now.is_set():
            if time.monotonic() >= deadline:
                break
            if self._close_idle.is_set() and not closes_idle:
                closes_idle = True
                self._native.drain(close_idle=True)
        if not self._ended.is_set():
            self.cancelled = self._native.in_flight
            if self.cancelled:
                late = "" if self._now.is_set() else " that did not finish in time"
                logger.warning("closing %s%s", logs.counted(self.cancelled, "request"), late)
            self._native.stop()
