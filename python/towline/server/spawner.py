"""The supervisor's side of a worker process: its record, its birth by fork, and its signals.

```
           ready                retired or stopping            exit
 Booting ─────────▶ Serving ────────────────────────▶ Draining ─────▶ (reaped)
    └───────────────────────────── exit ────────────────────────────▶
```
"""

from __future__ import annotations

import dataclasses
import enum
import os
import signal
import time
from collections.abc import Callable, Iterable

from .. import _native
from ..config import Bind, ServerConfig
from . import worker as worker_process
from .health import Board


class State(enum.Enum):
    BOOTING = "booting"
    SERVING = "serving"
    DRAINING = "draining"


@dataclasses.dataclass(eq=False)
class Worker:
    """One worker process, as the supervisor sees it. Times are `time.monotonic()` seconds."""

    pid: int
    slot: _native.Slot
    channel: int
    born: float
    state: State = State.BOOTING
    replaces: Worker | None = None
    """The worker that keeps serving until this one is ready."""
    retiring: bool = False
    """A replacement is on its way."""
    outdated: bool = False
    """Was still booting when a reload was asked for: retired as soon as it serves."""
    last_request: int | None = None
    """Retired when its slot's request counter reaches this."""
    kill_at: float | None = None
    unwell_since: float | None = None
    failure: str = ""
    _unread: bytes = b""

    def signal(self, number: signal.Signals) -> None:
        """It is our child and not yet reaped, so the id cannot be another process's."""
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            pass

    def lines(self) -> Iterable[tuple[str, str]]:
        """What it has reported since the last call: (kind, text)."""
        try:
            data = os.read(self.channel, 65536)
        except BlockingIOError:
            return
        *whole, self._unread = (self._unread + data).split(b"\n")
        for line in whole:
            kind, _, text = line.decode("ascii").partition(" ")
            yield kind, text.encode("ascii").decode("unicode_escape")


@dataclasses.dataclass(frozen=True)
class Shipyard:
    """Forks workers. `inherited`: the descriptors of the supervisor that a child must close."""

    config: ServerConfig
    binds: list[Bind]
    board: Board
    lifeline: tuple[int, int]
    inherited: Callable[[], Iterable[int]]

    def build(self, again: bool) -> Worker:
        """Fork one worker. Raises OSError when the system refuses, IndexError when every slot is taken.

        `again`: it takes the place of another.
        """
        slot = self.board.take(again)
        read, write = os.pipe()
        os.set_blocking(read, False)
        try:
            pid = fork(lambda: self._sail(slot, read, write))
        except OSError:
            os.close(read)
            self.board.give_back(slot)
            raise
        finally:
            os.close(write)
        return Worker(pid, slot, read, time.monotonic())

    def _sail(self, slot: _native.Slot, read: int, write: int) -> None:
        for fd in (*self.inherited(), self.lifeline[1], read):
            os.close(fd)
        binds = list(self.binds)
        worker_process.main(worker_process.Berth(self.config, binds, slot, write, self.lifeline[0]))


def fork(child: Callable[[], None]) -> int:
    """Fork with a clean signal state: `child` runs with default handlers and must never return."""
    handled = signal.valid_signals()
    signal.pthread_sigmask(signal.SIG_BLOCK, handled)
    try:
        pid = os.fork()
        if pid:
            return pid
        try:
            signal.set_wakeup_fd(-1)
            for number in (
                signal.SIGTERM,
                signal.SIGQUIT,
                signal.SIGHUP,
                signal.SIGCHLD,
                signal.SIGTTIN,
                signal.SIGTTOU,
            ):
                signal.signal(number, signal.SIG_DFL)
            # Ctrl-C reaches the whole group; the supervisor decides what it means.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            # Until the worker has a log to reopen there is nothing to do, and least of all to die.
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
            child()
        finally:
            os._exit(1)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
