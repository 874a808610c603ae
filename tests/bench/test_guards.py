"""Each guard and each lint: a record that triggers it, and a similar one that does not."""

from dataclasses import replace

import pytest
from towline.bench.analysis import analyse, analyse_experiment
from towline.bench.guards import refusal
from towline.bench.lints import lint, lint_record
from towline.bench.record import ExperimentRecord
from towline.bench.verdict import Verdict

from .synthetic import HELLO, Truth, control, experiment, record

PAIR = HELLO[:2]


@pytest.fixture(scope="module")
def capacity() -> ExperimentRecord:
    # Connections that fulfil Little's law: 50 requests in flight at 60,000/s take 833 us.
    truths = tuple(replace(one, p50_us=50 / one.per_s * 1e6, tail=0.02) for one in PAIR)
    return experiment("hello", truths, samples=300, rounds=5, restarts=6, slice_s=0.2)


@pytest.fixture(scope="module")
def latency() -> ExperimentRecord:
    return experiment(
        "hello_at", PAIR, question="latency", rate_per_s=8000, samples=300, rounds=5, restarts=6, slice_s=0.2
    )


def with_slices(one: ExperimentRecord, subject: str = "granian", **more: object) -> ExperimentRecord:
    changed = [replace(each, **more) if each.subject == subject else each for each in one.slices]  # type: ignore[arg-type]
    return replace(one, slices=changed)


def with_starts(one: ExperimentRecord, subject: str = "granian", **more: object) -> ExperimentRecord:
    def start(each):
        return replace(each, starts=[replace(entry, **more) for entry in each.starts])

    return replace(one, subjects=[start(each) if each.name == subject else each for each in one.subjects])


def reason(one: ExperimentRecord, metric: str) -> str | None:
    sides = [[each for each in one.slices if each.subject == truth.name] for truth in PAIR]
    return refusal(one, metric, *sides)


def test_a_sound_record_passes_all_guards(capacity, latency):
    assert reason(capacity, "per_s") is None
    assert reason(latency, "p50_us") is None
    assert lint(capacity) == []
    assert lint(latency) == []
    assert lint_record(record(capacity, latency)) == {}


@pytest.mark.parametrize(
    ("where", "invalid", "valid", "message"),
    [
        ("slices", {"failed": 1, "first_failure": "reset"}, {"refused": 1}, "requests failed (reset)"),
        (
            "starts",
            {"warm_up_failed": 2, "warm_up_failure": "no response"},
            {"steady": False},
            "requests failed while it warmed up (no response)",
        ),
        (
            "slices",
            {"driver_busiest_share": 0.9, "subject_busiest_share": 0.6},
            {"driver_busiest_share": 0.9, "subject_busiest_share": 0.97},
            "the driver used 90% of its core",
        ),
        (
            "slices",
            {"driver_busiest_share": 0.5, "driver_waited_share": 0.45, "subject_busiest_share": 0.6},
            {"driver_busiest_share": 0.5, "driver_waited_share": 0.45, "subject_busiest_share": 0.97},
            "or waited for it, for 95% of the time",
        ),
    ],
)
def test_guards_of_capacity(capacity, where, invalid, valid, message):
    change = with_slices if where == "slices" else with_starts
    found = reason(change(capacity, **invalid), "per_s")
    assert found is not None
    assert found.startswith("granian: ")
    assert message in found
    assert reason(change(capacity, **valid), "per_s") is None


def test_noise_is_a_warning_and_no_refusal(capacity):
    noisy = with_starts(capacity, pressure_cpu_share=0.9, steal_share=0.2)
    assert reason(noisy, "per_s") is None
    assert len(lints_of(noisy, "the hypervisor took up to 20.0%")) == 1
    assert len(lints_of(noisy, "waited for a core")) == 1
    found = analyse_experiment(noisy, "towline").comparison("towline", "granian")
    assert found is not None
    assert found.verdict is Verdict.FASTER


