"""What the supervisor knows of its workers without asking them: a shared board, and the kernel's figures.

Each worker has one slot of it, in memory shared by fork. Its native thread writes a heartbeat there, needing no
GIL; its loop writes the time of its last turn, and its counters. From the two times follows:

| heartbeat | last turn | the worker                                         |
|-----------|-----------|----------------------------------------------------|
| fresh     | fresh     | is well                                            |
| fresh     | old       | is stuck in the application: replaced              |
| old       | old       | is stopped as a whole (SIGSTOP, debugger, freezer) |
"""

from __future__ import annotations

import dataclasses
import enum
import os
import time

from .. import _native

SLOTS = 256
"""Slots of the board: far more than workers, because old ones drain while new ones serve."""
MIB = 1024 * 1024


class Health(enum.Enum):
    WELL = "well"
    STUCK = "stuck"
    PAUSED = "paused"


class Board:
    """The shared board and who holds which slot. Untouched slots cost no memory."""

    def __init__(self, slots: int = SLOTS) -> None:
        self._board = _native.Board(slots)
        self._free = list(range(slots - 1, -1, -1))

    def take(self, again: bool) -> _native.Slot:
        """A slot for a new worker; its counters continue those of the worker that had it before.

        `again`: it replaces a worker, which the metrics count.
        """
        slot = self._board.slot(self._free.pop())
        slot.begin(0, again)
        return slot

    def give_back(self, slot: _native.Slot) -> None:
        slot.end()
        self._free.append(slot.index)


def health(slot: _native.Slot, timeout: float) -> Health:
    """`timeout`: seconds after which a beat or a turn is old."""
    limit = time.monotonic_ns() - int(timeout * 1e9)
    if slot.last_turn >= limit:
        return Health.WELL
    return Health.STUCK if slot.heartbeat >= limit else Health.PAUSED


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 when it is gone or the system does not say."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


@dataclasses.dataclass
class Backoff:
    """How long to wait before starting a worker again: not at all once, then twice as long each time.

    A worker that has lived for `settled` seconds clears the record.
    """

    first: float = 0.1
    most: float = 30.0
    settled: float = 10.0
    _deaths: int = 0
    until: float = 0.0

    def died(self, now: float, age: float) -> float:
        """Note a death at age `age`; returns the wait in seconds."""
        self._deaths = 1 if age >= self.settled else self._deaths + 1
        wait = 0.0 if self._deaths == 1 else min(self.first * 2 ** min(self._deaths - 2, 20), self.most)
        self.until = now + wait
        return wait

    def clear(self) -> None:
        self._deaths, self.until = 0, 0.0
