"""Measures the comparison of a command line: checks the subjects, announces what is done, runs the experiments.

```text
options ─► names, requests: errors ─► announcement ─► work trees ─► each subject once: errors ─► experiment ─► control
```
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...errors import ConfigError
from ..analysis import Analysis
from ..analysis import Comparison as PairComparison
from ..runner.agent import Agent
from ..runner.design import Design, lengths
from ..runner.drivers import Drivers
from ..runner.interrupts import deferred
from ..runner.loop import ExperimentPlan
from ..runner.protocol import Failed, SliceSpec
from ..runner.servers import Binding, load_over
from ..runner.session import Session
from ..scenarios import Protocol, Scenario
from ..subjects import make_certificate
from ..subjects.work_trees import Range
from ..verdict import Verdict
from .options import CompareOptions, estimated_s
from .requests import Requests, requests_of, title_for, without
from .subjects import NamedSubject, apps, attached, check_servers, commands, unique

TRIAL_S = 0.2
"""Load on each subject before the measurement, to know how long its responses take."""
WORTH_A_LINE = 1.3
"""The estimate is corrected when it was wrong by this factor."""
NOT_RESTARTED = "running servers are not restarted: the interval lacks the differences between starts; --app and --command include them"


@dataclass(frozen=True)
class Comparison:
    """The subjects, the requests and the design of a command line."""

    options: CompareOptions
    names: Sequence[str]
    subjects: tuple[NamedSubject, ...]
    requests: Requests
    design: Design
    notes: tuple[str, ...] = ()

    @property
    def scenario(self) -> Scenario:
        return self.requests.scenario

    @property
    def protocol(self) -> Protocol:
        return self.scenario.protocols[0]

    @property
    def starts(self) -> int:
        """Starts in each restart."""
        return self.options.started(len(self.names))

    def title(self, subjects: Sequence[NamedSubject]) -> str:
        return title_for(self.scenario, {one.name: one.own_target for one in subjects})

    def announcement(self) -> str:
        """One line: what is compared, how, and how long it takes."""
        names = self.names
        design, rule = self.design, self.design.rule
        how = f"{rule.least} restarts" if rule.kind == "fixed" else f"{rule.least} to {rule.most} restarts"
        number = self.scenario.connections
        load = "1 connection" if number == 1 else f"{number} connections"
        if self.options.rate is not None:
            load += f", {self.options.rate:g} requests/s"
        most = "at most" if rule.kind != "fixed" else "about"
        return (
            f"compares {', '.join(names[:-1])} and {names[-1]}: {self.title(self.subjects)}, {load}; "
            f"{how} with {design.seconds:g} s of load on each"
            f"{'' if self.options.no_control else ', a control'}; "
            f"{most} {duration(estimated_s(design, self.starts))}"
        )


def duration(seconds: float) -> str:
    """`40 s`, `2 min`, `1 min 30 s`: in steps of 10 s."""
    whole = max(10, round(seconds / 10) * 10)
    minutes, rest = divmod(whole, 60)
    if minutes == 0:
        return f"{rest} s"
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


@contextlib.contextmanager
def prepared(
    options: CompareOptions, announce: Callable[[str], None], message: Callable[[str], None]
) -> Iterator[Comparison]:
    """The comparison, announced in one line, and with its work trees until the end.

    `message`: lines about builds. Raises `ConfigError` for invalid arguments.
    """
    check_servers(options)
    requests = requests_of(options)
    with contextlib.ExitStack() as stack:
        if options.git is not None:
            revisions = Range.of(options.git, Path.cwd())
            names = [revisions.old.name, revisions.new.name]
            announced = Comparison(options, names, (), requests, _design(options, names, revisions.new.name))
            after = " after the builds" if options.build is not None else ""
            announce(announced.announcement() + after)
            folders = stack.enter_context(revisions.checked_out(options.build, message))
            subjects = (*apps(options, folders), *commands(options, folders))
            yield replace(announced, subjects=subjects, notes=(revisions.note(),))
            return
        subjects = (*attached(options), *apps(options), *commands(options))
        names = [one.name for one in subjects]
        comparison = Comparison(
            options, names, subjects, requests, _design(options, names, names[0] if names else None)
        )
        announce(comparison.announcement())
        yield comparison


def _design(options: CompareOptions, names: Sequence[str], usual_baseline: str | None) -> Design:
    """Raises `ConfigError` for names that cannot be compared."""
    unique(names)
    if len(names) < 2 or usual_baseline is None:
        raise ConfigError(
            f"{names[0] if names else 'nothing'} alone cannot be compared; give two URLs, --app with two of "
            "--server, two of --command, or --git (`towline load URL` measures one server)"
        )
    if options.baseline is not None and options.baseline not in names:
        raise ConfigError(f"baseline: {options.baseline!r} is none of {', '.join(names)}")
    return options.design(len(names), options.baseline or usual_baseline)


def compare_servers(session: Session, comparison: Comparison) -> None:
    """Measures it. Raises `ConfigError` for a subject that does not start, or does not respond as it must."""
    options = comparison.options
    drivers = Drivers.of(options)
    with (
        Agent(session.design.cores.driver, drivers.generator()) as agent,
        tempfile.TemporaryDirectory() as folder,
    ):
        comparison = replace(comparison, notes=(*comparison.notes, *drivers.introduced(agent)))
        binding = Binding(
            comparison.scenario,
            agent,
            comparison.options.connections,
            tls=make_certificate(Path(folder)).tls if comparison.protocol == "h3" else None,
            peers_bin=comparison.options.peers_bin,
            protocol=comparison.protocol,
            drivers=drivers,
        )
        if comparison.requests.guessed:
            comparison = _without_refused(session, comparison, binding)
            binding = replace(binding, scenario=comparison.scenario)
        notes = _trial(session, comparison, binding)
        plan = _plan(comparison, binding, notes)
        record = session.measure(plan)
        measured = sum(one.failure is None for one in record.subjects)
        if measured > 1 and not comparison.options.no_control:
            session.measure(_control(comparison, binding, plan))


def _plan(comparison: Comparison, binding: Binding, notes: tuple[str, ...]) -> ExperimentPlan:
    scenario, options = comparison.scenario, comparison.options
    load: dict[str, object] = {"connections": options.connections, **load_over(scenario, comparison.protocol)}
    if options.rate is not None:
        load["rate_per_s"] = options.rate
    return ExperimentPlan(
        name=scenario.name,
        scenario=scenario.name,
        title=comparison.title(comparison.subjects),
        section=scenario.section,
        subjects=tuple(one.make(one.name, binding) for one in comparison.subjects),
        question="capacity" if options.rate is None else "latency",
        load=load,
        rate_per_s=options.rate,
        notes=(*scenario.notes, *notes),
        baseline=comparison.design.baseline,
    )


def _control(comparison: Comparison, binding: Binding, plan: ExperimentPlan) -> ExperimentPlan:
    """The baseline compared with itself: any difference is an error of the bench."""
    one = next(one for one in comparison.subjects if one.name == comparison.design.baseline)
    return replace(
        plan,
        name=f"{plan.name} control",
        title=comparison.title([one]),
        subjects=(one.make(one.name, binding), one.make(f"{one.name} again", binding)),
        control=True,
        notes=("the same server twice: any difference is the bench's own",),
    )


# --- the trial ------------------------------------------------------------------------------------------


def _trial(session: Session, comparison: Comparison, binding: Binding) -> tuple[str, ...]:
    """Starts each subject once and checks its responses, so that a mistake is known at once.

    Returns notes for the record. Raises `ConfigError`.
    """
    notes = [*comparison.notes, *(one.note for one in comparison.subjects if one.note is not None)]
    bodies: dict[str, list[tuple[int, int, str]]] = {}
    start_s, median_s = 0.0, 0.0
    for one in comparison.subjects:
        began = time.monotonic()
        subject = one.make(one.name, binding)
        if (missing := subject.describe().failure) is not None:
            raise ConfigError(f"{one.name}: {missing}")
        try:
            running = subject.start(session.design.start_config(session.design.chance("trial", 0)))
            try:
                running.verify()
                start_s += time.monotonic() - began
                responses = binding.agent.probe(one.name)
                bodies[one.name] = [
                    (found["status"], found["body_bytes"], found["sha256"]) for found in responses
                ]
                if any(found["version"] == "HTTP/1.0" for found in responses):
                    notes.append(f"{one.name} responds with HTTP/1.0")
                look = running.slice(SliceSpec(TRIAL_S, 0.0, None, comparison.options.rate))
                if look.failed:
                    notes.append(f"{one.name}: requests failed when it was tried: {look.first_failure}")
                median_s = max(median_s, look.response.p50_us / 1e6 if look.answered else TRIAL_S)
            finally:
                with deferred():
                    running.stop()
        except Failed as failed:
            raise ConfigError(_one_line(one.name, str(failed))) from None
    _correct(session, comparison, start_s / len(comparison.subjects), median_s)
    if any(one.running for one in comparison.subjects):
        notes.append(NOT_RESTARTED)
    if (note := different_responses(bodies)) is not None:
        session.progress.message(note)
        notes.append(note)
    return tuple(notes)


def _without_refused(session: Session, comparison: Comparison, binding: Binding) -> Comparison:
    """Without the requests with made-up values that the first subject refuses. Raises `ConfigError`."""
    one = comparison.subjects[0]
    try:
        running = one.make(one.name, binding).start(
            session.design.start_config(session.design.chance("trial", 0))
        )
    except Failed as failed:
        raise ConfigError(_one_line(one.name, str(failed))) from None
    try:
        binding.agent.open(one.name, running.config())
        responses = binding.agent.probe(one.name)
    finally:
        with deferred():
            binding.agent.close(one.name)
            running.stop()
    refused = {
        request.target
        for request, found in zip(comparison.scenario.requests, responses, strict=True)
        if request.target in comparison.requests.guessed and 400 <= (found["status"] or 0) < 500
    }
    if not refused:
        return comparison
    scenario = without(comparison.scenario, refused)
    session.progress.message(scenario.notes[-1])
    return replace(comparison, requests=replace(comparison.requests, scenario=scenario))


def _one_line(name: str, reason: str) -> str:
    return reason if reason.startswith(f"{name}: ") else f"{name}: {reason}"


def _correct(session: Session, comparison: Comparison, start_s: float, median_s: float) -> None:
    """Announces another duration if servers start, or respond, slower than was assumed."""
    design = comparison.design
    known = lengths(design.seconds, median_s, comparison.options.rate, design.shortest_slice_s)
    real = replace(design, seconds=known.rounds * known.slice_s)
    expected_s = estimated_s(real, comparison.starts, max(start_s, 0.1))
    if expected_s > WORTH_A_LINE * estimated_s(design, comparison.starts):
        session.progress.message(
            f"they start in {start_s:.1f} s and respond in {median_s * 1e3:.0f} ms: about {duration(expected_s)} in all"
        )


def different_responses(bodies: Mapping[str, list[tuple[int, int, str]]]) -> str | None:
    """A note when the subjects do not send the same responses: (status, bytes, SHA-256) by request."""
    first, *others = bodies
    for name in others:
        for number, (ours, theirs) in enumerate(zip(bodies[first], bodies[name], strict=True), 1):
            of = f" to request {number}" if len(bodies[first]) > 1 else ""
            if ours[:2] != theirs[:2]:
                return (
                    f"the responses{of} differ: {first} has status {ours[0]} and {ours[1]:,} bytes, "
                    f"{name} status {theirs[0]} and {theirs[1]:,} bytes"
                )
            if ours[2] != theirs[2]:
                return f"the bodies{of} of {first} and {name} differ, both of {ours[1]:,} bytes"
    return None


# --- the verdicts in words ------------------------------------------------------------------------------


def conclusion(analysis: Analysis) -> list[str]:
    """A line for each comparison with the baseline, for a reader who has not seen a table of the bench before."""
    lines = []
    for experiment in analysis.experiments:
        if experiment.experiment.control:
            continue
        metric = experiment.experiment.main_metric
        lines += [sentence(one, analysis.margin) for one in experiment.comparisons if one.metric == metric]
        lines += [f"{one.name} has no figures: {one.failure}" for one in experiment.subjects if one.failure]
    return lines


def sentence(one: PairComparison, margin: float) -> str:
    """The verdict on one pair; the faster one is its subject."""
    ours, theirs, ratio, low, high = one.subject, one.baseline, one.ratio, one.low, one.high
    verdict = one.verdict
    if verdict is Verdict.SLOWER:
        ours, theirs, verdict = theirs, ours, Verdict.FASTER
        ratio, low, high = 1 / ratio, 1 / high, 1 / low
    what = "the requests/s" if one.metric == "per_s" else "the median latency"
    figures = f"{ratio:.3g} times {what} ({low:.3g} to {high:.3g})"
    if verdict is Verdict.FASTER:
        return f"{ours} is faster than {theirs}: {figures}"
    if verdict is Verdict.EQUIVALENT:
        return f"{ours} and {theirs} are equivalent, within {margin:.0%}: {figures}"
    if verdict is Verdict.REFUSED:
        return f"no verdict on {ours} and {theirs}: {one.reason}"
    more = f"; about {one.restarts_needed} restarts would decide (--runs)" if one.restarts_needed else ""
    return f"{ours} compared with {theirs} is {verdict.value}: {figures}{more}"


def recorded(arguments: Sequence[str]) -> list[str]:
    """The arguments for the record: without folders of this machine, and without the values of headers."""
    found: list[str] = []
    for argument in arguments:
        flag = found[-1] if found else ""
        if flag in ("-H", "--header"):
            argument = _secret(argument)
        elif argument.startswith("--header="):
            argument = f"--header={_secret(argument.partition('=')[2])}"
        found.append(re.sub(r"(?<![\w.:/])/(?:[\w.@+-]+/)+", ".../", argument))
    return found


def _secret(line: str) -> str:
    """A header without its value, which may be a credential."""
    return f"{line.partition(':')[0]}: ..."