def judged(*experiments):
    return analyse(record(*experiments)).experiment("hello").comparison("towline", "granian")


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, Verdict.FASTER), (2.5, Verdict.REFUSED)])
def test_a_control_that_differs_as_much_takes_the_verdict(capacity, factor, verdict):
    twins = control(restarts=6, rounds=5, samples=300)
    first = twins.subjects[0].name
    changed = [
        replace(each, answered=round(each.answered * factor)) if each.subject == first else each
        for each in twins.slices
    ]
    found = judged(capacity, replace(twins, slices=changed))
    assert found.verdict is verdict
    if factor != 1.0:
        assert "the A/A control is different" in (found.reason or "")


def test_a_control_that_is_wider_than_the_difference_takes_the_verdict(capacity):
    twins = control(restarts=6, rounds=5, samples=300)
    first = twins.subjects[0].name
    wide = [
        replace(each, answered=round(each.answered * 2.0 ** (each.restart % 3 - 1)))
        if each.subject == first
        else each
        for each in twins.slices
    ]
    found = judged(capacity, replace(twins, slices=wide))
    assert found.verdict is Verdict.REFUSED
    assert "the A/A control is too wide" in (found.reason or "")


def test_witnesses_that_disagree_are_reported(capacity):
    def lines(cpu_s: float) -> list[str]:
        changed = with_slices(capacity, "towline", subject_cpu_s=cpu_s)
        return [line for line in analyse_experiment(changed, "towline").lints if "disagree" in line]

    assert lines(1e-3) == []
    assert len(lines(10.0)) == 1


@pytest.mark.parametrize(
    ("invalid", "valid", "message"),
    [
        ({"lag_p99_us": 200.0}, {"lag_p99_us": 40.0}, "kept to 200 us, more than a tenth of the p50"),
        ({"answered": 1400}, {"answered": 1430}, "of the requested rate was achieved"),
        # All succeeded, but many of them after the slice had ended, by the generator's own count.
        ({"achieved_share": 0.9}, {"achieved_share": 0.995}, "90.0% of the requested rate was achieved"),
    ],
)
def test_guards_of_latency(latency, invalid, valid, message):
    assert message in (reason(with_slices(latency, **invalid), "p50_us") or "")
    assert reason(with_slices(latency, **valid), "p50_us") is None


def test_lag_in_the_tail_of_the_schedule_affects_the_tail_of_the_latencies(latency):
    late = with_slices(latency, lag_p50_us=5.0, lag_p99_us=2000.0)
    assert reason(late, "p50_us") is None
    assert "more than a tenth of the p99" in (reason(late, "p99_us") or "")


def test_lag_matters_only_where_there_is_a_schedule(capacity):
    assert reason(with_slices(capacity, lag_p99_us=1e6), "per_s") is None


def test_a_busy_driver_does_not_spoil_the_cost(capacity):
    busy = with_slices(capacity, driver_busiest_share=0.9, subject_busiest_share=0.6)
    assert reason(busy, "cpu_us") is None


def test_a_guard_takes_the_verdict_and_leaves_the_figures(capacity):
    found = analyse_experiment(with_slices(capacity, failed=1), "towline")
    refused = found.comparison("towline", "granian")
    assert refused is not None
    assert refused.verdict is Verdict.REFUSED
    assert "requests failed" in (refused.reason or "")
    assert found.subjects[1].figures["per_s"].value > 0


def lints_of(one: ExperimentRecord, words: str) -> list[str]:
    return [line for line in lint(one) if words in line]


@pytest.mark.parametrize(
    ("where", "invalid", "valid", "message", "topic"),
    [
        (
            "starts",
            {"steady": False, "warm_up_s": 6.0},
            {"warm_up_s": 6.0},
            "granian: no steady state before the end of warming up, in",
            "steady",
        ),
        (
            "starts",
            {"pressure_cpu_share": 0.4},
            {"pressure_cpu_share": 0.1},
            "during up to 40% of a restart",
            "waited for a core",
        ),
        ("starts", {"steal_share": 0.005}, {"steal_share": 0.001}, "took up to 0.5%", "hypervisor"),
        (
            "slices",
            {"measured_s": 0.01},
            {"measured_s": 0.05},
            "granian: 0.30 s of load in all is too short",
            "too short",
        ),
    ],
)
def test_lints_of_one_subject(capacity, where, invalid, valid, message, topic):
    change = with_slices if where == "slices" else with_starts
    assert len(lints_of(change(capacity, **invalid), message)) == 1
    assert lints_of(change(capacity, **valid), topic) == []


