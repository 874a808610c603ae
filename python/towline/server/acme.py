"""`--acme`, the side of the supervisor: a process that gets certificates runs when something is due, and then ends.

The process is apart because it waits for a CA, and ends because all that it knows is in the store: one that was killed is
started again. It reports failures, and when something is due again, a line each.
"""

from __future__ import annotations

import logging
import os
import signal
import time
import traceback
from typing import NoReturn

from .. import _native
from ..config import ServerConfig
from .process import become, owner
from .spawner import Start

logger = logging.getLogger("towline.server")

LONGEST_RUN = 3600
"""Seconds after which the process is ended, whatever it waits for."""
FIRST_RETRY, LAST_RETRY = 5.0, 3600.0
"""Seconds before the process runs again after it has died."""
DUE, FAILED, WAITING = "due", "failed", "waiting"
NEVER = float("inf")


class Certificates:
    """Starts the process and reads its reports. Times are seconds of `time.monotonic()`."""

    def __init__(self, config: ServerConfig, stats: _native.SharedStats, start: Start) -> None:
        self._config, self._stats, self._start_process = config, stats, start
        self.pid = self._channel = -1
        self._unread = b""
        self._next = 0.0
        self._deaths = 0
        self._at_once = False
        for name, file in zip(config.acme_names, config.acme_files, strict=True):
            if not os.path.exists(file):
                logger.warning(
                    "ACME: there is no certificate for %s yet: its TLS handshakes are refused", name
                )

    @property
    def due(self) -> float:
        """When the process is started next."""
        return NEVER if self.pid > 0 else self._next

    def descriptors(self) -> tuple[int, ...]:
        return (self._channel,) if self.pid > 0 else ()

    def at_once(self) -> None:
        """Try again now what has failed: the operator has asked for it (SIGHUP)."""
        self._at_once, self._next = True, 0.0

    def run_due(self, now: float) -> None:
        """Read the reports; start the process if it is due."""
        if self.pid > 0:
            self._read(now)
        elif now >= self._next:
            self._start()

    def _start(self) -> None:
        self._channel, write = os.pipe()
        os.set_blocking(self._channel, False)
        self._next, at_once, self._at_once = NEVER, self._at_once, False
        self.pid = self._start_process(main, (self._config, write, at_once), (write,), self._channel)
        os.close(write)

    def _read(self, now: float) -> None:
        try:
            data = os.read(self._channel, 65536)
        except BlockingIOError:
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            kind, _, value = line.decode().partition(" ")
            if kind == FAILED:
                self._stats.acme_order_failed()
            elif kind == DUE:
                self._stats.certificates_renewed(self._config.certificate_files)
                self._next = min(self._next, now + max(0.0, float(value) - time.time()))
        if not data:
            self.close()
            self._deaths = 0 if self._next < NEVER else self._deaths + 1
        if not data and self._deaths:
            import random

            delay = min(FIRST_RETRY * 2.0 ** min(self._deaths - 1, 20), LAST_RETRY) * random.uniform(1, 1.25)
            self._next = now + delay
            logger.error("ACME: the process has died; it is started again in %.0f s", delay)

    def close(self) -> None:
        if self.pid > 0:
            os.kill(self.pid, signal.SIGKILL)
            os.close(self._channel)
            os.waitpid(self.pid, 0)
            self.pid, self._unread = -1, b""


def main(config: ServerConfig, channel: int, at_once: bool) -> NoReturn:
    """The process. Its supervisor may have ended: then nobody reads the reports, and the next one is its end."""

    def report(kind: str, value: float = 0.0) -> None:
        os.write(channel, f"{kind} {value}\n".encode())

    try:
        signal.alarm(LONGEST_RUN)
        target = owner(config)
        if target is not None:
            become(target)
        from .acme_orders import Run

        report(DUE, Run(config, report, at_once=at_once).get_due())
    except BrokenPipeError:
        pass
    except BaseException:
        logger.error("ACME: %s", traceback.format_exc())
    finally:
        os._exit(0)
