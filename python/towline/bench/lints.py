"""Warnings about an experiment that change no verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from .record import ExperimentRecord, Record, Slice, SubjectRecord

MIN_RESTARTS = 5
MIN_S = 1.0
"""Duration of load on a subject, all slices together."""
MEDIANS_A_SLICE = 10
"""A slice holds 20 median latencies by design; with half as many, the cut ends have a visible effect."""
SAMPLES_BEYOND = 100
LITTLE_SHARE = 0.2
WAIT_SHARE = 0.1
DISTURBED_PRESSURE, DISTURBED_STEAL = 0.25, 0.002
"""Noise, which the intervals contain: less is an occasional clock tick."""
SAME = 0.02
CONCURRENCY_KEYS = ("concurrency", "tasks", "threads")
"""Keys of a load that mean concurrent requests."""
LOGGING = frozenset({"log-level", "access-log", "access_log", "log_level", "control-socket"})
"""Options that give no advantage."""


@dataclass(frozen=True)
class Lint:
    """One warning about one subject; the same `what` for several is one line."""

    what: str
    """`{}` is replaced by the figure."""
    figure: float | None = None
    form: str = "{:.0f}"

    def of(self, others: Sequence[Lint]) -> str:
        """The text for all of them, with the figure or its range."""
        if self.figure is None:
            return self.what
        shown = [one.form.format(one.figure) for one in sorted(others, key=lambda one: one.figure or 0.0)]
        spread = shown[0] if shown[0] == shown[-1] else f"{shown[0]} to {shown[-1]}"
        return self.what.replace("{}", spread)


def lint(experiment: ExperimentRecord) -> list[str]:
    """Warnings about one experiment, each with its number: one line per kind, not per subject."""
    found: dict[str, dict[str, Lint]] = {}
    measured = []
    for subject in experiment.subjects:
        slices = [one for one in experiment.slices if one.subject == subject.name]
        if slices:
            measured.append(subject.name)
            for found_lint in (
                found_lint for rule in RULES for found_lint in rule(experiment, subject, slices)
            ):
                found.setdefault(found_lint.what, {})[subject.name] = found_lint
    return [*_options(experiment), *(_line(measured, by_name) for by_name in found.values())]


def _line(measured: Sequence[str], found: dict[str, Lint]) -> str:
    names = "all" if len(found) == len(measured) > 1 else ", ".join(found)
    found_lint = list(found.values())
    return f"{names}: {found_lint[0].of(found_lint)}"


def lint_record(record: Record) -> dict[str, list[str]]:
    """Warnings that need several experiments, by the name of the experiment."""
    found: dict[str, list[str]] = {}
    by_scenario: dict[str, list[ExperimentRecord]] = {}
    for experiment in record.experiments:
        if experiment.question == "capacity" and not experiment.control and experiment.slices:
            by_scenario.setdefault(experiment.scenario, []).append(experiment)
    for experiments in by_scenario.values():
        for first, second in pairwise(experiments):
            for found_lint in _same_for_all_loads(first, second):
                found.setdefault(second.name, []).append(found_lint)
    return found


def _unsteady(
    experiment: ExperimentRecord, subject: SubjectRecord, slices: Sequence[Slice]
) -> Iterator[Lint]:
    unsteady = [start for start in subject.starts if not start.steady]
    if unsteady:
        yield Lint(
            f"no steady state before the end of warming up, in {{}} of {len(subject.starts)} starts",
            len(unsteady),
        )


def _disturbed(
    experiment: ExperimentRecord, subject: SubjectRecord, slices: Sequence[Slice]
) -> Iterator[Lint]:
    pressure = max((start.pressure_cpu_share for start in subject.starts), default=0.0)
    steal = max((start.steal_share for start in subject.starts), default=0.0)
    if pressure > DISTURBED_PRESSURE:
        yield Lint("tasks waited for a core during up to {} of a restart", min(pressure, 1.0), "{:.0%}")
    if steal > DISTURBED_STEAL:
        yield Lint("the hypervisor took up to {} of the cores' time in a restart", steal, "{:.1%}")


def _few_restarts(
    experiment: ExperimentRecord, subject: SubjectRecord, slices: Sequence[Slice]
) -> Iterator[Lint]:
    restarts = len({one.restart for one in slices})
    if restarts < MIN_RESTARTS:
        count = f"{restarts} restart{'s' if restarts > 1 else ''}"
        yield Lint(f"{count}: differences between starts are hardly visible with fewer than {MIN_RESTARTS}")


def _too_short(
    experiment: ExperimentRecord, subject: SubjectRecord, slices: Sequence[Slice]
) -> Iterator[Lint]:
    total = sum(one.measured_s for one in slices)
    if total < MIN_S:
        yield Lint("{} s of load in all is too short", total, "{:.2f}")
    if experiment.is_of_pages:
        return
    length = median(one.measured_s for one in slices)
    p50 = median(one.response.p50_us for one in slices) / 1e6
    if length < MEDIANS_A_SLICE * p50:
        yield Lint("a slice holds only {} of its median latencies", length / p50, "{:.1f}")


def _few_samples(
    experiment: ExperimentRecord, subject: SubjectRecord, slices: Sequence[Slice]
) -> Iterator[Lint]:
    total = sum(one.response.count for one in slices)
    if total and total * 0.01 < SAMPLES_BEYOND:
        yield Lint(f"p99 is based on {{}} samples beyond it; {SAMPLES_BEYOND} are needed", total * 0.01)


def _little(experiment: ExperimentRecord, subject: SubjectRecord, slices: Sequence[Slice]) -> Iterator[Lint]:
    """In a closed loop without pauses mean latency is concurrency / rate (Little's law)."""
    connections = experiment.load.get("connections")
    if experiment.question != "capacity" or not isinstance(connections, int) or subject.kind != "server":
        return
    if experiment.is_of_pages:
        return  # connecting, and the ends of a page, are without requests
    under_way = connections * int(experiment.load.get("pipeline") or experiment.load.get("streams") or 1)
    count = sum(one.response.count for one in slices)
    answered, measured = sum(one.answered for one in slices), sum(one.measured_s for one in slices)
    if not count or not answered:
        return
    mean = sum(one.response.mean_us * one.response.count for one in slices) / count
    wanted = under_way * measured / answered * 1e6
    if abs(mean / wanted - 1) > LITTLE_SHARE:
        yield Lint(
            f"the mean latency is {{}} of what {under_way} requests in flight give at its rate: time passes outside of "
            "requests, or some are not in flight",
            mean / wanted,
            "{:.0%}",
        )


def _waiting(experiment: ExperimentRecord, subject: SubjectRecord, slices: Sequence[Slice]) -> Iterator[Lint]:
    pool = experiment.load.get("pool", subject.options.get("pool"))
    concurrency = max(
        (experiment.load[key] for key in CONCURRENCY_KEYS if isinstance(experiment.load.get(key), int)),
        default=0,
    )
    if str(pool).isdecimal() and int(str(pool)) < concurrency:
        yield Lint(
            f"a pool of {pool} connections is smaller than the {concurrency} concurrent requests: its times include waiting"
        )
    waits = [one.connection_wait_p99_us for one in slices if one.connection_wait_p99_us is not None]
    p50 = median(one.response.p50_us for one in slices)
    if waits and median(waits) > WAIT_SHARE * p50:
        yield Lint("requests waited {} us at p99 for a free connection: give more connections", median(waits))


def _options(experiment: ExperimentRecord) -> Iterator[str]:
    given = {one.name: _relevant_options(one) for one in experiment.subjects if not one.failure}
    tuned = [name for name, options in given.items() if options]
    if len(given) > 1 and len(tuned) == 1:
        found_lint = ", ".join(f"{key} {value}" for key, value in given[tuned[0]].items())
        yield f"only {tuned[0]} was given options ({found_lint})"


def _relevant_options(subject: SubjectRecord) -> dict[str, str]:
    return {key: value for key, value in subject.options.items() if key not in LOGGING}


def _same_for_all_loads(first: ExperimentRecord, second: ExperimentRecord) -> Iterator[str]:
    """Twice the connections at the same rate must double a closed loop's latency (Little's law)."""
    one, other = first.load.get("connections"), second.load.get("connections")
    if not isinstance(one, int) or not isinstance(other, int) or max(one, other) < 2 * min(one, other):
        return
    for subject in second.subjects:
        sides = [
            [each for each in experiment.slices if each.subject == subject.name]
            for experiment in (first, second)
        ]
        if not all(sides):
            continue
        p50 = [median(each.response.p50_us for each in side) for side in sides]
        rate = [median(each.per_s for each in side) for side in sides]
        if (
            p50[0]
            and abs(p50[1] / p50[0] - 1) < SAME
            and rate[0]
            and abs(rate[1] / rate[0] - 1) < LITTLE_SHARE
        ):
            yield f"{subject.name}: the same p50 of {p50[1]:.0f} us with {one} and {other} connections cannot be"


Rule = Callable[[ExperimentRecord, SubjectRecord, Sequence[Slice]], Iterator[Lint]]
RULES: tuple[Rule, ...] = (_unsteady, _disturbed, _few_restarts, _too_short, _few_samples, _little, _waiting)
