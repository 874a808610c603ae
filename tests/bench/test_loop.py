"""The loop with simulated subjects: order, failures at every operation, and that everything is stopped."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from towline.bench import record as records
from towline.bench.analysis import analyse_experiment
from towline.bench.record import PAGE, ExperimentRecord, Slice
from towline.bench.runner.design import (
    MIN_PAGES,
    SLICE_S,
    Cores,
    Design,
    Lengths,
    WarmUp,
    common_lengths,
    lengths,
    page_lengths,
)
from towline.bench.runner.loop import (
    LAST_LOOK_S,
    LONG_FAILURE_S,
    WARM_UP_PAGES,
    ExperimentPlan,
    ExperimentRun,
)
from towline.bench.runner.protocol import SliceSpec
from towline.bench.runner.session import Session
from towline.bench.statistics.stopping import Rule
from towline.bench.verdict import Verdict

from tests.bench.simulator import Simulated, SimulatedMachine, SimulatedRunning, failing

DESIGN = Design(
    Rule("fixed", 3, 3),
    seconds=0.8,
    warm_up=WarmUp(windows=8, cap_s=0.05),
    cores=Cores(None, None),
    baseline="a",
)
PLACES = ("start", "verify", "slice")


def plan(*subjects: Simulated, **other: object) -> ExperimentPlan:
    return ExperimentPlan("experiment", "s", "simulated", "own", subjects, **other)  # type: ignore[arg-type]


def three(machine: SimulatedMachine) -> list[Simulated]:
    return [Simulated(name, machine) for name in "abc"]


def order(experiment: ExperimentRecord) -> list[tuple[int, int, int, str]]:
    return [(one.restart, one.round, one.position, one.subject) for one in experiment.slices]


def measured(design: Design, *subjects: Simulated, **other: object) -> ExperimentRecord:
    run = ExperimentRun(plan(*subjects, **other), design)
    run.run()
    return run.record()


def test_every_round_has_all_subjects_in_its_own_order() -> None:
    experiment = measured(replace(DESIGN, seconds=1.5), *three(SimulatedMachine(1)))
    rounds = defaultdict(list)
    for restart, number, position, name in order(experiment):
        assert position == len(rounds[restart, number])
        rounds[restart, number].append(name)
    assert len(rounds) == 3 * 50
    assert all(sorted(names) == ["a", "b", "c"] for names in rounds.values())
    firsts = [names[0] for names in rounds.values()]
    assert min(firsts.count(name) for name in "abc") > 30, "nobody has a place of its own"
    assert len({tuple(names) for names in rounds.values()}) == 6


def test_the_seed_decides_the_order() -> None:
    first, second = (measured(replace(DESIGN, seed=5), *three(SimulatedMachine(1))) for _ in range(2))
    other = measured(replace(DESIGN, seed=6), *three(SimulatedMachine(1)))
    assert order(first) == order(second) != order(other)


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("after", [0, 1, 30])
def test_a_failing_subject_is_one_line_and_the_others_continue(where: str, after: int) -> None:
    machine = SimulatedMachine(1)
    good, bad = Simulated("a", machine), Simulated("b", machine, fault=failing(where, after))
    experiment = measured(DESIGN, good, bad, Simulated("c", machine))
    failed = {one.name: one.failure for one in experiment.subjects}
    if not (where != "slice" and after == 30):  # so many starts there are not
        assert failed == {"a": None, "b": f"made to fail at {where}", "c": None}
        assert next(one for one in experiment.subjects if one.name == "b").log == "its last words"
    for name in "ac":
        assert sum(one.subject == name for one in experiment.slices) == 3 * int(DESIGN.seconds / SLICE_S)
    assert machine.alive == set()


@pytest.mark.parametrize(("alive", "failure"), [(True, None), (False, "no request succeeds any more")])
def test_a_subject_is_checked_again_after_a_slice_without_a_response(
    alive: bool, failure: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = SimulatedRunning.slice

    def slice_of(state: SimulatedRunning, work: SliceSpec) -> Slice:
        one = original(state, work)
        is_second_check = work.duration_s == LAST_LOOK_S
        silent = state.subject.name == "b" and work.discard_s > 0.0
        return replace(one, answered=0) if silent or (is_second_check and not alive) else one

    monkeypatch.setattr(SimulatedRunning, "slice", slice_of)
    machine = SimulatedMachine(1)
    experiment = measured(DESIGN, *(Simulated(name, machine) for name in "ab"))
    first, second = (one.failure for one in experiment.subjects)
    assert first is None
    assert second is None if failure is None else failure in (second or "")
    assert machine.alive == set()


@pytest.mark.parametrize(
    ("failed", "took_s", "requests", "expected"),
    [
        (5, LONG_FAILURE_S, 4000, 1),
        (5, LONG_FAILURE_S / 2, 4000, 9),  # failed fast
        (0, 3 * LONG_FAILURE_S, 4000, 9),  # slow, but complete
        (5, LONG_FAILURE_S, None, 9),  # a slice of a given duration
    ],
)
def test_a_counted_slice_that_waited_for_timeouts_is_not_repeated(
    failed: int, took_s: float, requests: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = SimulatedRunning.slice

    def slice_of(state: SimulatedRunning, work: SliceSpec) -> Slice:
        one = original(state, work)
        is_warm_up = work.discard_s == 0.0 and work.requests is None
        if state.subject.name == "a" or is_warm_up:
            return one
        return replace(one, failed=failed, measured_s=took_s)

    monkeypatch.setattr(SimulatedRunning, "slice", slice_of)
    machine = SimulatedMachine(1)
    subjects = [Simulated(name, machine) for name in "ab"]
    experiment = measured(DESIGN, *subjects, requests=requests, rounds=3)
    assert sum(one.subject == "a" for one in experiment.slices) == 9
    assert sum(one.subject == "b" for one in experiment.slices) == expected
    assert [one.failure for one in experiment.subjects] == [None, None]
    assert any("b: not sent again" in line for line in experiment.notes) == (expected == 1)
    assert machine.alive == set()


def test_failures_of_the_warm_up_are_recorded_and_take_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    original = SimulatedRunning.slice

    def slice_of(state: SimulatedRunning, work: SliceSpec) -> Slice:
        one = original(state, work)
        is_warm_up = work.discard_s == 0.0
        return (
            replace(one, failed=2, first_failure="it hangs")
            if state.subject.name == "b" and is_warm_up
            else one
        )

    monkeypatch.setattr(SimulatedRunning, "slice", slice_of)
    machine = SimulatedMachine(1)
    experiment = measured(DESIGN, *(Simulated(name, machine) for name in "ab"))
    assert not any(one.failed for one in experiment.slices)
    starts = {one.name: one.starts for one in experiment.subjects}
    assert all(start.warm_up_failed >= 2 for start in starts["b"])
    assert not any(start.warm_up_failed for start in starts["a"])
    assert "b: requests failed while it warmed up: it hangs" in experiment.notes
    found = analyse_experiment(experiment, "a").comparison("a", "b")
    assert found is not None
    assert found.verdict is Verdict.REFUSED


OBJECTS = 100


def pages(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float], late: float = 0.0) -> ExperimentRecord:
    """Pages that take so long on average; a share of those of `b` takes a second more."""
    asked = defaultdict(list)

    def slice_of(state: SimulatedRunning, work: SliceSpec) -> Slice:
        name, chance = state.subject.name, state.subject.machine.rng
        asked[name].append(work)
        took_s = seconds[name] * chance.uniform(0.8, 1.2) + (name == "b" and chance.random() < late)
        return Slice("", 0, 0, 0, 0.0, took_s, OBJECTS, subject_cpu_s=0.01)

    monkeypatch.setattr(SimulatedRunning, "slice", slice_of)
    machine = SimulatedMachine(1)
    design = replace(DESIGN, rule=Rule("fixed", 8, 8), seconds=6.0)
    found = measured(
        design, *(Simulated(name, machine) for name in seconds), page=OBJECTS, load={"page": OBJECTS}
    )
    # Nothing but whole pages, in warming up, too.
    assert all(work.requests == OBJECTS for each in asked.values() for work in each)
    for name, each in asked.items():
        assert len(each) == sum(one.subject == name for one in found.slices) + 8 * WARM_UP_PAGES
    return found


def test_a_slice_of_a_page_load_is_one_page(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = pages(monkeypatch, {"a": 0.3, "b": 0.6})
    counts = {name: sum(one.subject == name for one in experiment.slices) for name in "ab"}
    # As many pages of each, for as long as the design says on average.
    assert counts["a"] == counts["b"]
    assert 8 * 10 <= counts["a"] <= 8 * 18
    assert all(one.extra[PAGE] == pytest.approx(one.measured_s * 1e3) for one in experiment.slices)
    assert any("pages of each a restart" in line for line in experiment.notes)
    found = analyse_experiment(experiment, "a")
    (comparison,) = [one for one in found.comparisons if one.metric == "per_s"]
    assert comparison.verdict.value == "faster"
    assert comparison.low < 2 < comparison.high
    times = {one.name: one.figures[PAGE].value for one in found.subjects}
    assert times == pytest.approx({"a": 300, "b": 600}, rel=0.05)
    assert sum("a page took" in line for line in found.lints) == 2
    assert not any("median latencies" in line or "stood still" in line for line in found.lints)


def test_rare_long_pages_count_in_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost last packet makes one page of ten a second longer: a trimmed mean would not know."""
    experiment = pages(monkeypatch, {"a": 0.3, "b": 0.3}, late=0.1)
    found = analyse_experiment(experiment, "a").comparison("a", "b")
    assert found is not None
    assert found.ratio == pytest.approx(0.4 / 0.3, rel=0.15)


