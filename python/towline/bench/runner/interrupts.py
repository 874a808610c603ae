"""Ctrl-C at any moment: the first one ends the run in order, and never between a thing and its being stopped."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """The user, or the system, wants us to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


class Interrupts:
    """While inside, the first signal raises `Interrupted`; the rest are not heard. For the main thread.

    After one was heard they stay unheard until the process has ended: an interpreter that is leaving puts Python's
    handlers back to the system's, and a second signal in those milliseconds would take the exit status with it.
    """

    _current: Interrupts | None = None

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._heard: int | None = None
        self._holding, self._raised = 0, False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
            Interrupts._current = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        Interrupts._current = None
        for number, handler in self._before.items():
            signal.signal(number, handler if self._heard is None else signal.SIG_IGN)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._heard is None:
            self._heard = number
            self._say("ending: what runs is stopped, what was measured is kept")
            self._raise()

    def _raise(self) -> None:
        if self._heard is not None and not self._holding and not self._raised:
            self._raised = True
            raise Interrupted(self._heard)


@contextmanager
def deferred() -> Iterator[None]:
    """A signal that comes inside is heard at the end: stopping a process must not be stopped itself."""
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
