"""Latency histograms in records: HdrHistogram V2, deflated, base64.

```text
base64 ─► cookie, length, zlib ─► cookie, length, offset, digits, lowest, highest, ratio ─► counts (ZigZag LEB128-64b9B)
```

A negative count is a run of empty slots. Histograms of one layout are merged by adding their counts.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

COMPRESSED, PLAIN = 0x1C849304, 0x1C849303
"""Cookies of version 2; bits 4 to 7 of a cookie are the word size, which is not used."""
HEADER = struct.Struct(">iiiiqqd")
MAX_BYTES = 8 << 20
"""Limit of a decoded histogram."""


class NotAHistogram(ValueError):
    """The text is not an HdrHistogram of version 2; the message has the reason."""


@dataclass(frozen=True)
class Histogram:
    """Counts by slot. Values are whole numbers in the unit they were recorded in."""

    digits: int
    lowest: int
    counts: dict[int, int]

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def at(self, share: float) -> int:
        """The highest value of the slot that holds the `share` quantile (0 to 1); 0 if empty."""
        wanted = max(1, math.ceil(share * self.total - 1e-9))
        seen = 0
        for slot in sorted(self.counts):
            seen += self.counts[slot]
            if seen >= wanted:
                return self._highest(slot)
        return 0

    def curve(self) -> Iterator[tuple[float, int]]:
        """(share of the samples at or below, value) for each slot that is not empty."""
        seen, total = 0, self.total
        for slot in sorted(self.counts):
            seen += self.counts[slot]
            yield seen / total, self._highest(slot)

    def _highest(self, slot: int) -> int:
        half, unit = _layout(self.digits, self.lowest)
        bucket = (slot >> half) - 1
        within = (slot & ((1 << half) - 1)) + (1 << half)
        if bucket < 0:
            bucket, within = 0, within - (1 << half)
        return ((within + 1) << (bucket + unit)) - 1


def merge(histograms: Iterable[Histogram]) -> Histogram | None:
    """One histogram of all samples; None without any. Raises NotAHistogram when the layouts differ."""
    merged: Histogram | None = None
    for one in histograms:
        if merged is None:
            merged = Histogram(one.digits, one.lowest, dict(one.counts))
            continue
        if (one.digits, one.lowest) != (merged.digits, merged.lowest):
            raise NotAHistogram("histograms of different precision cannot be merged")
        for slot, count in one.counts.items():
            merged.counts[slot] = merged.counts.get(slot, 0) + count
    return merged


@lru_cache(maxsize=512)
def merged(texts: tuple[str, ...]) -> Histogram | None:
    """The merged histogram of several texts; cached, since each metric needs it. Raises NotAHistogram."""
    return merge(decode(text) for text in texts)


def decode(text: str) -> Histogram:
    """Raises NotAHistogram."""
    try:
        packed = base64.b64decode(text, validate=True)
        cookie, length = struct.unpack_from(">ii", packed)
        if cookie & ~0xF0 != COMPRESSED:
            raise NotAHistogram(f"cookie {cookie:#x}: not a deflated HdrHistogram of version 2")
        inflate = zlib.decompressobj()
        data = inflate.decompress(packed[8 : 8 + length], MAX_BYTES)
        cookie, length, _, digits, lowest, _, _ = HEADER.unpack_from(data)
    except (binascii.Error, struct.error, zlib.error) as error:
        raise NotAHistogram(f"not an HdrHistogram ({error})") from None
    if cookie & ~0xF0 != PLAIN or not 0 <= digits <= 5 or lowest < 1:
        raise NotAHistogram(f"cookie {cookie:#x}, {digits} digits: not an HdrHistogram of version 2")
    if not inflate.eof or len(data) < HEADER.size + length:
        raise NotAHistogram("the histogram ends early")
    return Histogram(digits, lowest, _counts(data[HEADER.size : HEADER.size + length]))


def _counts(payload: bytes) -> dict[int, int]:
    counts: dict[int, int] = {}
    slot, position, end = 0, 0, len(payload)
    while position < end:
        value = payload[position]
        if value < 0x80:  # most counts are one byte
            position += 1
            value = (value >> 1) ^ -(value & 1)
        else:
            value, position = _varint(payload, position)
        if value < 0:
            slot -= value
            continue
        if value:
            counts[slot] = value
        slot += 1
    return counts


def _varint(payload: bytes, position: int) -> tuple[int, int]:
    """ZigZag LEB128 of at most nine bytes, the ninth carrying eight bits."""
    value = shift = 0
    while True:
        if position >= len(payload):
            raise NotAHistogram("the histogram ends within a count")
        byte = payload[position]
        position += 1
        if shift == 56:
            value |= byte << shift
            break
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return (value >> 1) ^ -(value & 1), position


def _layout(digits: int, lowest: int) -> tuple[int, int]:
    """Bits of half a bucket, and bits below the unit, as HdrHistogram derives them."""
    half = max(1, math.ceil(math.log2(2 * 10**digits))) - 1
    return half, lowest.bit_length() - 1