def test_pages_that_take_longer_than_the_time_are_two_at_least() -> None:
    found = page_lengths(1.0, {"a": 3.0, "b": 5.0})
    assert [one.rounds for one in found.values()] == [MIN_PAGES, MIN_PAGES]
    assert [one.rounds for one in page_lengths(9.0, {"a": 1.0, "b": 0.5}).values()] == [12, 12]


def test_an_experiment_ends_when_all_subjects_fail() -> None:
    machine = SimulatedMachine(1)
    experiment = measured(DESIGN, *(Simulated(name, machine, fault=failing("verify")) for name in "ab"))
    assert experiment.slices == []
    assert machine.started == 2, "nobody is started again"
    assert machine.alive == set()


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("after", [0, 1, 50])
def test_an_interrupt_stops_everything_and_keeps_the_measurements(
    where: str, after: int, tmp_path: object
) -> None:
    machine, seen = SimulatedMachine(1), 0

    def interrupt(operation: str) -> None:
        nonlocal seen
        if operation == where:
            seen += 1
            if seen > after:
                raise KeyboardInterrupt

    session = Session(DESIGN)
    interrupted = plan(Simulated("a", machine), Simulated("b", machine, fault=interrupt))
    try:
        session.measure(interrupted)
        assert where != "slice"
        assert after == 50
    except KeyboardInterrupt:
        pass
    assert machine.alive == set()
    record = session.finish(interrupted=True).experiments[0]
    assert [one.failure for one in record.subjects] == [None, None], "an interrupt is nobody's failure"
    if where == "slice" and after == 50:
        assert len(record.slices) > 40


