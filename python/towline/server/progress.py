"""Reports of the start, the reloads and the end of a server, for its log and for systemd."""

from __future__ import annotations

import logging
import math
import time

from ..config import ServerConfig
from .logs import counted
from .notify import Notifier

logger = logging.getLogger("towline.server")


class Progress:
    """The state of a server as others see it: starting, serving, reloading or stopping.

    Times are seconds of `time.monotonic()`.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._noun = "worker thread" if config.worker_mode == "threads" else "worker"
        self.notifier = Notifier()
        self._summary = ""
        self._reload_since: float | None = None
        self.drain_at = math.inf
        """When the drain is due that a signal has announced."""
        self._stop_since: float | None = None
        self._in_flight = 0
        self._cancelled = 0

    @property
    def has_started(self) -> bool:
        """Whether all workers have served for the first time."""
        return bool(self._summary)

    @property
    def is_stopping(self) -> bool:
        return self._stop_since is not None

    @property
    def is_leaving(self) -> bool:
        """Whether readiness checks fail: from the signal on, before the drain and during it."""
        return self.drain_at < math.inf or self.is_stopping

    @property
    def reload_since(self) -> float | None:
        """When the reload in progress has begun."""
        return self._reload_since

    def counted(self, workers: int) -> str:
        """`2 workers`, or what they are."""
        return counted(workers, self._noun)

    def started(self, addresses: str, workers: int, details: str) -> None:
        """`details`: the interface, and its loop or threads (`asgi uvloop`)."""
        from .._version import __version__

        interface, _, rest = details.partition(" ")
        count = self.counted(workers)
        logger.info("Towline %s on %s (%s, %s, %s)", __version__, addresses, interface, count, rest)
        self._summary = f"{count} on {addresses}"
        self.notifier.ready(self._summary)

    def reload_begins(self, cause: str) -> None:
        logger.info("reloading: %s", cause)
        if self.has_started:
            self._reload_since = time.monotonic()
            self.notifier.reloading()

    def reload_ends(self, replaced: int, workers: int) -> None:
        """Report a reload after which `replaced` of the workers are new."""
        if self._reload_since is None:
            return
        seconds = time.monotonic() - self._reload_since
        if replaced == workers:
            logger.info("reloaded in %.1f s, %s", seconds, self.counted(workers))
        else:
            logger.error("the reload has failed: %d of %s replaced", replaced, self.counted(workers))
        self._reload_since = None
        self.notifier.ready(self._summary)

    def leave_begins(self, delay: float) -> None:
        """Note that readiness checks fail from now on, and that the drain follows after `delay` seconds."""
        logger.info(
            "stopping: readiness checks fail from now on; draining in %g s, or at a second SIGTERM", delay
        )
        self.drain_at, self._reload_since = time.monotonic() + delay, None
        self.notifier.stopping(f"serving for {delay:g} s while readiness checks fail")

    def stop_begins(self, in_flight: int, *, is_silent: bool) -> None:
        """`is_silent`: an error has been printed."""
        if not is_silent:
            logger.info("draining" if self.is_leaving else "stopping")
        self._stop_since, self.drain_at = time.monotonic(), math.inf
        self._in_flight = in_flight
        self.notifier.stopping("finishing requests in flight")

    def cancelled(self, requests: int) -> None:
        """Count requests that a worker has not finished."""
        self._cancelled += requests

    def stopped(self) -> None:
        """Report the end: how long it took, and what became of the requests in flight."""
        seconds = 0.0 if self._stop_since is None else time.monotonic() - self._stop_since
        # A kept-alive connection may have sent another request after the stop began.
        in_flight = max(self._in_flight, self._cancelled)
        if not in_flight:
            logger.info("stopped in %.1f s; no requests were in flight", seconds)
            return
        were, others = ("was" if n == 1 else "were" for n in (in_flight, self._cancelled))
        outcome = f"{self._cancelled} {others} cancelled" if self._cancelled else "none was cancelled"
        logger.info(
            "stopped in %.1f s; %s %s in flight, %s", seconds, counted(in_flight, "request"), were, outcome
        )
