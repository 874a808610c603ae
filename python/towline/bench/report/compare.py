"""Comparison of two results that were not measured together.

Slices of different runs cannot be paired: disturbances of each run are part of the difference. So this is Welch's
test over restarts on log scale, with a wider interval, and a drift between the runs looks like a difference. Two
builds are better measured in one run, as two subjects.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, variance

from .. import statistics
from ..analysis import metrics_of, restart_logs
from ..guards import refusal
from ..record import CHOSEN, ExperimentRecord, Record, Slice, SubjectRecord
from ..verdict import ALPHA, MARGIN, LogDifference, Verdict, decide
from .machines import differences

FEWEST = 3
"""Minimum restarts on each side; two have one degree of freedom."""
CAUTION = (
    "The two results were not measured together, so slices cannot be paired. A difference between the runs (another load on "
    "the machine, its temperature, an update) looks like one between the programs. To compare two builds, measure them in "
    "one run: towline bench --command old=... --command new=..., or --git main..HEAD."
)


@dataclass(frozen=True)
class Welch:
    """A difference of two means of logs, from two runs."""

    mean: float
    low: float
    high: float
    p: float
    df: float


@dataclass(frozen=True)
class Change:
    """One figure of one subject in two results; `ratio` is the second divided by the first."""

    experiment: str
    subject: str
    """`old, new` for subjects of different names."""
    metric: str
    before: float
    after: float
    ratio: float
    low: float
    high: float
    p: float
    """Adjusted by Holm's method over all experiments and subjects of this metric."""
    verdict: Verdict
    """The second compared with the first: `slower` is a regression."""
    reason: str | None = None
    restarts: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Difference:
    """The difference of two results."""

    changes: list[Change]
    warnings: list[str]
    missing: list[str]
    """Experiments and subjects that only one of them has."""


def compare(
    first: Record,
    second: Record,
    *,
    margin: float = MARGIN,
    alpha: float = ALPHA,
    metrics: Sequence[str] | None = None,
    subjects: Sequence[tuple[str, str]] = (),
) -> Difference:
    """Compares every subject of every experiment that both have, without controls.

    `subjects`: only these, each with its name in the first and in the second.
    """
    changes: list[tuple[Change, Welch]] = []
    warnings = [f"machine: {one}" for one in differences(first.machine, second.machine)]
    missing: list[str] = []
    for name, before, after in _experiments(first, second, missing):
        warnings += [f"{name}: {one}" for one in _settings(before, after)]
        for old, new in _subjects(name, before, after, subjects, missing):
            if old.name == new.name:
                warnings += [f"{name}: {old.name}: {one}" for one in _programs(old, new)]
            changes += _changes(before, after, (old.name, new.name), margin, alpha, metrics)
    return Difference(_adjusted(changes, margin, alpha), list(dict.fromkeys(warnings)), missing)


def welch(first: Sequence[float], second: Sequence[float], alpha: float = ALPHA) -> Welch:
    """The mean of `second` minus that of `first` (Welch 1947, Satterthwaite's degrees of freedom)."""
    mean = fmean(second) - fmean(first)
    if len(first) < 2 or len(second) < 2:
        return Welch(mean, -math.inf, math.inf, 1.0, 0.0)
    one, other = variance(first) / len(first), variance(second) / len(second)
    spread = math.sqrt(one + other)
    if spread == 0.0:
        return Welch(mean, mean, mean, 0.0 if mean else 1.0, math.inf)
    df = (one + other) ** 2 / (one**2 / (len(first) - 1) + other**2 / (len(second) - 1))
    half = statistics.t_quantile(1 - alpha / 2, df) * spread
    p = min(1.0, 2 * statistics.t_cdf(-abs(mean / spread), df))
    return Welch(mean, mean - half, mean + half, p, df)


def _experiments(
    first: Record, second: Record, missing: list[str]
) -> Iterator[tuple[str, ExperimentRecord, ExperimentRecord]]:
    before = {one.name: one for one in first.experiments if not one.control}
    after = {one.name: one for one in second.experiments if not one.control}
    for name in dict.fromkeys([*before, *after]):
        if name in before and name in after:
            yield name, before[name], after[name]
        else:
            missing.append(f"{name}: only in the {'first' if name in before else 'second'}")


