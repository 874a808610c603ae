"""Derives estimates and verdicts from a record. Pure: the same record always gives the same result.

```text
slices ─► log ratio per round ─► mean per restart ─► t-interval over restarts ─► verdict against the margin
                                                     signed-rank cross-check     guards: a reason, or none
```
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from . import statistics
from .guards import refusal
from .hdr import NotAHistogram, merged
from .lints import lint, lint_record
from .record import ExperimentRecord, Record, Slice
from .verdict import ALPHA, MARGIN, LogDifference, Verdict, decide


@dataclass(frozen=True)
class Estimate:
    """One figure of one subject: mean over restarts with its interval, in `unit`."""

    value: float
    low: float
    high: float
    unit: str
    at_least: bool = False
    """The driver was the limit."""


@dataclass(frozen=True)
class Comparison:
    """`subject` compared with `baseline`: for `per_s` above 1 is better, for times below 1."""

    subject: str
    baseline: str
    metric: str
    """`per_s`, `p50_us`, `p99_us`, `cpu_us` ..."""
    ratio: float
    low: float
    high: float
    p: float
    """Adjusted by Holm's method over the experiment's comparisons of this metric."""
    verdict: Verdict
    reason: str | None = None
    restarts: int = 0
    restarts_needed: int | None = None
    """For undecided comparisons: estimated number of restarts that would decide."""


@dataclass(frozen=True)
class SubjectAnalysis:
    name: str
    failure: str | None
    figures: dict[str, Estimate]
    """By metric: per_s, p50_us, p90_us, p99_us, p99_9_us, cpu_us, rss_peak_bytes ..., if available."""


@dataclass(frozen=True)
class ExperimentAnalysis:
    experiment: ExperimentRecord
    subjects: list[SubjectAnalysis]
    comparisons: list[Comparison]
    lints: list[str] = field(default_factory=list)

    def comparison(self, subject: str, baseline: str, metric: str = "per_s") -> Comparison | None:
        wanted = (subject, baseline, metric)
        found = (one for one in self.comparisons if (one.subject, one.baseline, one.metric) == wanted)
        return next(found, None)


@dataclass(frozen=True)
class Analysis:
    record: Record
    experiments: list[ExperimentAnalysis]
    margin: float = MARGIN
    alpha: float = ALPHA

    def experiment(self, name: str) -> ExperimentAnalysis:
        """Raises KeyError when the record has no such experiment."""
        for experiment in self.experiments:
            if experiment.experiment.name == name:
                return experiment
        raise KeyError(name)


LATENCIES = ("p50_us", "p90_us", "p95_us", "p99_us", "p99_9_us")
SAMPLES_BEYOND = {"p50_us": 100, "p90_us": 100, "p95_us": 100, "p99_us": 100, "p99_9_us": 100}
"""A percentile of a window is compared only with this many samples beyond it."""
SHARES_BEYOND = {"p50_us": 0.5, "p90_us": 0.1, "p95_us": 0.05, "p99_us": 0.01, "p99_9_us": 0.001}


def analyse(record: Record, baseline: str = "towline", margin: float = MARGIN) -> Analysis:
    """Compares all other subjects with `baseline`, or with the experiment's own baseline if `baseline` is not in it."""
    alpha = float(record.settings.get("alpha", ALPHA))
    experiments = [
        analyse_experiment(experiment, baseline, margin, alpha) for experiment in record.experiments
    ]
    for name, found in lint_record(record).items():
        for experiment in experiments:
            if experiment.experiment.name == name:
                experiment.lints.extend(found)
    return Analysis(record, experiments, margin, alpha)


def analyse_experiment(
    experiment: ExperimentRecord, baseline: str, margin: float = MARGIN, alpha: float = ALPHA
) -> ExperimentAnalysis:
    """Estimates of each subject, and comparisons of `baseline` with the others."""
    by_subject = _by_subject(experiment.slices)
    subjects = [
        SubjectAnalysis(one.name, one.failure, _figures(by_subject.get(one.name, [])))
        for one in experiment.subjects
    ]
    if experiment.control and len(experiment.subjects) == 2:
        baseline = experiment.subjects[0].name
    elif experiment.baseline is not None and all(one.name != baseline for one in experiment.subjects):
        baseline = experiment.baseline
    measured = [one.name for one in experiment.subjects if one.failure is None and by_subject.get(one.name)]
    comparisons = []
    if baseline in measured:
        others = [name for name in measured if name != baseline]
        for metric in metrics_of(experiment):
            comparisons += _compare_all(experiment, metric, baseline, others, by_subject, margin, alpha)
    return ExperimentAnalysis(experiment, subjects, comparisons, lint(experiment))


def metrics_of(experiment: ExperimentRecord) -> tuple[str, ...]:
    """The metrics of an experiment: those of its question first, then the costs."""
    return ("per_s", "cpu_us") if experiment.question == "capacity" else (*LATENCIES, "cpu_us")


def metric_value(one: Slice, metric: str) -> float | None:
    """The metric of one slice; None if it has none, or too few samples for it."""
    if metric == "per_s":
        return one.per_s or None
    if metric == "cpu_us":
        return one.subject_cpu_s / one.answered * 1e6 if one.answered and one.subject_cpu_s else None
    if metric in SHARES_BEYOND:
        enough = one.response.count * SHARES_BEYOND[metric] >= SAMPLES_BEYOND[metric]
        return getattr(one.response, metric) or None if enough else None
    return one.extra.get(metric)


