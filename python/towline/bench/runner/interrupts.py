"""Ctrl-C at any moment: the first one ends the run in order, and never between a start and its stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """The user, or the system, requests the end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


class Interrupts:
    """Context in which the first signal raises `Interrupted`, and later ones are ignored. For the main thread.

    They remain ignored until the process has ended: an interpreter that exits restores the system's handlers, and a
    second signal in those milliseconds would change the exit status.
    """

    _current: Interrupts | None = None

    def __init__(self, report: Callable[[str], None]) -> None:
        self._say = report
        self._heard: int | None = None
        self._holding, self._raised = 0, False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
            Interrupts._current = self
        return self

    def __exit__(self, *_: object) -> None:
        Interrupts._current = None
        for number, handler in self._before.items():
            signal.signal(number, handler if self._heard is None else signal.SIG_IGN)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._heard is None:
            self._heard = number
            self._say("stopping all subjects; measurements are kept")
            self._raise()

    def _raise(self) -> None:
        if self._heard is not None and not self._holding and not self._raised:
            self._raised = True
            raise Interrupted(self._heard)


@contextmanager
def deferred() -> Iterator[None]:
    """Defers signals to the end of the block: stopping a process must not be interrupted."""
    current = Interrupts._current
    if current is None:
        yield
        return
    current._holding += 1
    try:
        yield
    finally:
        current._holding -= 1
    current._raise()