def _subjects(
    experiment: str,
    before: ExperimentRecord,
    after: ExperimentRecord,
    wanted: Sequence[tuple[str, str]],
    missing: list[str],
) -> Iterator[tuple[SubjectRecord, SubjectRecord]]:
    old = {one.name: one for one in before.subjects}
    new = {one.name: one for one in after.subjects}
    for first, second in wanted or [(name, name) for name in dict.fromkeys([*old, *new])]:
        sides = (old.get(first), new.get(second))
        if sides[0] is None or sides[1] is None:
            missing.append(f"{experiment}: {_where(first, second, old, new)}")
            continue
        failed = [f"{one.name}: {one.failure}" for one in sides if one is not None and one.failure]
        if failed:
            missing.append(f"{experiment}: {failed[0]}")
            continue
        yield sides[0], sides[1]


def _where(first: str, second: str, old: Collection[str], new: Collection[str]) -> str:
    """Which of the two results lacks its subject."""
    if first == second and (first in old or first in new):
        return f"{first}: only in the {'first' if first in old else 'second'}"
    lacks = [f"{first} is not in the first"] if first not in old else []
    lacks += [f"{second} is not in the second"] if second not in new else []
    return " and ".join(lacks)


def _settings(before: ExperimentRecord, after: ExperimentRecord) -> Iterator[str]:
    if before.question != after.question:
        yield f"the first has {before.question}, the second {after.question}"
    for key in sorted({*before.load, *after.load} - CHOSEN):
        if before.load.get(key) != after.load.get(key):
            yield f"{key.replace('_', ' ')}: {before.load.get(key)}, then {after.load.get(key)}"


def _programs(before: SubjectRecord, after: SubjectRecord) -> Iterator[str]:
    if before.command != after.command:
        yield "started with another command line"
    for key in sorted({*before.options, *after.options}):
        if before.options.get(key) != after.options.get(key):
            yield f"{key}: {before.options.get(key)}, then {after.options.get(key)}"


def _changes(
    before: ExperimentRecord,
    after: ExperimentRecord,
    names: tuple[str, str],
    margin: float,
    alpha: float,
    metrics: Sequence[str] | None,
) -> Iterator[tuple[Change, Welch]]:
    """Changes without a verdict, which needs the p-values of all."""
    old = [one for one in before.slices if one.subject == names[0]]
    new = [one for one in after.slices if one.subject == names[1]]
    if not old or not new:
        return
    for metric in metrics_of(before):
        if metrics is not None and metric not in metrics:
            continue
        logs = tuple(list(restart_logs(side, metric).values()) for side in (old, new))
        if not (logs[0] and logs[1]):
            continue
        found = welch(logs[0], logs[1], alpha)
        change = Change(
            before.name,
            names[1] if names[0] == names[1] else f"{names[0]}, {names[1]}",
            metric,
            math.exp(fmean(logs[0])),
            math.exp(fmean(logs[1])),
            math.exp(found.mean),
            _exp(found.low),
            _exp(found.high),
            found.p,
            Verdict.UNDECIDED,
            _reason((before, after), metric, old, new, logs),
            (len(logs[0]), len(logs[1])),
        )
        yield change, found


def _reason(
    experiments: tuple[ExperimentRecord, ExperimentRecord],
    metric: str,
    old: list[Slice],
    new: list[Slice],
    logs: tuple[list[float], ...],
) -> str | None:
    if min(len(one) for one in logs) < FEWEST:
        return f"{len(logs[0])} and {len(logs[1])} restarts: at least {FEWEST} on each side are needed"
    for experiment, slices, word in ((experiments[0], old, "first"), (experiments[1], new, "second")):
        if reason := refusal(experiment, metric, slices):
            return f"in the {word}: {reason.removeprefix(f'{slices[0].subject}: ')}"
    return None


def _adjusted(changes: list[tuple[Change, Welch]], margin: float, alpha: float) -> list[Change]:
    by_metric: dict[str, list[Change]] = {}
    for one, _ in changes:
        by_metric.setdefault(one.metric, []).append(one)
    adjusted: dict[tuple[str, str, str], float] = {}
    for metric, ours in by_metric.items():
        values = statistics.holm([one.p for one in ours])
        adjusted.update(
            {(one.experiment, one.subject, metric): p for one, p in zip(ours, values, strict=True)}
        )
    found = []
    for one, test in changes:
        p = adjusted[(one.experiment, one.subject, one.metric)]
        difference = LogDifference(test.mean, test.low, test.high, p)
        verdict = decide(one.metric, difference, margin, alpha, reason=one.reason)
        found.append(replace(one, p=p, verdict=verdict))
    return found


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