def test_a_record_survives_its_file(tmp_path: object) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "result.json.gz"
    session = Session(DESIGN, path=path, command=["towline", "bench"])
    session.measure(plan(*three(SimulatedMachine(1))))
    assert records.load(path).interrupted, "until it is finished, a file is of a run under way"
    finished = session.finish()
    assert records.load(path) == finished
    assert not finished.interrupted


def test_exclusive_subjects_run_one_at_a_time() -> None:
    machine, stopped, max_running = SimulatedMachine(1), set[str](), 0

    def progress(name: str) -> object:
        def fault(operation: str) -> None:
            nonlocal max_running
            if operation == "pause":
                stopped.add(name)
            elif operation == "resume":
                stopped.discard(name)
                max_running = max(max_running, 2 - len(stopped))
            elif operation == "slice":
                assert name not in stopped

        return fault

    subjects = [Simulated(name, machine, fault=progress(name)) for name in "ab"]  # type: ignore[arg-type]
    experiment = measured(replace(DESIGN, exclusive=True, rule=Rule("fixed", 1, 1), seconds=0.2), *subjects)
    assert len(experiment.slices) == 4, "slices of 100 ms"
    assert max_running == 1


def test_alone_means_one_after_the_other() -> None:
    machine = SimulatedMachine(1)
    alive: list[int] = []
    subjects = [
        Simulated(name, machine, fault=lambda operation: alive.append(len(machine.alive))) for name in "ab"
    ]
    experiment = measured(DESIGN, *subjects, alone=True, rounds=1)
    assert max(alive) == 1
    assert len(experiment.slices) == 3 * 2


