"""One WSGI worker: the native server blocks in Rust on this thread; ending it is another thread's business."""

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
"""Seconds between two looks at what is still in flight, while draining only."""


class WsgiWorker:
    """Serves `app` on sockets that are already open, on the calling thread."""

    def __init__(
        self, app: Any, config: ServerConfig, binds: Sequence[Bind], *, slot: _native.Slot | None = None
    ) -> None:
        self._grace = config.timeout_graceful_shutdown
        self._stopping = threading.Event()
        self._now = threading.Event()
        self._over = threading.Event()
        try:
            self._native = _native.WsgiServer(app, config, binds, slot=slot, log=logs.native_log)
        except ValueError as error:
            raise StartupError(str(error)) from error

    def stop(self, now: bool = False) -> None:
        """Begin to end; callable from a signal handler and from any thread. Twice changes nothing."""
        if now:
            self._now.set()
        self._stopping.set()

    def reopen_logs(self) -> None:
        """The access log was rotated: open its file anew before the next line."""
        self._native.reopen_logs()

    def serve(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop()`: what is in flight is finished, at most for `--timeout-graceful-shutdown`."""
        ender = threading.Thread(target=self._end, name="towline-stop", daemon=True)
        ender.start()
        on_ready()
        try:
            self._native.run()
        finally:
            self._over.set()
            self._stopping.set()
            ender.join(1.0)

    def _end(self) -> None:
        self._stopping.wait()
        if self._over.is_set():
            return
        self._native.stop_listening()
        self._native.drain()
        # `run()` ends by itself once nothing is left. Its figures are no reason to stop it: they are as old
        # as its last turn, and the accepted queue may not stand in them yet.
        deadline = time.monotonic() + self._grace
        while not self._over.wait(DRAIN_POLL) and not self._now.is_set():
            if time.monotonic() >= deadline:
                break
        if not self._over.is_set():
            if self._native.in_flight:
                logger.warning("closing %d requests that did not finish in time", self._native.in_flight)
            self._native.stop()
