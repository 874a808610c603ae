"""Signals as bytes on a pipe (`signal.set_wakeup_fd`); the handlers do nothing."""

from __future__ import annotations

import os
import signal

from . import signal_handlers

WATCHED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGCHLD,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGUSR1,
)


class SignalPipe:
    """Receives the supervisor's signals until `close()`, which restores the handlers."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe()
        os.set_blocking(self.read, False)
        os.set_blocking(self.write, False)
        for number in WATCHED:
            # The interpreter writes the number to the wake-up descriptor if there is a handler.
            signal_handlers.ignore(number)
        self._wakeup_before = signal.set_wakeup_fd(self.write, warn_on_full_buffer=False)

    def descriptors(self) -> tuple[int, int]:
        return self.read, self.write

    def take(self) -> list[int]:
        """The signals since the last call, each as often as it was delivered."""
        try:
            return list(os.read(self.read, 4096))
        except BlockingIOError:
            return []

    def close(self) -> None:
        signal.set_wakeup_fd(self._wakeup_before)
        signal_handlers.restore()
        os.close(self.read)
        os.close(self.write)
