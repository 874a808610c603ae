"""Metrics of the calls of one subject. Pure.

Time to first token is that of the first piece of text. The inter-token latency per chunk is the time between pieces;
per token, it is divided by the average tokens of a chunk. TPOT = (end - first) / (tokens - 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..record import Latency, Slice

TOO_MANY = 429


@dataclass(frozen=True)
class Objectives:
    """Limits that a good call meets."""

    first_token_ms: float = 1000.0
    per_token_ms: float = 50.0


@dataclass(frozen=True)
class Call:
    """One response; times in seconds from the request."""

    status: int
    total_s: float
    times_s: tuple[float, ...] = ()
    """The time of each piece of text."""
    tokens: int | None = None
    server_s: float | None = None
    """Duration in the mock endpoint itself."""
    wrong: bool = False
    """The text differs from what was sent."""
    error: str | None = None

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Call:
        """From the worker's data."""
        return cls(**{**plain, "times_s": tuple(plain["times_s"])})

    @property
    def good(self) -> bool:
        return self.status == 200 and not self.wrong and self.error is None and bool(self.times_s)

    @property
    def counted_tokens(self) -> int:
        """Without a token count, each piece counts as a token."""
        return self.tokens or len(self.times_s)

    @property
    def first_s(self) -> float:
        return self.times_s[0]

    @property
    def per_token_s(self) -> float | None:
        """TPOT; None for a response of one token."""
        if self.counted_tokens < 2:
            return None
        return (self.times_s[-1] - self.times_s[0]) / (self.counted_tokens - 1)

    @property
    def gaps_s(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.times_s, self.times_s[1:], strict=False)]

    def meets(self, goal: Objectives) -> bool:
        return (
            self.good
            and self.first_s * 1e3 <= goal.first_token_ms
            and (self.per_token_s or 0.0) * 1e3 <= goal.per_token_ms
        )

    @property
    def kind(self) -> str:
        """The class of its failure, with the names of record.Slice."""
        if self.wrong:
            return "content"
        if self.status not in (0, 200):
            return "status"
        text = (self.error or "").lower()
        for word in ("timeout", "reset", "connect"):
            if word in text:
                return word
        return "protocol"


@dataclass(frozen=True)
class CallBatch:
    """All calls of one subject in one restart."""

    calls: list[Call]
    took_s: float
    cpu_s: float = 0.0
    rss_growth_bytes: int = 0
    began_unix_s: float = 0.0
    errors: dict[str, int] = field(default_factory=dict)


def percentile(values: Sequence[float], share: float) -> float:
    """By nearest rank; 0 without values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def latency(seconds: Sequence[float]) -> Latency:
    if not seconds:
        return Latency()
    ranks = {"p50_us": 0.5, "p90_us": 0.9, "p95_us": 0.95, "p99_us": 0.99, "p99_9_us": 0.999}
    found = {name: percentile(seconds, share) * 1e6 for name, share in ranks.items()}
    mean_us = math.fsum(seconds) / len(seconds) * 1e6
    return Latency(
        count=len(seconds), mean_us=mean_us, min_us=min(seconds) * 1e6, max_us=max(seconds) * 1e6, **found
    )


def slice_of(subject: str, taken: CallBatch, goal: Objectives, restart: int = 0, position: int = 0) -> Slice:
    """The slice for the report. Refusals (429) are counted apart from failures; times are those of good calls."""
    good = [call for call in taken.calls if call.good]
    refused = [call for call in taken.calls if call.status == TOO_MANY]
    bad = [call for call in taken.calls if not call.good and call.status != TOO_MANY]
    errors: dict[str, int] = {}
    for call in bad:
        errors[call.kind] = errors.get(call.kind, 0) + 1
    return Slice(
        subject=subject,
        restart=restart,
        round=0,
        position=position,
        began_unix_s=taken.began_unix_s,
        measured_s=taken.took_s,
        answered=len(good),
        failed=len(bad),
        refused=len(refused),
        response=latency([call.total_s for call in good]),
        first_byte=latency([call.first_s for call in good]),
        subject_cpu_s=taken.cpu_s,
        subject_busiest_share=min(1.0, taken.cpu_s / taken.took_s) if taken.took_s else 0.0,
        errors=errors,
        first_failure=next((_why(call) for call in bad), None),
        extra=user_metrics(good, taken, goal),
    )


def _why(call: Call) -> str:
    if call.wrong:
        return "the text differs from what the endpoint sent"
    return call.error or "a response without text"


def user_metrics(good: Sequence[Call], taken: CallBatch, goal: Objectives) -> dict[str, float]:
    """The figures for users, with units in the names."""
    if not good:
        return {}
    gaps_ms = [gap * 1e3 for call in good for gap in call.gaps_s]
    per_token_ms = [call.per_token_s * 1e3 for call in good if call.per_token_s is not None]
    token_gaps_ms = [
        gap * 1e3 * len(call.times_s) / call.counted_tokens for call in good for gap in call.gaps_s
    ]
    first_ms = [call.first_s * 1e3 for call in good]
    added_ms = [(call.total_s - call.server_s) * 1e3 for call in good if call.server_s is not None]
    meeting = sum(call.meets(goal) for call in good)
    tokens = sum(call.counted_tokens for call in good)
    total_ms = [call.total_s * 1e3 for call in good]
    found = {
        "total_p50_ms": percentile(total_ms, 0.5),
        "total_p95_ms": percentile(total_ms, 0.95),
        "total_mean_ms": math.fsum(total_ms) / len(total_ms),
        "total_min_ms": min(total_ms),
        "total_max_ms": max(total_ms),
        "ttft_p50_ms": percentile(first_ms, 0.5),
        "ttft_p95_ms": percentile(first_ms, 0.95),
        "itl_chunk_p50_ms": percentile(gaps_ms, 0.5),
        "itl_chunk_p99_ms": percentile(gaps_ms, 0.99),
        "itl_token_p50_ms": percentile(token_gaps_ms, 0.5),
        "tpot_p50_ms": percentile(per_token_ms, 0.5),
        "tpot_p95_ms": percentile(per_token_ms, 0.95),
        "call_tokens_per_s": tokens / math.fsum(call.total_s for call in good),
        "goodput_share": meeting / len(taken.calls),
        "goodput_per_s": meeting / taken.took_s if taken.took_s else 0.0,
        "rss_growth_bytes": float(taken.rss_growth_bytes),
    }
    if added_ms:
        found |= {"added_p50_ms": percentile(added_ms, 0.5), "added_p95_ms": percentile(added_ms, 0.95)}
    if any(call.tokens is None for call in good):
        found["pieces_taken_for_tokens"] = 1.0
    return found
