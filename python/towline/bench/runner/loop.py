"""The loop of one experiment: restarts, verification, warm-up, rounds of slices. The same for servers and clients.

A failed subject has a `failure`; if the run itself ends, also by an interrupt, everything is stopped and `record()`
has what was measured until then.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from .. import analysis
from ..record import PAGE, ExperimentRecord, Question, Slice, Start, SubjectRecord
from ..statistics.steady import is_steady
from ..subjects.machine import cpu_ticks, pressure_cpu_us, steal_share
from .design import (
    Design,
    Lengths,
    common_lengths,
    descriptions,
    orders,
    page_descriptions,
    page_lengths,
    shuffled,
)
from .interrupts import deferred
from .progress import Progress
from .protocol import Failed, Running, SliceSpec, Subject
from .quiesce import gc_disabled, pinned

ANSWERS_A_WINDOW = 20
"""A warm-up window grows until it has this many responses; with fewer, the rate is meaningless."""
MAX_WINDOW_S = 1.0
LAST_LOOK_S = 5.0
"""Duration of load after a slice without a response, to detect a subject that has stopped responding."""
LONG_FAILURE_S = 10.0
"""A counted slice of this duration with failed requests is not repeated. Timeouts would take most of the run, and the
subject has no verdict already."""
WARM_UP_PAGES = 3
AFTER_RESUME_S = 0.02
"""For timers that expired while the subject was stopped."""


@dataclass(frozen=True)
class ExperimentPlan:
    """The plan of one experiment. `load` is for the reader; the other fields determine the measurement."""

    name: str
    scenario: str
    title: str
    section: str
    subjects: tuple[Subject, ...]
    question: Question = "capacity"
    load: dict[str, Any] = field(default_factory=dict)
    rate_per_s: float | None = None
    """Open loop, the same rate for all."""
    poisson: bool = True
    requests: int | None = None
    """Requests of a slice, if the scenario counts them."""
    page: int | None = None
    """A slice is a page of this number of requests on new connections."""
    rounds: int | None = None
    """Rounds of a restart, if the scenario defines them."""
    search: bool = False
    """Each slice is a search for the highest rate that keeps the goal."""
    alone: bool = False
    """Subjects run one after the other, to measure their memory."""
    control: bool = False
    baseline: str | None = None
    """Baseline of this experiment, if the run's is not in it."""
    floor_s: float | None = None
    notes: tuple[str, ...] = ()


@dataclass
class _RunningState:
    """A subject between its start and its stop."""

    running: Running
    ready_after_s: float
    rss_ready_bytes: int
    warm_up_s: float = 0.0
    steady: bool = True
    median_s: float = 0.0
    warm_up_failed: int = 0
    warm_up_failure: str | None = None

    def note_failures(self, name: str, one: Slice) -> str | None:
        """Counts those of a slice of the warm-up. Returns a line about the first."""
        self.warm_up_failed += one.failed
        if not one.failed or self.warm_up_failure is not None:
            return None
        self.warm_up_failure = one.first_failure or "see the errors by class"
        return f"{name}: requests failed while it warmed up: {self.warm_up_failure}"


