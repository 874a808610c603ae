"""Derives estimates and verdicts from a record. Pure: the same record always gives the same result.

```text
slices ─► pairs of neighbours ─► trimmed mean, or totals ─► t-interval over restarts ─► verdict against the margin
                                 (statistics/paired.py)     signed-rank cross-check     guards: a reason, or none
```
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean, median, quantiles

from . import statistics
from .guards import refusal
from .hdr import NotAHistogram, merged
from .lints import lint, lint_record
from .record import FORWARDED_AFTER, PAGE, ExperimentRecord, Record, Slice
from .statistics.paired import PairedRatio, Part, paired_ratio
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
PAUSE_S = 0.04
"""A slice that a subject makes longer by this time has a pause: more than a tick by which stolen time is counted."""
PAUSE_SHARE = 0.01
"""A difference of this share of the time in pauses counts: half of the usual margin."""
DISTURBED_SHARE = 0.1
"""A slice of which something else had this share is not asked whether the subject stands still."""
PAIRED = frozenset({"per_s", "cpu_us"})
"""Metrics compared slice by slice; percentiles need the samples of a whole restart."""
SHARES_BEYOND = {"p50_us": 0.5, "p90_us": 0.1, "p95_us": 0.05, "p99_us": 0.01, "p99_9_us": 0.001}


def analyse(record: Record, baseline: str | None = None, margin: float = MARGIN) -> Analysis:
    """Compares all other subjects with `baseline` (None: the record's), or with the experiment's own baseline if
    `baseline` is not in it."""
    baseline = baseline or str(record.settings.get("baseline", "towline"))
    alpha = float(record.settings.get("alpha", ALPHA))
    experiments = [
        analyse_experiment(experiment, baseline, margin, alpha) for experiment in record.experiments
    ]
    experiments = [controlled(one, experiments) for one in experiments]
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
    comparisons, notes = (
        [],
        [*page_times(experiment, by_subject), *acceptance(experiment, by_subject), *lint(experiment)],
    )
    if baseline in measured:
        others = [name for name in measured if name != baseline]
        notes += uneven(experiment, baseline, others, by_subject)
        for metric in metrics_of(experiment):
            comparisons += _compare_all(experiment, metric, baseline, others, by_subject, margin, alpha)
    return ExperimentAnalysis(experiment, subjects, comparisons, [*notes, *witnesses(comparisons)])


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


def controlled(one: ExperimentAnalysis, all_: Sequence[ExperimentAnalysis]) -> ExperimentAnalysis:
    """The analysis with the A/A controls of the run: a difference that is no larger than the error they show has no
    verdict."""
    if one.experiment.control or not one.experiment.subjects:
        return one
    kind = one.experiment.subjects[0].kind
    controls = [
        comparison
        for other in all_
        if other.experiment.control
        and other.experiment.subjects
        and other.experiment.subjects[0].kind == kind
        for comparison in other.comparisons
    ]
    return replace(one, comparisons=[_beyond(comparison, controls) for comparison in one.comparisons])


def _beyond(one: Comparison, controls: Iterable[Comparison]) -> Comparison:
    if one.verdict not in (Verdict.FASTER, Verdict.SLOWER):
        return one
    for control in controls:
        if control.metric != one.metric or control.reason is not None or control.high == math.inf:
            continue
        low, high = math.log(control.low), math.log(control.high)
        is_different = control.verdict in (Verdict.FASTER, Verdict.SLOWER)
        error = max(-low, high) if is_different else (high - low) / 2
        if abs(math.log(one.ratio)) <= error:
            what = "is different" if is_different else "is too wide"
            shown = f"[{control.low:.3f}, {control.high:.3f}]"
            return replace(
                one,
                verdict=Verdict.REFUSED,
                reason=f"the A/A control {what}: {shown} for the same subject twice",
            )
    return one


def witnesses(comparisons: Sequence[Comparison]) -> list[str]:
    """Where requests/s and CPU time per request, which are judged apart, have opposite verdicts."""
    found = {(one.subject, one.baseline, one.metric): one for one in comparisons}
    lines = []
    for (subject, baseline, metric), rate in found.items():
        cost = found.get((subject, baseline, "cpu_us"))
        if metric != "per_s" or cost is None:
            continue
        if {rate.verdict, cost.verdict} == {Verdict.FASTER, Verdict.SLOWER}:
            lines.append(
                f"{subject} and {baseline}: requests/s ({rate.ratio:.2f}) and CPU time per request "
                f"({cost.ratio:.2f}) disagree: the rate was limited by something other than the CPU"
            )
    return lines


def uneven(
    experiment: ExperimentRecord, baseline: str, others: Sequence[str], by_subject: dict[str, list[Slice]]
) -> list[str]:
    """Where the rate over all slices is not that of the usual slice."""
    if experiment.question != "capacity" or experiment.is_of_pages:
        return []
    found = []
    for name in (baseline, *others):
        pauses = pauses_s(by_subject[name])
        if _pause_share(by_subject[name]) > PAUSE_SHARE:
            found.append(
                f"{name}: stood still in {len(pauses)} slice{'s' * (len(pauses) > 1)}, for {sum(pauses):.1f} s in all and {max(pauses):.2f} s at "
                "most, which counts in its rate"
            )
    names = [name for name in others if paired(by_subject[baseline], by_subject[name], "per_s").disagree]
    if not names:
        return found
    return [
        *found,
        f"{baseline} and {', '.join(names)}: a subject stands still, or is slower, in some slices only; the ratio is "
        "that of all responses in all the time",
    ]


def page_times(experiment: ExperimentRecord, by_subject: dict[str, list[Slice]]) -> list[str]:
    """The time of a page, mean and quartiles, of each subject; none if the experiment is not of pages."""
    if not experiment.is_of_pages:
        return []
    lines = []
    for name, slices in by_subject.items():
        times = sorted(one.extra[PAGE] for one in slices if PAGE in one.extra)
        if len(times) > 1:
            low, middle, high = quantiles(times, n=4, method="inclusive")
            lines.append(
                f"{name}: a page took {fmean(times):,.0f} ms on average, half of {len(times)} pages {low:,.0f} to "
                f"{high:,.0f} ms, median {middle:,.0f} ms"
            )
    return lines


def acceptance(experiment: ExperimentRecord, by_subject: Mapping[str, Sequence[Slice]]) -> list[str]:
    """Acceptances per second, where requests/s counts the work that it does after its response as well."""
    rates = []
    for subject in experiment.subjects:
        slices = by_subject.get(subject.name, [])
        measured_s = sum(one.measured_s for one in slices)
        if measured_s and any(FORWARDED_AFTER in one.extra for one in slices):
            rates.append(f"{subject.name} {sum(one.answered for one in slices) / measured_s:,.0f}/s")
    if not rates:
        return []
    return [
        f"requests/s: accepted, stored and forwarded, until the last one; accepted alone: {', '.join(rates)}"
    ]


def log_ratios(ours: Sequence[Slice], theirs: Sequence[Slice], metric: str) -> list[float]:
    """One value per restart, whose mean is the log ratio of the two figures. Their slices alternate, so that the
    state of the machine affects both."""
    if metric in PAIRED:
        return list(paired(ours, theirs, metric).by_restart.values())
    mine, others = restart_logs(ours, metric), restart_logs(theirs, metric)
    return [value - others[restart] for restart, value in mine.items() if restart in others]


def paired(ours: Sequence[Slice], theirs: Sequence[Slice], metric: str) -> PairedRatio:
    """The ratio of a rate or a cost, from pairs of neighbouring slices of each restart."""
    part = _rate_of if metric == "per_s" else _cost_of
    mine, others = _by_restart(ours), _by_restart(theirs)
    has_stopped = metric == "per_s" and abs(_pause_share(ours) - _pause_share(theirs)) > PAUSE_SHARE
    pairs = {
        restart: neighbours(mine[restart], others[restart]) for restart in sorted(mine.keys() & others.keys())
    }
    undisturbed = {
        restart: [pair for pair in those if not any(_is_disturbed(each) for side in pair for each in side)]
        for restart, those in pairs.items()
    }

    def parts(of: dict[int, list[tuple[list[Slice], list[Slice]]]]) -> dict[int, list[tuple[Part, Part]]]:
        return {restart: [(part(one), part(other)) for one, other in those] for restart, those in of.items()}

    return paired_ratio(
        parts(pairs),
        has_stopped=has_stopped,
        undisturbed=parts(undisturbed),
        # A page that lost its last packets is rare and long, and belongs to the mean.
        by_totals=any(PAGE in one.extra for one in (*ours, *theirs)),
    )


def pauses_s(slices: Sequence[Slice]) -> list[float]:
    """The times for which a subject stood still by itself: what a slice lasted beyond the usual length, because there
    was no response that ended it, without waiting for a core, on either side, and without stolen time."""
    known = [one for one in slices if one.stolen_s is not None]
    if not known:
        return []
    usual_s = median(one.measured_s for one in known)
    return [
        still_s
        for one in known
        if (still_s := one.measured_s - usual_s - _disturbed_s(one)) >= max(PAUSE_S, usual_s)
    ]


def _disturbed_s(one: Slice) -> float:
    return one.subject_waited_s + one.driver_waited_share * one.measured_s + (one.stolen_s or 0.0)


def _is_disturbed(one: Slice) -> bool:
    """Whether something else had the cores for a part of the slice that shows in its rate.

    Threads of a subject that wait for each other keep its cores busy, and that is its own doing.
    """
    idle_s = max(0.0, one.measured_s - one.subject_cpu_s)
    others_s = (
        min(one.subject_waited_s, idle_s) + one.driver_waited_share * one.measured_s + (one.stolen_s or 0.0)
    )
    return others_s > DISTURBED_SHARE * one.measured_s


def _pause_share(slices: Sequence[Slice]) -> float:
    total_s = sum(one.measured_s for one in slices)
    return sum(pauses_s(slices)) / total_s if total_s else 0.0


def _rate_of(slices: Sequence[Slice]) -> Part:
    return Part(sum(one.answered for one in slices), sum(one.finished_s for one in slices))


def _cost_of(slices: Sequence[Slice]) -> Part:
    return Part(sum(one.subject_cpu_s for one in slices), sum(one.answered for one in slices))


def neighbours(ours: Sequence[Slice], theirs: Sequence[Slice]) -> list[tuple[list[Slice], list[Slice]]]:
    """The slices of a restart, paired by round. A subject with fewer slices has one in each pair, the other those of
    the nearest rounds."""
    if len(ours) > len(theirs):
        return [(one, other) for other, one in neighbours(theirs, ours)]
    if not ours:
        return []
    rare = sorted(ours, key=lambda one: one.round)
    edges = [(one.round + following.round) / 2 for one, following in pairwise(rare)]
    groups: list[list[Slice]] = [[] for _ in rare]
    for one in theirs:
        groups[bisect_left(edges, one.round)].append(one)
    return [([one], group) for one, group in zip(rare, groups, strict=True) if group]


def restart_logs(slices: Iterable[Slice], metric: str) -> dict[int, float]:
    """The logarithm of the metric by restart. Restarts without a figure are left out."""
    found = {restart: restart_value(ours, metric) for restart, ours in sorted(_by_restart(slices).items())}
    return {restart: math.log(value) for restart, value in found.items() if value}


def restart_value(slices: Sequence[Slice], metric: str) -> float | None:
    """The metric over all slices of a restart; None if it has none, or too few samples for it.

    Rates and costs are totals divided by totals: a stall within one slice counts with its whole time, and a slice
    without a response counts as zero. Percentiles are those of the merged histogram.
    """
    if metric == "per_s":
        finished_s = sum(one.finished_s for one in slices)
        return sum(one.answered for one in slices) / finished_s if finished_s else None
    if metric == "cpu_us":
        answered = sum(one.answered for one in slices)
        return sum(one.subject_cpu_s for one in slices) / answered * 1e6 if answered else None
    if metric == PAGE:
        times = [one.extra[PAGE] for one in slices if PAGE in one.extra]
        return fmean(times) if times else None
    values = _merged_percentile(slices, metric) if metric in SHARES_BEYOND else []
    if not values:
        values = [value for one in slices if (value := metric_value(one, metric)) is not None and value > 0]
    return math.exp(fmean(math.log(value) for value in values)) if values else None


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


def _by_restart(slices: Iterable[Slice]) -> dict[int, list[Slice]]:
    found: dict[int, list[Slice]] = defaultdict(list)
    for one in slices:
        found[one.restart].append(one)
    return found


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
