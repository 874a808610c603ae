"""Steadiness of a series of windows: a test for a step, a slope or a curve that takes autocorrelation into
account.

Warm-up is over when the test finds nothing in the last windows. A change must be both too large for the noise and
large enough to matter. The noise of neighbouring windows is correlated (caches, other programs), so its variance is
the long-run one: Bartlett's weights, as in Newey and West 1987.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Literal

EDGE = 3
"""Minimum number of windows on either side of a step."""
FEWEST = 2 * EDGE + 2
MATTERS = 0.02
"""A change of less than 2 % has no effect on a comparison whose slices alternate."""
CRITICAL = {"step": 8.0, "slope": 6.0, "curve": 4.0}
"""Critical values: under the noise model of tests/bench at most 3 of 100 steady series of 8 to 20 windows exceed
each."""
LARGEST_DRIFT = 0.05
"""A change that is neither step nor slope counts as a curve if it is larger than wandering noise."""


@dataclass(frozen=True)
class Change:
    """The likeliest change of the mean within a series."""

    shape: Literal["step", "slope", "curve"]
    at: int
    """The first window after a step; 0 for changes of the whole series."""
    size: float
    """From before to after, or from end to end, of the logarithms: 0.1 is about +10 %."""
    score: float
    """The size in standard errors; for a curve, in those of one window."""

    @property
    def significant(self) -> bool:
        """Whether it is too large for the noise, and large enough to matter."""
        least = LARGEST_DRIFT if self.shape == "curve" else MATTERS
        return self.score >= CRITICAL[self.shape] and abs(self.size) >= least


def changes(values: Sequence[float]) -> list[Change]:
    """The best change of each shape in positive figures, one per window; empty for too few of them."""
    if len(values) < FEWEST:
        return []
    logs = [math.log(value) for value in values]
    steps = (_step(logs, at) for at in range(EDGE, len(logs) - EDGE + 1))
    return [max(steps, key=lambda step: step.score), _slope(logs), _curve(logs)]


def is_steady(values: Sequence[float], windows: int = 20) -> bool:
    """Whether the last `windows` figures show no significant change. False if there are fewer, or one is not
    positive."""
    last = values[-windows:]
    if len(last) < max(windows, FEWEST) or min(last) <= 0:
        return False
    return not any(change.significant for change in changes(last))


def _step(logs: Sequence[float], at: int) -> Change:
    before, after = logs[:at], logs[at:]
    first, second = fmean(before), fmean(after)
    left = [value - first for value in before] + [value - second for value in after]
    error = math.sqrt(_long_run_variance(left) * (1 / len(before) + 1 / len(after)))
    return Change("step", at, second - first, _score(second - first, error))


def _slope(logs: Sequence[float]) -> Change:
    n, mean = len(logs), fmean(logs)
    times = [index - (n - 1) / 2 for index in range(n)]
    spread = sum(time * time for time in times)
    slope = sum(time * value for time, value in zip(times, logs, strict=True)) / spread
    left = [value - mean - slope * time for time, value in zip(times, logs, strict=True)]
    error = math.sqrt(_long_run_variance(left) / spread)
    return Change("slope", 0, slope * (n - 1), _score(slope, error))


def _curve(logs: Sequence[float]) -> Change:
    """From the first third to the last, compared with differences of neighbours: an approach is neither step nor
    line."""
    third = len(logs) // 3
    size = fmean(logs[-third:]) - fmean(logs[:third])
    # The median of |x - y| of two normal variables is 0.9539 of their deviation.
    near = median(abs(one - other) for one, other in pairwise(logs)) / 0.9539
    return Change("curve", 0, size, _score(size, near))


def _score(size: float, error: float) -> float:
    if error:
        return abs(size) / error
    return math.inf if size else 0.0


def _long_run_variance(left: Sequence[float]) -> float:
    """The long-run variance of the residuals; Bartlett's weights over the cube root of the length."""
    n = len(left)
    reach = max(1, round(n ** (1 / 3)))
    total = sum(one * one for one in left)
    for lag in range(1, reach + 1):
        shared = sum(one * other for one, other in zip(left, left[lag:], strict=False))
        total += 2 * (1 - lag / (reach + 1)) * shared
    return max(total, 0.0) / n