class ExperimentRun:
    """Measures one experiment. `run` may end by any exception; `record` is valid afterwards."""

    def __init__(self, plan: ExperimentPlan, design: Design, progress: Progress | None = None) -> None:
        self.plan, self.design, self.progress = plan, design, progress or Progress()
        self.notes = list(plan.notes)
        self.skipped: dict[str, str] = {}
        self._slices: list[Slice] = []
        self._records: dict[str, SubjectRecord] = {}
        self._lengths: dict[str, Lengths] = {}
        self._described = False
        self._timed_out: set[str] = set()

    def run(self) -> None:
        """Runs restarts until the stopping rule ends, or all subjects have failed."""
        with pinned(self.design.cores.driver):
            self._run()

    def _run(self) -> None:
        plan, rule = self.plan, self.design.rule
        self._describe()
        self.progress.experiment(
            plan.title if not plan.control else f"{plan.title} (A/A control)", rule.most, list(self._records)
        )
        for restart in range(rule.most):
            if not self._remaining():
                break
            self.progress.restart(restart)
            self._restart(restart)
            reason = rule.reason_to_end(restart + 1, self._comparisons())
            if reason is not None:
                if restart + 1 < rule.most:
                    self.notes.append(f"ended early: {reason}")
                break
        self.progress.ended(self.record())

    def record(self) -> ExperimentRecord:
        plan = self.plan
        load = dict(plan.load)
        if plan.rate_per_s is not None:
            load["rate_per_s"] = plan.rate_per_s
        return ExperimentRecord(
            name=plan.name,
            scenario=plan.scenario,
            title=plan.title,
            section=plan.section,
            question=plan.question,
            load=load,
            subjects=list(self._records.values()),
            slices=list(self._slices),
            control=plan.control,
            floor_s=plan.floor_s,
            notes=list(self.notes),
            baseline=plan.baseline,
        )

    # --- subjects ---------------------------------------------------------------------------------------

    def _describe(self) -> None:
        for subject in self.plan.subjects:
            described = subject.describe()
            if described.failure is not None:
                self.skipped[subject.name] = described.failure
            else:
                self._records[subject.name] = described

    def _remaining(self) -> list[Subject]:
        """Subjects without a failure, of which another slice is worth its time."""
        return [
            one
            for one in self.plan.subjects
            if one.name in self._records
            and self._records[one.name].failure is None
            and one.name not in self._timed_out
        ]

    @contextmanager
    def _failing(self, name: str, states: dict[str, _RunningState]) -> Iterator[None]:
        """A subject that raises `Failed` is stopped and noted, and the others continue."""
        try:
            yield
        except Failed as error:
            with deferred():
                state = states.pop(name)
                self._fail(name, error)
                if problem := state.running.stop():
                    self._note(problem)

    def _fail(self, name: str, error: Failed) -> None:
        self._records[name] = replace(self._records[name], failure=str(error), log=error.log)
        self.progress.message(f"{name} has no figures: {error}")

    def _note(self, line: str) -> None:
        if line not in self.notes:
            self.notes.append(line)
            self.progress.message(line)

    def _comparisons(self) -> Iterator[list[float]]:
        """The log ratios for the stopping rule: the baseline compared with each other subject, by the first metric."""
        record = self.record()
        names = [one.name for one in self._remaining()]
        if not names:
            return
        wanted = () if record.control else (self.design.baseline, record.baseline)
        first = next((name for name in wanted if name in names), names[0])
        metric = analysis.metrics_of(record)[0]
        by_name = {name: [one for one in self._slices if one.subject == name] for name in names}
        for name in names:
            if name != first:
                yield analysis.log_ratios(by_name[first], by_name[name], metric)

    # --- one restart ------------------------------------------------------------------------------------

    def _restart(self, restart: int) -> None:
        chance = self.design.chance(self.plan.name, restart)
        names = shuffled(chance, [one.name for one in self._remaining()])
        if self.plan.alone:
            for name in names:
                self._run_group(restart, [name], chance)
        else:
            self._run_group(restart, names, chance)

    def _run_group(self, restart: int, names: list[str], chance: random.Random) -> None:
        """Starts, warms up, measures and stops these subjects together."""
        states: dict[str, _RunningState] = {}
        began_pressure, began_ticks, began = pressure_cpu_us(), cpu_ticks(), time.monotonic()
        try:
            for name in names:
                self._start(name, states, chance)
            with gc_disabled():
                for name in list(states):
                    self._warm_up(name, states)
                began_pressure, began_ticks, began = pressure_cpu_us(), cpu_ticks(), time.monotonic()
                self._rounds(restart, states, chance)
        finally:
            waited = (pressure_cpu_us() or 0) - (began_pressure or 0)
            elapsed = max(time.monotonic() - began, 1e-9)
            share = (waited / 1e6 / elapsed, steal_share(began_ticks, cpu_ticks()))
            with deferred():
                for name in list(states):
                    self._stop(restart, name, states.pop(name), share)

    def _start(self, name: str, states: dict[str, _RunningState], chance: random.Random) -> None:
        subject = next(one for one in self.plan.subjects if one.name == name)
        self.progress.doing(name, "starts")
        began = time.monotonic()
        try:
            running = subject.start(self.design.start_config(chance))
        except Failed as error:
            self._fail(name, error)
            return
        states[name] = _RunningState(running, time.monotonic() - began, 0)
        with self._failing(name, states):
            states[name].rss_ready_bytes = running.memory().now_bytes
            self.progress.doing(name, "is checked")
            running.verify()
            if self.design.exclusive:
                running.pause()

    def _warm_up(self, name: str, states: dict[str, _RunningState]) -> None:
        state, rules = states[name], self.design.warm_up
        self.progress.doing(name, "warms up")
        if self.plan.page is not None:
            self._warm_up_pages(name, states)
            return
        window_s, rates, medians = rules.first_window_s, [], []
        with self._failing(name, states):
            began = time.monotonic()
            while True:
                sent = time.monotonic()
                one = self._measure(
                    state.running, SliceSpec(window_s, 0.0, None, self.plan.rate_per_s, self.plan.poisson)
                )
                if one.failed and not one.answered:
                    raise Failed(f"no request succeeded: {one.first_failure}")
                if line := state.note_failures(name, one):
                    self._note(line)
                took_s = time.monotonic() - sent
                rates.append(one.per_s)
                if one.answered:
                    medians.append(one.response.p50_us / 1e6)
                if one.answered < ANSWERS_A_WINDOW:
                    window_s = min(2 * window_s, MAX_WINDOW_S)
                state.warm_up_s = time.monotonic() - began
                state.steady = is_steady(rates, rules.windows)
                if state.steady or state.warm_up_s >= rules.cap_s:
                    break
            # Requests in flight at the end of a window are awaited: a response takes no longer than that.
            # The least disturbed window: one in which the core was stolen would make all slices longer.
            state.median_s = min(medians) if medians else min(took_s, MAX_WINDOW_S)

    def _warm_up_pages(self, name: str, states: dict[str, _RunningState]) -> None:
        """A few pages. Chance makes them differ by more than any warming up, so that none is asked whether it is steady."""
        state, began, times = states[name], time.monotonic(), []
        with self._failing(name, states):
            for _ in range(WARM_UP_PAGES):
                one = self._measure(state.running, SliceSpec(0.0, requests=self.plan.page))
                if not one.answered:
                    raise Failed(f"no request succeeded: {one.first_failure}")
                if line := state.note_failures(name, one):
                    self._note(line)
                times.append(one.measured_s)
            state.warm_up_s, state.median_s = time.monotonic() - began, median(times)

    def _rounds(self, restart: int, states: dict[str, _RunningState], chance: random.Random) -> None:
        if not states:
            return
        new = {name: state.median_s for name, state in states.items() if name not in self._lengths}
        self._lengths |= self._lengths_of(new)
        plan = self.plan
        if not self._described:
            self._described = True
            found = {name: self._lengths[name] for name in states}
            self.notes += (
                descriptions(found, plan.requests) if plan.page is None else page_descriptions(found)
            )
        requests = plan.requests or plan.page
        work = {
            name: self._lengths[name].work(plan.rate_per_s, poisson=plan.poisson, requests=requests)
            for name in states
        }
        rounds = max(self._lengths[name].rounds for name in states)
        for number, order in orders(chance, list(states), rounds):
            for position, name in enumerate(order):
                if name not in states or name in self._timed_out:
                    continue  # it failed meanwhile
                if not self._lengths[name].is_in_round(number, rounds):
                    continue
                with self._failing(name, states):
                    one = self._measure(states[name].running, work[name])
                    one = replace(one, subject=name, restart=restart, round=number, position=position)
                    if plan.page is not None and not one.failed:
                        one = replace(one, extra={**one.extra, PAGE: one.measured_s * 1e3})
                    self._slices.append(one)
                    self.progress.slice(one)
                    if not one.answered:
                        self._check_again(states[name].running, one.first_failure)
                    elif requests is not None and one.failed and one.measured_s >= LONG_FAILURE_S:
                        self._timed_out.add(name)
                        self._note(
                            f"{name}: not sent again after {one.failed:,} of {requests:,} requests failed "
                            f"in {one.measured_s:.0f} s"
                        )

    def _lengths_of(self, medians_s: dict[str, float]) -> dict[str, Lengths]:
        """The slices of subjects, the same in all restarts."""
        design = self.design
        if self.plan.page is not None:
            return page_lengths(design.seconds, medians_s)
        found = common_lengths(design.seconds, medians_s, self.plan.rate_per_s, design.shortest_slice_s)
        rounds = self.plan.rounds
        return found if rounds is None else {name: replace(one, rounds=rounds) for name, one in found.items()}

    def _check_again(self, running: Running, first_failure: str | None) -> None:
        """Raises `Failed` for a subject that no longer responds. A subject that was only slow keeps its slice."""
        if first_failure is None:
            look = SliceSpec(LAST_LOOK_S, 0.0, None, self.plan.rate_per_s, self.plan.poisson)
            one = self._measure(running, look)
            if one.answered:
                return
            first_failure = one.first_failure or f"{LAST_LOOK_S:g} s of load had no response"
        raise Failed(f"no request succeeds any more: {first_failure}")

    def _measure(self, running: Running, work: SliceSpec) -> Slice:
        if not self.design.exclusive:
            return running.slice(work)
        running.resume()
        time.sleep(AFTER_RESUME_S)
        try:
            return running.slice(work)
        finally:
            running.pause()

    def _stop(self, restart: int, name: str, state: _RunningState, share: tuple[float, float]) -> None:
        """Stops a subject; its memory is read before."""
        try:
            memory = state.running.memory()
            peak, end = memory.peak_bytes, memory.now_bytes
        except Failed:
            peak = end = 0
        finally:
            problem = state.running.stop()
        start = Start(
            restart,
            round(state.ready_after_s, 4),
            round(state.warm_up_s, 3),
            state.steady,
            state.rss_ready_bytes,
            peak,
            end,
            round(share[0], 5),
            round(share[1], 5),
            state.warm_up_failed,
            state.warm_up_failure,
        )
        self._records[name] = replace(self._records[name], starts=[*self._records[name].starts, start])
        if problem:
            self._note(f"{name}: {problem}" if not problem.startswith(name) else problem)