def test_few_restarts(capacity):
    few = replace(capacity, slices=[one for one in capacity.slices if one.restart < 3])
    assert lints_of(few, "restart") == [
        "all: 3 restarts: differences between starts are hardly visible with fewer than 5"
    ]


def test_slices_too_short_for_the_latency(capacity):
    slow = [replace(one, response=replace(one.response, p50_us=25_000.0)) for one in capacity.slices]
    assert lints_of(replace(capacity, slices=slow), "all: a slice holds only 7.2 of its median latencies")
    quick = [replace(one, response=replace(one.response, p50_us=15_000.0)) for one in capacity.slices]
    assert lints_of(replace(capacity, slices=quick), "of its median latencies") == []


def test_too_few_samples_for_the_percentile(capacity):
    few = [replace(one, response=replace(one.response, count=200)) for one in capacity.slices]
    assert lints_of(replace(capacity, slices=few), "p99 is based on 60 samples beyond it")
    enough = [replace(one, response=replace(one.response, count=400)) for one in capacity.slices]
    assert lints_of(replace(capacity, slices=enough), "p99 rests") == []


def test_littles_law(capacity):
    assert lints_of(replace(capacity, load={"connections": 200}), "of what 200 requests in flight give")
    assert lints_of(replace(capacity, load={"connections": 12, "pipeline": 4}), "under way") == []
    assert lints_of(replace(capacity, load={}), "under way") == []


def test_a_pool_smaller_than_the_concurrency_is_a_lint(capacity):
    small = replace(capacity, load={"tasks": 50, "pool": 10})
    assert lints_of(small, "a pool of 10 connections is smaller than the 50 concurrent requests")
    assert lints_of(replace(capacity, load={"tasks": 50, "pool": 50}), "pool") == []
    subjects = [replace(one, options={"pool": "20"}) for one in capacity.subjects]
    assert lints_of(replace(capacity, load={"concurrency": 40}, subjects=subjects), "a pool of 20")


def test_requests_that_wait_for_a_connection(latency):
    assert lints_of(with_slices(latency, connection_wait_p99_us=400.0), "waited 400 us at p99")
    assert lints_of(with_slices(latency, connection_wait_p99_us=20.0), "waited") == []


def test_options_of_only_one_subject(capacity):
    def options(*options_by_subject):
        subjects = [
            replace(one, options=each)
            for one, each in zip(capacity.subjects, options_by_subject, strict=True)
        ]
        return lints_of(replace(capacity, subjects=subjects), "options")

    assert options({}, {"workers": "4"}) == ["only granian was given options (workers 4)"]
    assert options({"loop": "uvloop"}, {"workers": "4"}) == []
    assert options({}, {"log-level": "warning"}) == []


def test_one_p50_for_all_loads():
    def at(connections: int, truth: Truth) -> ExperimentRecord:
        one = experiment("hello", (truth,), samples=50, rounds=3, restarts=5, connections=connections)
        return replace(one, name=f"hello_{connections}")

    truth = HELLO[0]
    wrong = record(at(50, truth), at(200, truth))
    (message,) = lint_record(wrong)["hello_200"]
    assert message.startswith("towline: the same p50 of ")
    assert message.endswith(" us with 50 and 200 connections cannot be")
    assert lint_record(record(at(50, truth), at(200, replace(truth, p50_us=2480)))) == {}
    assert lint_record(record(at(50, truth), at(60, truth))) == {}
    assert any("cannot be" in line for line in analyse(wrong).experiments[1].lints)


def test_one_line_for_several_subjects_with_the_range_of_their_figures(capacity):
    lengths = {"towline": 0.01, "granian": 0.02}
    short = [replace(one, measured_s=lengths[one.subject]) for one in capacity.slices]
    assert lints_of(replace(capacity, slices=short), "too short") == [
        "all: 0.30 to 0.60 s of load in all is too short"
    ]