def test_a_missing_subject_is_skipped_without_failure() -> None:
    machine = SimulatedMachine(1)
    run = ExperimentRun(plan(Simulated("a", machine), Simulated("b", machine, missing="not here")), DESIGN)
    run.run()
    assert run.skipped == {"b": "not here"}
    assert [one.name for one in run.record().subjects] == ["a"]


def test_no_steady_state_is_recorded() -> None:
    machine = SimulatedMachine(1)
    rising = Simulated("a", machine)

    def faster(operation: str) -> None:
        if operation == "slice":
            rising.per_s *= 1.03

    rising.fault = faster
    experiment = measured(replace(DESIGN, rule=Rule("fixed", 1, 1)), rising)
    assert [start.steady for start in experiment.subjects[0].starts] == [False]


@pytest.mark.parametrize(
    ("seconds", "median_s", "rate", "expected"),
    [
        (2.4, 0.0005, None, Lengths(0.03, 80)),
        (2.4, 0.010, None, Lengths(0.2, 12)),  # twenty medians
        (2.4, 0.2, None, Lengths(4.0, 1)),  # too slow to alternate: a complete window
        (0.4, 0.0005, None, Lengths(0.4 / 13, 13)),
    ],
)
def test_lengths_of_slices(seconds: float, median_s: float, rate: float | None, expected: Lengths) -> None:
    found = lengths(seconds, median_s, rate)
    assert found.rounds == expected.rounds
    assert found.slice_s == pytest.approx(expected.slice_s)
    assert found.whole == (expected.rounds == 1)


def test_a_slow_subject_has_longer_slices_and_the_others_still_alternate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = SimulatedRunning.slice

    def slice_of(state: SimulatedRunning, work: SliceSpec) -> Slice:
        one = original(state, work)
        slow = replace(one.response, p50_us=60_000.0)
        return replace(one, response=slow) if state.subject.name == "b" else one

    monkeypatch.setattr(SimulatedRunning, "slice", slice_of)
    machine = SimulatedMachine(1)
    experiment = measured(replace(DESIGN, seconds=2.4), *(Simulated(name, machine) for name in "abc"))
    of_first = [one for one in experiment.slices if one.restart == 0]
    assert [sum(one.subject == name for one in of_first) for name in "abc"] == [80, 2, 80]
    slow = [one for one in of_first if one.subject == "b"]
    assert slow[0].measured_s == pytest.approx(1.2 * 0.9)
    assert [one.round for one in slow] == [19, 59], "spread over the restart"
    assert experiment.notes[:2] == ["80 slices of 30 ms a restart", "b: 2 slices of 1200 ms a restart"]


def test_fast_subjects_have_slices_of_the_same_length() -> None:
    found = common_lengths(2.4, {"a": 0.0005, "b": 0.002, "c": 0.0025, "slow": 0.03})
    assert found["a"] == found["b"] == found["c"]
    assert (found["a"].rounds, found["slow"].rounds) == (48, 4)


@pytest.mark.parametrize("cap_s", [0.3, 0.6, 1.2, 6.0])
def test_a_short_warm_up_can_find_a_steady_state(cap_s: float) -> None:
    rules = WarmUp(cap_s=cap_s)
    assert rules.windows * rules.first_window_s <= max(cap_s / 2, 0.06)
    assert rules.first_window_s <= 0.1


def test_windows_of_a_rate_hold_samples_enough() -> None:
    assert lengths(4.0, 0.0005, 2_000).slice_s * 0.9 * 2_000 >= 1000
    assert lengths(4.0, 0.0005, 50_000).slice_s < 0.3
    assert lengths(8.0, 0.0005, 100).slice_s < 3, "a slow rate makes no endless window"
