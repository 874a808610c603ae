"""Regression check for CI: a verdict that stops a merge must be confirmed.

```text
interval wholly worse than the threshold ── no ──► wholly better ─► pass          else ─► undecided
        │ yes
        └─► suspected ─► the same in a second, fresh job ── yes ─► regression     no ─► not confirmed: pass
```

The memory layout of one build, or one machine of a cloud, can give a tight interval around a wrong figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ..analysis import Comparison, analyse
from ..record import Record
from ..verdict import ALPHA, Verdict, loss
from .compare import Change, compare
from .machines import differences, fingerprint

Key = tuple[str, str, str]
"""Experiment, subject, metric."""


class Outcome(str, Enum):
    """The outcome for one figure."""

    PASS = "pass"
    REGRESSION = "regression"
    SUSPECTED = "suspected"
    NOT_CONFIRMED = "not confirmed"
    UNDECIDED = "undecided"
    REFUSED = "refused"


@dataclass(frozen=True)
class Checked:
    """One figure with its outcome; `confirming` is the change found by the second job."""

    change: Change
    outcome: Outcome
    confirming: Change | None = None

    @property
    def key(self) -> Key:
        return (self.change.experiment, self.change.subject, self.change.metric)


@dataclass(frozen=True)
class Gate:
    """All outcomes."""

    threshold: float
    checked: list[Checked]
    problems: list[str]
    """Reasons why no outcome is possible."""

    def status(self, allow_undecided: bool = False) -> int:
        """0 pass, 1 regression, 3 undecided or refused, 4 suspected."""
        outcomes = {one.outcome for one in self.checked}
        if Outcome.REGRESSION in outcomes:
            return 1
        if Outcome.SUSPECTED in outcomes:
            return 4
        if self.problems or not self.checked or Outcome.REFUSED in outcomes:
            return 3
        return 3 if Outcome.UNDECIDED in outcomes and not allow_undecided else 0


def check(
    changes: Sequence[Change],
    threshold: float,
    again: Sequence[Change] | None = None,
    problems: Iterable[str] = (),
) -> Gate:
    """`again`: the changes found by a second, fresh job; None if there was none yet."""
    seconds = None if again is None else {(one.experiment, one.subject, one.metric): one for one in again}
    checked = [_check(one, threshold, seconds) for one in changes]
    return Gate(threshold, checked, list(problems))


def across(
    baseline: Record,
    result: Record,
    *,
    any_machine: bool = False,
    metrics: Sequence[str] | None = None,
    subjects: Sequence[str] | None = None,
) -> tuple[list[Change], list[str]]:
    """The changes from an earlier result to this one, and reasons against judging them."""
    found = compare(baseline, result, metrics=metrics)
    problems = []
    if fingerprint(baseline.machine) != fingerprint(result.machine) and not any_machine:
        summary = "; ".join(differences(baseline.machine, result.machine))
        problems.append(
            f"the baseline was measured on another machine ({summary}): measure it here, or give --any-machine"
        )
    wanted = [
        one
        for one in found.changes
        if _is_compared(one, metrics) and (not subjects or one.subject in subjects)
    ]
    named = set(subjects or ())
    problems += [
        one for one in found.missing if not one.endswith("only in the second") and _named(one, named)
    ]
    return wanted, problems


def within(
    record: Record, old: str, new: str, metrics: Sequence[str] | None = None
) -> tuple[list[Change], list[str]]:
    """The changes between two subjects that were measured together: paired, so that the interval is narrower."""
    changes, problems = [], []
    for experiment in analyse(record, baseline=new).experiments:
        if experiment.experiment.control:
            continue
        ours = [one for one in experiment.comparisons if one.baseline == old]
        if not ours:
            failed = next(
                (one.failure for one in experiment.subjects if one.name in (old, new) and one.failure), None
            )
            problems.append(
                f"{experiment.experiment.name}: {failed or f'{old} and {new} were not both measured'}"
            )
        figures: Mapping[str, Mapping[str, float]] = {
            one.name: {metric: figure.value for metric, figure in one.figures.items()}
            for one in experiment.subjects
        }
        changes += [_paired(experiment.experiment.name, one, figures) for one in ours]
    return [one for one in changes if _is_compared(one, metrics)], problems


def _paired(experiment: str, one: Comparison, figures: Mapping[str, Mapping[str, float]]) -> Change:
    return Change(
        experiment,
        one.subject,
        one.metric,
        figures[one.baseline].get(one.metric, 0.0),
        figures[one.subject].get(one.metric, 0.0),
        one.ratio,
        one.low,
        one.high,
        one.p,
        one.verdict,
        one.reason,
        (one.restarts, one.restarts),
    )


def _is_compared(one: Change, metrics: Sequence[str] | None) -> bool:
    """The metrics; by default those of the experiment's question: requests/s, or p50 and p99 at a fixed rate."""
    return one.metric in (metrics or ("per_s", "p50_us", "p99_us"))


def _named(problem: str, subjects: set[str]) -> bool:
    """Whether a line `experiment: subject: why` is about one of the subjects; without any, all are."""
    parts = problem.split(": ")
    return not subjects or len(parts) < 3 or parts[1] in subjects


def _check(one: Change, threshold: float, seconds: Mapping[Key, Change] | None) -> Checked:
    outcome = _outcome(one, threshold)
    if outcome is not Outcome.SUSPECTED or seconds is None:
        return Checked(one, outcome)
    second = seconds.get((one.experiment, one.subject, one.metric))
    if second is None:
        return Checked(one, Outcome.SUSPECTED)
    again = _outcome(second, threshold)
    if again is Outcome.SUSPECTED:
        return Checked(one, Outcome.REGRESSION, second)
    return Checked(one, Outcome.NOT_CONFIRMED if again is Outcome.PASS else again, second)


def _outcome(one: Change, threshold: float) -> Outcome:
    if one.reason or one.verdict is Verdict.REFUSED:
        return Outcome.REFUSED
    best, worst = sorted((loss(one.metric, one.low), loss(one.metric, one.high)))
    if best > threshold and one.p < ALPHA and one.verdict is not Verdict.UNSTABLE:
        return Outcome.SUSPECTED
    return Outcome.PASS if worst < threshold else Outcome.UNDECIDED
