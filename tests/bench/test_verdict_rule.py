"""The rule of "faster": every branch, and both of its users."""

import math
from dataclasses import replace

import pytest
from towline.bench.analysis import judge
from towline.bench.report.compare import compare
from towline.bench.statistics import t_interval, t_p
from towline.bench.verdict import LogDifference, Verdict, decide, loss

from .synthetic import HELLO, experiment, record

MORE = LogDifference(0.10, 0.05, 0.15, 0.001)
LESS = LogDifference(-0.10, -0.15, -0.05, 0.001)
ONE_WAY = [0.08, 0.09, 0.10, 0.11, 0.12, 0.10, 0.09]


@pytest.mark.parametrize(
    ("metric", "found", "expected"),
    [
        ("per_s", MORE, Verdict.FASTER),
        ("per_s", LESS, Verdict.SLOWER),
        ("p99_us", MORE, Verdict.SLOWER),
        ("cpu_us", LESS, Verdict.FASTER),
        ("per_s", replace(MORE, p=0.05), Verdict.UNDECIDED),
        ("per_s", replace(MORE, p=0.0499), Verdict.FASTER),
        # A significant difference within the margin does not matter.
        ("per_s", LogDifference(0.01, 0.005, 0.015, 0.001), Verdict.EQUIVALENT),
        ("per_s", LogDifference(0.01, 0.0, math.log1p(0.02), 0.001), Verdict.FASTER),
        ("per_s", LogDifference(0.0, -math.inf, math.inf, 1.0), Verdict.UNDECIDED),
    ],
)
def test_the_interval_the_p_value_and_the_direction_decide(metric, found, expected):
    assert decide(metric, found) is expected
    assert decide(metric, found, reason="a guard") is Verdict.REFUSED


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        (ONE_WAY, Verdict.FASTER),
        # Seven restarts with both signs: the signed-rank test finds nothing.
        ([0.9, -0.1, -0.1, 0.1, -0.1, 0.1, 0.1], Verdict.UNSTABLE),
        # Fewer than six: only the sign of the median counts.
        ([0.9, 0.1, -0.1, 0.2], Verdict.FASTER),
        ([0.9, -0.1, -0.1, -0.2], Verdict.UNSTABLE),
        # Measured apart: there are no pairs to test.
        ([], Verdict.FASTER),
    ],
)
def test_pairs_have_a_second_test(pairs, expected):
    assert decide("per_s", MORE, pairs=pairs) is expected


def test_a_stricter_level_and_another_margin():
    assert decide("per_s", replace(MORE, p=0.02), alpha=0.01) is Verdict.UNDECIDED
    assert decide("per_s", MORE, margin=0.2) is Verdict.EQUIVALENT


def test_loss_is_positive_when_worse():
    assert loss("per_s", 0.9) == pytest.approx(0.1)
    assert loss("p99_us", 1.1) == pytest.approx(0.1)
    assert loss("p99_us", 0.9) < 0 < loss("cpu_us", 1.01)


def test_analysis_and_comparison_of_results_use_it():
    interval = t_interval(ONE_WAY)
    found = judge("a", "b", "p99_us", ONE_WAY, t_p(ONE_WAY), 0.02, None)
    difference = LogDifference(interval.mean, interval.low, interval.high, t_p(ONE_WAY))
    assert found.verdict is decide("p99_us", difference, pairs=ONE_WAY) is Verdict.SLOWER

    before = record(experiment("hello", HELLO[:2], seed=1, samples=20, rounds=6, restarts=6))
    slow = replace(HELLO[0], per_s=HELLO[0].per_s / 1.2, cpu_us=HELLO[0].cpu_us * 1.2)
    after = record(experiment("hello", (slow, HELLO[1]), seed=2, samples=20, rounds=6, restarts=6))
    changes = compare(before, after).changes
    assert {one.verdict for one in changes if one.subject == "towline" and one.metric == "per_s"} == {
        Verdict.SLOWER
    }
    for one in changes:
        logs = LogDifference(*map(math.log, (one.ratio, one.low, one.high)), one.p)
        assert one.verdict is decide(one.metric, logs, reason=one.reason)
