"""The ratio of two subjects from pairs of neighbouring slices.

Stolen time and a shared cache disturb some slices by much and most by little, both subjects alike: a trimmed mean of
the pairs' log ratios is two to three times as precise as the ratio of totals. But it also discards what only one
subject does now and then, such as standing still, which must count in full. So the totals are computed, too, and where
they differ from the trimmed mean by more than the pairs' own scatter explains, they are used. Unless the difference is
gone without the pairs that the machine is known to have disturbed: then it is the machine's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

TRIM = 0.25
"""Share of the pairs left out at each end: the interquartile mean, robust against up to a quarter of disturbed
pairs."""
MIN_PAIRS = 16
"""With fewer pairs a trimmed mean rests on less than eight values: totals are used."""
DISAGREEMENT = 2.5
"""Standard errors between trimmed mean and totals from which the totals are used: by chance in 1.2 % of comparisons."""


@dataclass(frozen=True)
class Part:
    """Amount and extent of one side of a pair: responses and seconds, or CPU seconds and responses."""

    amount: float
    extent: float


@dataclass(frozen=True)
class PairedRatio:
    """`by_restart` has one value per restart, whose mean is the log ratio and whose scatter is its uncertainty."""

    by_restart: dict[int, float]
    trimmed: bool
    """False: the ratio of totals."""
    disagree: bool = False
    """There were enough pairs, but totals and trimmed mean differ."""


Pairs = Sequence[tuple[Part, Part]]


def paired_ratio(
    restarts: Mapping[int, Pairs],
    *,
    has_stopped: bool = False,
    undisturbed: Mapping[int, Pairs] | None = None,
    by_totals: bool = False,
) -> PairedRatio:
    """The log ratio of the first of each pair to the second, for the pairs of each restart.

    `undisturbed`: those of the pairs in which nothing else had the cores, if that is known.

    `has_stopped`: a subject has stood still by itself for long. One such slice among hundreds is within the scatter of
    the pairs, so that it is not noticed here, and a trimmed mean would lose it: totals are used.

    `by_totals`: the pairs differ by their own chance, not by the machine's: totals are used.

    Restarts in which a side has a total of zero are left out: they have no ratio.
    """
    restarts = {restart: pairs for restart, pairs in restarts.items() if _positive(pairs)}
    totals = {restart: total_log_ratio(pairs) for restart, pairs in restarts.items()}
    logs = {
        restart: [log_ratio(*pair) for pair in pairs if _comparable(*pair)]
        for restart, pairs in restarts.items()
    }
    count = sum(len(values) for values in logs.values())
    if by_totals or count < MIN_PAIRS:
        return PairedRatio(totals, trimmed=False)
    mean, by_restart = trimmed_mean(logs)
    if has_stopped or not math.isfinite(mean) or (_disagree(mean, restarts) and _remains(undisturbed)):
        return PairedRatio(totals, trimmed=False, disagree=True)
    return PairedRatio(by_restart, trimmed=True)


def log_ratio(one: Part, other: Part) -> float:
    """Infinite if one amount is zero; both must not be, nor an extent."""
    if not one.amount:
        return -math.inf
    if not other.amount:
        return math.inf
    return math.log(one.amount / one.extent) - math.log(other.amount / other.extent)


def total_log_ratio(pairs: Pairs) -> float:
    """The log ratio of the sums."""
    one, other = (_sum([pair[side] for pair in pairs]) for side in (0, 1))
    return log_ratio(one, other)


def trimmed_mean(
    clusters: Mapping[int, Sequence[float]], trim: float = TRIM
) -> tuple[float, dict[int, float]]:
    """The trimmed mean of all values, and one pseudo-value per cluster.

    A pseudo-value is the mean plus the cluster's share of the influence (Huber 1981, 3.3: that of the winsorised
    values), scaled so that the mean of the pseudo-values is the trimmed mean, and their standard error is its
    cluster-robust standard error. A t-interval over them allows for differences between restarts.
    """
    ordered = sorted(value for values in clusters.values() for value in values)
    cut = int(len(ordered) * trim)
    kept = ordered[cut : len(ordered) - cut]
    mean, low, high = fmean(kept), kept[0], kept[-1]
    if not math.isfinite(mean):
        return mean, {}
    winsorised = fmean([low] * cut + kept + [high] * cut)
    scale = len(clusters) / len(kept)
    return mean, {
        cluster: mean + scale * sum(min(max(value, low), high) - winsorised for value in values)
        for cluster, values in clusters.items()
    }


def _disagree(mean: float, restarts: Mapping[int, Pairs]) -> bool:
    """Whether the ratio of totals over all restarts differs from the trimmed mean, judged by the scatter of the pairs
    and of the restarts, whichever is larger."""
    pairs = [pair for pairs in restarts.values() for pair in pairs]
    ones, others = _sum([one for one, _ in pairs]), _sum([other for _, other in pairs])
    rates = ones.amount / ones.extent, others.amount / others.extent
    logs = sorted(log_ratio(*pair) for pair in pairs if _comparable(*pair))
    cut = int(len(logs) * TRIM)
    low, high = logs[cut], logs[-1 - cut]
    scale = 1 / (len(logs) - 2 * cut)

    def influence(one: Part, other: Part) -> float:
        """Influence of a pair on the log ratio of totals (delta method), less that on the trimmed mean."""
        on_totals = (one.amount - rates[0] * one.extent) / ones.amount
        on_totals -= (other.amount - rates[1] * other.extent) / others.amount
        value = min(max(log_ratio(one, other), low), high) if _comparable(one, other) else mean
        return on_totals - scale * (value - mean)

    by_pair = [[influence(*pair) for pair in pairs] for pairs in restarts.values()]
    by_restart = [sum(values) for values in by_pair]
    error = max(_error([value for values in by_pair for value in values]), _error(by_restart))
    return abs(math.log(rates[0] / rates[1]) - mean) > DISAGREEMENT * error


def _remains(undisturbed: Mapping[int, Pairs] | None) -> bool:
    """Whether totals and trimmed mean differ in the undisturbed pairs, too, or these are too few to say."""
    restarts = {
        restart: pairs for restart, pairs in (undisturbed or {}).items() if pairs and _positive(pairs)
    }
    logs = {
        restart: [log_ratio(*pair) for pair in pairs if _comparable(*pair)]
        for restart, pairs in restarts.items()
    }
    if sum(len(values) for values in logs.values()) < MIN_PAIRS:
        return True
    mean, _ = trimmed_mean(logs)
    return not math.isfinite(mean) or _disagree(mean, restarts)


def _error(influences: Sequence[float]) -> float:
    """Standard error of their sum; 0 for a single one."""
    return stdev(influences) * math.sqrt(len(influences)) if len(influences) > 1 else 0.0


def _comparable(one: Part, other: Part) -> bool:
    """Whether the pair has a log ratio, finite or not. Totals include the others, too."""
    return bool(one.extent and other.extent and (one.amount or other.amount))


def _sum(parts: Sequence[Part]) -> Part:
    return Part(sum(part.amount for part in parts), sum(part.extent for part in parts))


def _positive(pairs: Pairs) -> bool:
    totals = [_sum([pair[side] for pair in pairs]) for side in (0, 1)]
    return all(total.amount > 0 and total.extent > 0 for total in totals)
