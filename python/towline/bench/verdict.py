"""The one rule of "faster": from an interval and a p-value to a verdict. Analysis and comparison of results use it.

```text
whole interval within the margin ── yes ─► equivalent
        │ no
p below alpha ── no ─► undecided
        │ yes
signed-rank test of pairs disagrees ── yes ─► unstable
        │ no
        └─► faster or slower, by the direction of the metric        a guard's reason: no verdict
```
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median

from . import statistics

MARGIN = 0.02
"""Differences within the margin of 2 % are irrelevant."""
ALPHA = 0.05
"""Significance level of a verdict, unless the stopping rule of the record has a stricter one (`settings["alpha"]`)."""
HIGHER_IS_BETTER = frozenset({"per_s"})


class Verdict(str, Enum):
    """The verdict on one subject compared with another."""

    FASTER = "faster"
    SLOWER = "slower"
    EQUIVALENT = "equivalent"
    UNDECIDED = "undecided"
    UNSTABLE = "unstable"
    """The t-interval and the signed-rank test disagree."""
    REFUSED = "no verdict"
    """A guard found the figures unreliable; `Comparison.reason` has the reason."""


@dataclass(frozen=True)
class LogDifference:
    """A mean difference of logarithms with its interval."""

    mean: float
    low: float
    high: float
    p: float
    """Already adjusted for the family of comparisons."""


def decide(
    metric: str,
    found: LogDifference,
    margin: float = MARGIN,
    alpha: float = ALPHA,
    *,
    pairs: Sequence[float] = (),
    reason: str | None = None,
) -> Verdict:
    """The verdict on a difference. `pairs`: its log ratios by restart, if the two were measured together."""
    if reason is not None:
        return Verdict.REFUSED
    edge = math.log1p(margin)
    if -edge < found.low and found.high < edge:
        return Verdict.EQUIVALENT
    if found.p >= alpha:
        return Verdict.UNDECIDED
    if pairs and not _agrees(pairs, found.mean):
        return Verdict.UNSTABLE
    return Verdict.FASTER if (found.mean > 0) == (metric in HIGHER_IS_BETTER) else Verdict.SLOWER


def loss(metric: str, ratio: float) -> float:
    """The share by which a ratio is worse than 1: 0.1 for 10 %; negative when it is better."""
    return 1 - ratio if metric in HIGHER_IS_BETTER else ratio - 1


def _agrees(pairs: Sequence[float], mean: float) -> bool:
    """Whether the signed-rank test agrees. Fewer than six restarts are never significant by it: they must only have
    the same sign."""
    if len(pairs) >= 6 and statistics.signed_rank_p(pairs) >= 2 * ALPHA:
        return False
    return (median(pairs) > 0) == (mean > 0)
