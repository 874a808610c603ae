"""Health of the workers, from shared memory and from the kernel.

Each event loop of a worker has a slot in memory that the processes share. A native thread of the worker, which needs no GIL,
writes heartbeats there; the loop writes the time of its last turn, and counters. The two times give the health:

| heartbeat | last turn         | the worker is                                   |
|-----------|-------------------|-------------------------------------------------|
| fresh     | fresh             | healthy                                         |
| fresh     | old               | stuck in the application: replaced              |
| fresh     | old in some loops | partly stuck: replaced, while the others serve  |
| old       | old               | stopped as a whole (SIGSTOP, debugger, freezer) |
"""

from __future__ import annotations

import enum
import time
from collections.abc import Sequence

from .. import _native

SLOTS = 256
"""Far more slots than workers, because old workers drain while new ones serve."""
MIB = 1024 * 1024


class Health(enum.Enum):
    HEALTHY = "healthy"
    STUCK = "stuck"
    PARTLY_STUCK = "partly stuck"
    PAUSED = "paused"


class WorkerSlots:
    """The shared memory and its free slots. Slots that were never used occupy no memory.

    `descriptors`: of the memory, for processes that are not forked but inherit these.
    """

    def __init__(self, slots: int = SLOTS, descriptors: Sequence[int] | None = None) -> None:
        self.descriptors = descriptors or ()
        self.stats = _native.SharedStats(slots, descriptors)
        self._free = list(range(slots - 1, -1, -1))

    def acquire(self, count: int) -> list[_native.Slot]:
        """Slots for a new worker, one for each loop. Their counters continue those of the previous loops with these slots.
        Raises IndexError if too few are free."""
        if count > len(self._free):
            raise IndexError("no slot of counters is free")
        slots = [self.stats.slot(self._free.pop()) for _ in range(count)]
        for slot in slots:
            slot.begin(0)
        return slots

    def release(self, slots: Sequence[_native.Slot]) -> None:
        for slot in reversed(slots):
            slot.end()
            self._free.append(slot.index)


def is_old(slot: _native.Slot, timeout: float) -> bool:
    """Whether a loop has not turned for `timeout` seconds."""
    return slot.last_turn < time.monotonic_ns() - int(timeout * 1e9)


def health(slots: Sequence[_native.Slot], timeout: float) -> Health:
    """The health of a worker, by the slots of its loops. `timeout`: seconds after which a heartbeat or a turn is old."""
    limit = time.monotonic_ns() - int(timeout * 1e9)
    old = [slot for slot in slots if is_old(slot, timeout)]
    if not old:
        return Health.HEALTHY
    if slots[0].heartbeat < limit:
        return Health.PAUSED
    return Health.STUCK if len(old) == len(slots) else Health.PARTLY_STUCK
