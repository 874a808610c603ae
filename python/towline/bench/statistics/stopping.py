"""Stopping rules for restarts: on precision, or at planned looks; never because a difference is significant.

Looking until something is significant finds a difference in 22 % of comparisons of equal subjects. Five planned
looks, each at 0.0158, find one in 5 % in total (Pocock 1977). The width of an interval says nothing about the sign,
so that precision may be checked after every restart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from .estimates import t_interval, t_p

LOOKS = 5
LOOK_ALPHA = 0.0158
PRECISION_ALPHA = 0.04
"""Series with little noise by chance end sooner: at 0.04, six or more restarts have 5 % false positives."""
MIN_FOR_PRECISION = 6
"""With fewer restarts the width of the interval is itself too uncertain."""


@dataclass(frozen=True)
class Rule:
    """`fixed`: `most` restarts. `precision`: from `least` on, until all intervals are narrow. `looks`: at five
    times."""

    kind: Literal["fixed", "precision", "looks"]
    least: int
    most: int
    half: float = 0.01
    """Half-width of an interval of log ratios, for precision."""
    margin: float = 0.02
    """Differences inside the margin are irrelevant, at a look."""

    @property
    def alpha(self) -> float:
        """The significance level of verdicts on restarts that ended by this rule."""
        return {"fixed": 0.05, "precision": PRECISION_ALPHA, "looks": LOOK_ALPHA}[self.kind]

    def reason_to_end(self, restarts: int, comparisons: Iterable[Sequence[float]]) -> str | None:
        """Why no more restarts are made; `comparisons` are log ratios, one per restart."""
        if restarts >= self.most:
            return f"all {self.most} restarts made"
        if self.kind == "fixed" or restarts < self.least:
            return None
        known = [values for values in comparisons if len(values) >= 2]
        if not known:
            return None
        if self.kind == "precision":
            return self._precise(restarts, known)
        if self.kind == "looks" and restarts in planned_looks(self.least, self.most):
            return self._decided(restarts, known)
        return None

    def _precise(self, restarts: int, known: Sequence[Sequence[float]]) -> str | None:
        if restarts < MIN_FOR_PRECISION:
            return None
        widest = max(t_interval(values, PRECISION_ALPHA).half for values in known)
        if widest > self.half:
            return None
        return f"after {restarts} restarts the widest interval is +-{math.expm1(widest):.1%}"

    def _decided(self, restarts: int, known: Sequence[Sequence[float]]) -> str | None:
        if all(decided(values, self.margin, LOOK_ALPHA) for values in known):
            return f"the planned look after {restarts} restarts decided all"
        return None


def planned_looks(least: int, most: int, looks: int = LOOKS) -> list[int]:
    """Numbers of restarts for looks: `looks` of them, evenly spaced, the last is `most`."""
    if most <= least:
        return [most]
    return sorted({round(least + (most - least) * look / (looks - 1)) for look in range(looks)})


def decided(values: Sequence[float], margin: float, alpha: float) -> bool:
    """Different from zero, or inside the margin, at the level `alpha`."""
    interval, edge = t_interval(values, alpha), math.log1p(margin)
    return t_p(values) < alpha or (-edge < interval.low and interval.high < edge)
