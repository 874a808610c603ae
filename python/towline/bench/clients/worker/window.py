"""The measured part of a slice.

```text
 begin ──discarded──► open ───────measured───────► close ──in flight, awaited──► end
```

A window opens and closes at the end of a response, so that responses, time and CPU time match exactly. It has its
whole length from there on: a stall counts as a whole if it begins in the window, and not at all otherwise. A latency
counts if its request began in the window, also if the response ends after it.
"""

from __future__ import annotations

import resource
import time
from collections import Counter
from typing import Any

from .histogram import encode, percentiles

MAX_FAILURES = 100
"""A slice ends after this many failures."""


class WrongResponse(Exception):
    """An unexpected response."""

    def __init__(self, status: int | None, text: str) -> None:
        super().__init__(text)
        self.kind = "content" if status in (None, 200) else "status"


def switches() -> int:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_nvcsw + used.ru_nivcsw


class Window:
    """One slice. Every caller calls `note` after each response. It is thread-safe: at worst, two callers that
    end at the same moment both see the window open, and one more response is left out."""

    def __init__(self, seconds: float | None, discard: float) -> None:
        self.latencies: list[float] = []
        self.answered = 0
        self.errors: Counter[str] = Counter()
        self.first_failure: str | None = None
        self.seconds, self.discard = seconds, discard
        self.opened = self.closed = False
        self.began = time.perf_counter()
        self.open_at = self.close_at = float("inf")

    def begin(self) -> None:
        """Starts the clock. Without a time (for a count) the window opens at once."""
        self.began = time.perf_counter()
        if self.seconds is None:
            self._open(self.began)
        else:
            self.open_at = self.began + self.discard
            self.close_at = self.began + self.seconds

    def _open(self, now: float) -> None:
        self.opened_at = now
        if self.seconds is not None:
            self.close_at = max(self.close_at, now + self.seconds - self.discard)
        self.opened = True
        self.cpu_before, self.switches_before = time.process_time(), switches()

    def _close(self, now: float) -> None:
        self.closed, self.closed_at = True, now
        self.cpu_s = time.process_time() - self.cpu_before
        self.switches = switches() - self.switches_before

    def note(self, began: float, ended: float) -> None:
        if self.opened:
            if began >= self.opened_at:
                self.latencies.append(ended - began)
            if not self.closed:
                self.answered += 1
                if ended >= self.close_at:
                    self._close(ended)
        elif ended >= self.open_at:
            self._open(ended)

    def fail(self, error: BaseException) -> None:
        """Counts a failure, also outside the window: there must be none."""
        self.errors[kind_of(error)] += 1
        self.first_failure = self.first_failure or f"{type(error).__name__}: {error}"[:300]
        now = time.perf_counter()
        if not self.closed and (now >= self.close_at or sum(self.errors.values()) >= MAX_FAILURES):
            if not self.opened:
                self._open(now)
            self._close(now)

    def end(self) -> None:
        """All callers are done; closes the window if it is still open."""
        now = time.perf_counter()
        self.whole_s = now - self.began
        if not self.opened:
            self._open(now)
        if not self.closed:
            self._close(now)

    def found(self, expected_bytes: int, batch: int = 1) -> dict[str, Any]:
        """The result for the RPC, with the names of record.Slice."""
        answered, measured_s = self.answered, self.closed_at - self.opened_at
        return {
            "answered": answered,
            "failed": sum(self.errors.values()),
            "measured_s": measured_s,
            "whole_s": self.whole_s,
            "cpu_s": self.cpu_s,
            "switches": self.switches,
            "body_bytes": answered * batch * expected_bytes,
            "errors": dict(self.errors),
            "first_failure": self.first_failure,
            "response": percentiles(self.latencies),
            "histogram": encode(self.latencies) if self.latencies else None,
            "extra": {"requests_per_s": answered * batch / measured_s} if batch > 1 and measured_s else {},
        }


def kind_of(error: BaseException) -> str:
    """The class of an error, with the names of record.Slice, derived from the exception's name."""
    if isinstance(error, WrongResponse):
        return error.kind
    name = type(error).__name__.lower()
    for word, kind in (
        ("timeout", "timeout"),
        ("reset", "reset"),
        ("connect", "connect"),
        ("refused", "connect"),
    ):
        if word in name:
            return kind
    return "protocol"
