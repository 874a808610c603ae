"""Latencies for the RPC: percentiles, and an HdrHistogram.

The layout is HdrHistogram's V2 (three significant digits, from 1 ns), deflated and in base64:
https://github.com/HdrHistogram/HdrHistogram, `AbstractHistogram.encodeIntoCompressedByteBuffer`.
"""

from __future__ import annotations

import math
import struct
import zlib
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Sequence

COOKIE, DEFLATED_COOKIE = 0x1C849313, 0x1C849314
DIGITS = 3
SUB_BITS = 11
"""Bits of the 2,048 steps that three digits need within each power of two."""
HALF_BITS = SUB_BITS - 1
HIGHEST_NS = 3_600_000_000_000


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """The fields of record.Latency, in microseconds, by nearest rank."""
    times = sorted(seconds)
    if not times:
        return {"count": 0}
    ranks = {"p50_us": 0.5, "p90_us": 0.9, "p95_us": 0.95, "p99_us": 0.99, "p99_9_us": 0.999}
    found = {name: times[max(0, math.ceil(share * len(times)) - 1)] for name, share in ranks.items()}
    found |= {"mean_us": math.fsum(times) / len(times), "min_us": times[0], "max_us": times[-1]}
    return {"count": len(times)} | {name: round(value * 1e6, 3) for name, value in found.items()}


def encode(seconds: Sequence[float]) -> str:
    counts = Counter(_index(min(HIGHEST_NS, max(1, round(value * 1e9)))) for value in seconds)
    payload = b"".join(map(_zigzag, _runs(counts)))
    head = struct.pack(">iiiiqqd", COOKIE, len(payload), 0, DIGITS, 1, HIGHEST_NS, 1.0)
    packed = zlib.compress(head + payload)
    return b64encode(struct.pack(">ii", DEFLATED_COOKIE, len(packed)) + packed).decode()


def _index(value_ns: int) -> int:
    bucket = (value_ns | ((1 << SUB_BITS) - 1)).bit_length() - SUB_BITS
    return (bucket << HALF_BITS) + (value_ns >> bucket)


def _runs(counts: Counter[int]) -> Iterator[int]:
    """Counts in order; a run of zeros is its length, negative."""
    last = -1
    for index in sorted(counts):
        if index - last > 1:
            yield last + 1 - index
        yield counts[index]
        last = index


def _zigzag(value: int) -> bytes:
    left = (value << 1) ^ (value >> 63)
    found = bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    found.append(left)
    return bytes(found)
