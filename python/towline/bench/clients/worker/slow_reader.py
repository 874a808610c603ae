"""The slow reader: memory of a client whose body arrives faster than it is read.

Growth is resident memory above its level after a similar stream has been read without a pause.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from pathlib import Path
from typing import Any

from .adapters.base import PIECE_BYTES, AsyncAdapter, SyncAdapter
from .job import Job

PIECE_S, EVENT_S = 0.05, 0.1
ENOUGH_MIB = 256
"""A client that grows without bound is stopped here."""
WARM_UP = {"slow_pieces": "/bytes?n=4000000", "slow_events": "/sse?per_s=2000&n=100&bytes=200"}


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class SlowReader:
    """Counts the bytes read, returns when the next read is due, and samples the memory."""

    def __init__(self, adapter: AsyncAdapter | SyncAdapter, job: Job, seconds: float) -> None:
        self.adapter, self.events = adapter, job.kind == "slow_events"
        gc.collect()
        self.before, self.most, self.max_buffered_bytes = rss_bytes(), 0, 0
        self.cpu_before = time.process_time()
        self.began = time.perf_counter()
        self.end = self.began + seconds
        self.taken = self.units = 0

    def pause(self, piece: bytes) -> float | None:
        """Seconds until the next read; `None`: the end."""
        self.taken += len(piece)
        self.units += 1
        self.most = max(self.most, rss_bytes() - self.before)
        self.max_buffered_bytes = max(self.max_buffered_bytes, self.adapter.buffered() or 0)
        now = time.perf_counter()
        if now > self.end or self.most > ENOUGH_MIB << 20:
            return None
        due = self.units * EVENT_S if self.events else self.taken / PIECE_BYTES * PIECE_S
        return max(0.0, self.began + due - now)

    def result(self) -> dict[str, Any]:
        """The result for the RPC, with the names of record.Slice."""
        seconds = time.perf_counter() - self.began
        extra = {
            "rss_growth_bytes": self.most,
            "taken_bytes": self.taken,
            "stopped_for_growth": float(self.most > ENOUGH_MIB << 20),
        }
        if self.adapter.buffered() is not None:
            extra["buffered_bytes"] = self.max_buffered_bytes
        return {
            "answered": self.units,
            "failed": 0,
            "measured_s": seconds,
            "whole_s": seconds,
            "cpu_s": time.process_time() - self.cpu_before,
            "body_bytes": self.taken,
            "extra": extra,
        }


async def async_slow(adapter: AsyncAdapter, job: Job, seconds: float) -> dict[str, Any]:
    stream = adapter.events if job.kind == "slow_events" else adapter.pieces
    async for _ in stream(WARM_UP[job.kind]):
        pass
    reader, endless = SlowReader(adapter, job, seconds), stream(job.path)
    async for piece in endless:
        pause = reader.pause(piece)
        if pause is None:
            break
        await asyncio.sleep(pause)
    result = reader.result()
    await endless.aclose()
    return result


def sync_slow(adapter: SyncAdapter, job: Job, seconds: float) -> dict[str, Any]:
    stream = adapter.events if job.kind == "slow_events" else adapter.pieces
    for _ in stream(WARM_UP[job.kind]):
        pass
    reader, endless = SlowReader(adapter, job, seconds), stream(job.path)
    for piece in endless:
        pause = reader.pause(piece)
        if pause is None:
            break
        time.sleep(pause)
    result = reader.result()
    endless.close()
    return result
