"""The slow reader: what a client holds of a body that comes faster than it is taken.

Growth is resident memory above what it was after a like stream had been read without a pause.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from pathlib import Path
from typing import Any

from .adapters.base import PIECE_BYTES, AsyncAdapter, SyncAdapter
from .cells import Cell

PIECE_S, EVENT_S = 0.05, 0.1
# A client that grows without bound is stopped here.
ENOUGH_MIB = 256
WARM_UP = {"slow_pieces": "/bytes?n=4000000", "slow_events": "/sse?per_s=2000&n=100&bytes=200"}


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Watch:
    """Counts what was taken, says when the next piece is due, and looks at the memory meanwhile."""

    def __init__(self, adapter: AsyncAdapter | SyncAdapter, cell: Cell, seconds: float) -> None:
        self.adapter, self.events = adapter, cell.load == "slow_events"
        gc.collect()
        self.before, self.most, self.held = rss_bytes(), 0, 0
        self.began = time.perf_counter()
        self.end = self.began + seconds
        self.taken = self.units = 0

    def pause(self, piece: bytes) -> float | None:
        """Seconds until the next read; `None`: it is over."""
        self.taken += len(piece)
        self.units += 1
        self.most = max(self.most, rss_bytes() - self.before)
        self.held = max(self.held, self.adapter.buffered() or 0)
        now = time.perf_counter()
        if now > self.end or self.most > ENOUGH_MIB << 20:
            return None
        due = self.units * EVENT_S if self.events else self.taken / PIECE_BYTES * PIECE_S
        return max(0.0, self.began + due - now)

    def record(self) -> dict[str, Any]:
        seconds = time.perf_counter() - self.began
        return {
            "growth_mib": round(self.most / (1 << 20), 2),
            "buffered_bytes": self.held if self.adapter.buffered() is not None else None,
            "taken_bytes": self.taken,
            "seconds": round(seconds, 2),
            "stopped": self.most > ENOUGH_MIB << 20,
        }


async def async_slow(adapter: AsyncAdapter, cell: Cell, seconds: float) -> dict[str, Any]:
    def stream(path: str) -> Any:
        return adapter.events(path) if cell.load == "slow_events" else adapter.pieces(path)

    async for _ in stream(WARM_UP[cell.load]):
        pass
    watch, endless = Watch(adapter, cell, seconds), stream(cell.path)
    async for piece in endless:
        pause = watch.pause(piece)
        if pause is None:
            break
        await asyncio.sleep(pause)
    found = watch.record()
    await endless.aclose()
    return found


def sync_slow(adapter: SyncAdapter, cell: Cell, seconds: float) -> dict[str, Any]:
    def stream(path: str) -> Any:
        return adapter.events(path) if cell.load == "slow_events" else adapter.pieces(path)

    for _ in stream(WARM_UP[cell.load]):
        pass
    watch, endless = Watch(adapter, cell, seconds), stream(cell.path)
    for piece in endless:
        pause = watch.pause(piece)
        if pause is None:
            break
        time.sleep(pause)
    return watch.record()
