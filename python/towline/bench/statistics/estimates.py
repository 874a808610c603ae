"""Intervals and tests over restarts, each of which gives one number: a mean of log ratios."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from .distributions import normal_quantile, t_cdf, t_quantile

EXACT_UP_TO = 25
"""Number of pairs for which the signed-rank distribution is exact; beyond it, the normal approximation is used."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval; both ends are infinite when there was only one value."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2


def t_interval(values: Sequence[float], alpha: float = 0.05) -> Interval:
    """The mean of `values` and its two-sided t interval of confidence 1 - `alpha` (Student 1908)."""
    n = len(values)
    if n == 0:
        raise ValueError("no values")
    mean = fmean(values)
    if n == 1:
        return Interval(mean, -math.inf, math.inf, 1)
    half = t_quantile(1 - alpha / 2, n - 1) * stdev(values) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def t_p(values: Sequence[float], mean: float = 0.0) -> float:
    """Two-sided p-value of a one-sample t test against `mean`; 1 for fewer than two values."""
    n = len(values)
    if n < 2:
        return 1.0
    spread = stdev(values) / math.sqrt(n)
    if spread == 0.0:
        return 1.0 if fmean(values) == mean else 0.0
    return min(1.0, 2 * t_cdf(-abs((fmean(values) - mean) / spread), n - 1))


def signed_rank_p(values: Sequence[float]) -> float:
    """Two-sided p-value of Wilcoxon's signed-rank test (1945); zeros are dropped, ties share their rank."""
    nonzero = [value for value in values if value != 0.0]
    n = len(nonzero)
    if n == 0:
        return 1.0
    ranks = _ranks([abs(value) for value in nonzero])
    positive = sum(rank for rank, value in zip(ranks, nonzero, strict=True) if value > 0)
    if n <= EXACT_UP_TO:
        return _exact_p(ranks, positive)
    mean = n * (n + 1) / 4
    variance = sum(rank * rank for rank in ranks) / 4
    z = (positive - mean) / math.sqrt(variance)
    return min(1.0, math.erfc(abs(z) / math.sqrt(2)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values (Holm 1979), in the order given: compare each with the level itself."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, least = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = least
    return adjusted


def restarts_needed(values: Sequence[float], half: float, alpha: float = 0.05) -> int | None:
    """Estimated number of restarts that bring the half-width to `half`; None if unknown."""
    if len(values) < 3 or half <= 0:
        return None
    spread = stdev(values)
    n = max(len(values), math.ceil((normal_quantile(1 - alpha / 2) * spread / half) ** 2))
    while n < 10_000 and t_quantile(1 - alpha / 2, n - 1) * spread / math.sqrt(n) > half:
        n += 1
    return n


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for index in order[start:end]:
            ranks[index] = (start + 1 + end) / 2
        start = end
    return ranks


def _exact_p(ranks: Sequence[float], positive: float) -> float:
    """Counts the sign patterns at least as far from the middle; ranks are doubled to be whole."""
    doubled = [round(2 * rank) for rank in ranks]
    counts = [1] + [0] * sum(doubled)
    for rank in doubled:
        for total in range(len(counts) - 1, rank - 1, -1):
            counts[total] += counts[total - rank]
    middle, distance = sum(doubled) / 2, abs(2 * positive - sum(doubled) / 2)
    extreme = sum(count for total, count in enumerate(counts) if abs(total - middle) >= distance - 1e-9)
    return min(1.0, extreme / 2.0 ** len(ranks))
