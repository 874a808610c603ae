"""Health of the workers, from shared memory and from the kernel.

Each worker has a slot in memory that is shared by fork. A native thread of the worker, which needs no GIL, writes
heartbeats there; its event loop writes the time of its last turn, and counters. The two times give the health:

| heartbeat | last turn | the worker is                                   |
|-----------|-----------|-------------------------------------------------|
| fresh     | fresh     | healthy                                         |
| fresh     | old       | stuck in the application: replaced              |
| old       | old       | stopped as a whole (SIGSTOP, debugger, freezer) |
"""

from __future__ import annotations

import enum
import os
import time

from .. import _native

SLOTS = 256
"""Far more slots than workers, because old workers drain while new ones serve."""
MIB = 1024 * 1024


class Health(enum.Enum):
    HEALTHY = "healthy"
    STUCK = "stuck"
    PAUSED = "paused"


class WorkerSlots:
    """The shared memory and its free slots. Slots that were never used occupy no memory."""

    def __init__(self, slots: int = SLOTS) -> None:
        self.stats = _native.SharedStats(slots)
        self._free = list(range(slots - 1, -1, -1))

    def acquire(self) -> _native.Slot:
        """A slot for a new worker. Its counters continue those of the previous worker with this slot."""
        slot = self.stats.slot(self._free.pop())
        slot.begin(0)
        return slot

    def release(self, slot: _native.Slot) -> None:
        slot.end()
        self._free.append(slot.index)


def health(slot: _native.Slot, timeout: float) -> Health:
    """The health of a worker. `timeout`: seconds after which a heartbeat or a turn is old."""
    limit = time.monotonic_ns() - int(timeout * 1e9)
    if slot.last_turn >= limit:
        return Health.HEALTHY
    return Health.STUCK if slot.heartbeat >= limit else Health.PAUSED


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 if it has ended or the figure is not available."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0