def _compare_all(
    experiment: ExperimentRecord,
    metric: str,
    baseline: str,
    others: Sequence[str],
    by_subject: dict[str, list[Slice]],
    margin: float,
    alpha: float,
) -> list[Comparison]:
    logs = {name: log_ratios(by_subject[baseline], by_subject[name], metric) for name in others}
    logs = {name: values for name, values in logs.items() if values}
    adjusted = dict(
        zip(logs, statistics.holm([statistics.t_p(values) for values in logs.values()]), strict=True)
    )
    return [
        judge(
            baseline,
            name,
            metric,
            values,
            adjusted[name],
            margin,
            refusal(experiment, metric, by_subject[baseline], by_subject[name]),
            family=len(logs),
            alpha=alpha,
        )
        for name, values in logs.items()
    ]


def log_ratios(ours: Sequence[Slice], theirs: Sequence[Slice], metric: str) -> list[float]:
    """One value per restart: the mean over rounds of log(ours / theirs), paired by round.

    Percentiles for which single slices have too few samples come from the merged histogram of a restart.
    """
    others = {(one.restart, one.round): metric_value(one, metric) for one in theirs}
    by_restart: dict[int, list[float]] = defaultdict(list)
    for one in ours:
        mine, other = metric_value(one, metric), others.get((one.restart, one.round))
        if mine and other:
            by_restart[one.restart].append(math.log(mine / other))
    if not by_restart and metric in SHARES_BEYOND:
        first, second = restart_logs(ours, metric), restart_logs(theirs, metric)
        return [value - second[restart] for restart, value in first.items() if restart in second]
    return [fmean(values) for _, values in sorted(by_restart.items())]


def restart_logs(slices: Iterable[Slice], metric: str) -> dict[int, float]:
    """The logarithm of the metric by restart: the mean of its slices, or of the merged histogram for percentiles
    for which single slices have too few samples. Restarts without a figure are left out."""
    by_restart: dict[int, list[Slice]] = defaultdict(list)
    for one in slices:
        by_restart[one.restart].append(one)
    found = {}
    for restart, ours in sorted(by_restart.items()):
        values = [value for one in ours if (value := metric_value(one, metric)) is not None and value > 0]
        if not values and metric in SHARES_BEYOND:
            values = _merged_percentile(ours, metric)
        if values:
            found[restart] = fmean(math.log(value) for value in values)
    return found


def _merged_percentile(slices: Iterable[Slice], metric: str) -> list[float]:
    share = SHARES_BEYOND[metric]
    try:
        total = merged(tuple(one.histogram for one in slices if one.histogram))
    except NotAHistogram:
        return []
    if total is None or total.total * share < SAMPLES_BEYOND[metric]:
        return []
    return [total.at(1 - share) / 1e3]


def judge(
    subject: str,
    baseline: str,
    metric: str,
    logs: Sequence[float],
    p: float,
    margin: float,
    reason: str | None,
    family: int = 1,
    alpha: float = ALPHA,
) -> Comparison:
    """The verdict on the log ratios of one pair; `p` is already adjusted for the `family` of comparisons.

    The interval matches the verdict: it excludes 1 exactly when `p` is below `alpha`.
    """
    interval = statistics.t_interval(logs, _level(alpha, statistics.t_p(logs), p, family))
    difference = LogDifference(interval.mean, interval.low, interval.high, p)
    needed = None
    if decide(metric, difference, margin, alpha, pairs=logs) is Verdict.UNDECIDED:
        # Restarts to separate the mean from zero, or to fit the interval into the margin, whichever is less.
        distance = max(abs(interval.mean), math.log1p(margin) - abs(interval.mean))
        needed = statistics.restarts_needed(logs, distance, alpha / family)
    return Comparison(
        subject,
        baseline,
        metric,
        math.exp(interval.mean),
        _exp(interval.low),
        _exp(interval.high),
        p,
        decide(metric, difference, margin, alpha, pairs=logs, reason=reason),
        reason,
        len(logs),
        needed,
    )


def _level(alpha: float, alone: float, adjusted: float, family: int) -> float:
    """The level of one interval in a family: `alpha` divided by the factor that Holm's method put on its p-value."""
    if 0 < alone <= adjusted < 1:
        return alpha * alone / adjusted
    return alpha / family


def _figures(slices: Sequence[Slice]) -> dict[str, Estimate]:
    figures: dict[str, Estimate] = {}
    at_least = sum(one.driver_limit is not None and one.target_per_s is None for one in slices) * 2 > len(
        slices
    )
    names = {"per_s", "cpu_us", *LATENCIES} | {name for one in slices for name in one.extra}
    for metric in sorted(names):
        logs = restart_logs(slices, metric)
        if logs:
            interval = statistics.t_interval(list(logs.values()))
            figures[metric] = Estimate(
                math.exp(interval.mean),
                _exp(interval.low),
                _exp(interval.high),
                _unit(metric),
                at_least and metric == "per_s",
            )
    return figures


def _unit(metric: str) -> str:
    if metric == "per_s":
        return "requests/s"
    for suffix, unit in (("_us", "us"), ("_ms", "ms"), ("_bytes", "bytes"), ("_per_s", "/s"), ("_s", "s")):
        if metric.endswith(suffix):
            return unit
    return ""


def _by_subject(slices: Iterable[Slice]) -> dict[str, list[Slice]]:
    found: dict[str, list[Slice]] = defaultdict(list)
    for one in slices:
        found[one.subject].append(one)
    return dict(found)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
