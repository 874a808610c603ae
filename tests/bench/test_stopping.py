"""The end of warm-up and of restarts, on simulated noise."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from towline.bench.statistics import t_p
from towline.bench.statistics.steady import FEWEST, changes, is_steady
from towline.bench.statistics.stopping import LOOK_ALPHA, Rule, decided, planned_looks

# --- steady ---------------------------------------------------------------------------------------------


def noise(rng: random.Random, n: int, white: float = 0.01, drift: float = 0.01) -> list[float]:
    """Rates with 1 % of white noise and 1 % of AR(0.9)."""
    state, found = rng.gauss(0, drift), []
    for _ in range(n):
        state = 0.9 * state + rng.gauss(0, drift * math.sqrt(1 - 0.81))
        found.append(1000 * math.exp(state + rng.gauss(0, white)))
    return found


@pytest.mark.parametrize("windows", [8, 12, 20])
@pytest.mark.parametrize(("white", "drift"), [(0.01, 0.01), (0.1, 0.0), (0.05, 0.05)])
def test_steady_noise_is_called_steady(windows: int, white: float, drift: float) -> None:
    rng = random.Random(windows)
    seen = sum(is_steady(noise(rng, windows, white, drift), windows) for _ in range(300))
    assert seen >= 270


@pytest.mark.parametrize("windows", [12, 20])
@pytest.mark.parametrize(
    "shape",
    [
        lambda at, n: 1.0 if at >= n // 2 else 0.8,
        lambda at, n: 1.0 if at >= n - 3 else 0.7,
        lambda at, n: 1 - 0.3 * math.exp(-at / (n / 3)),
        lambda at, n: 0.7 + 0.3 * at / n,
        lambda at, n: 1.3 - 0.3 * at / n,
    ],
    ids=["step", "late step", "approach", "slope up", "slope down"],
)
def test_a_warm_up_is_not_called_steady(windows: int, shape: Callable[[int, int], float]) -> None:
    rng = random.Random(windows)
    seen = 0
    for _ in range(200):
        series = [rate * shape(at, windows) for at, rate in enumerate(noise(rng, windows))]
        seen += is_steady(series, windows)
    assert seen <= 20


def test_irrelevant_changes_are_ignored() -> None:
    """A step of 1 %, though visible, has no effect on a comparison whose slices alternate."""
    series = [1000.0 + index % 2 for index in range(10)] + [1010.0 + index % 2 for index in range(10)]
    step = changes(series)[0]
    assert step.at == 10
    assert step.score > 8
    assert is_steady(series)


def test_too_few_windows_or_silence_are_not_steady() -> None:
    assert not is_steady([1000.0] * 19)
    assert is_steady([1000.0] * 20)
    assert not is_steady([1000.0] * (FEWEST - 1), windows=FEWEST - 1)
    assert not is_steady([1000.0] * 19 + [0.0])
    assert changes([1.0] * (FEWEST - 1)) == []


# --- stopping -------------------------------------------------------------------------------------------


def run(rule: Rule, rng: random.Random, effect: float, spread: float = 0.015) -> tuple[list[float], str]:
    values: list[float] = []
    while True:
        values.append(rng.gauss(effect, spread))
        if reason := rule.reason_to_end(len(values), [values]):
            return values, reason


def alarms(rule: Rule, times: int = 400) -> int:
    rng = random.Random(11)
    return sum(t_p(run(rule, rng, 0.0)[0]) < rule.alpha for _ in range(times))


@pytest.mark.parametrize(
    "rule", [Rule("fixed", 8, 8), Rule("precision", 8, 24), Rule("looks", 8, 24)], ids=lambda r: r.kind
)
def test_no_rule_finds_more_than_it_may(rule: Rule) -> None:
    # 5 % of 400 and three standard errors.
    assert alarms(rule) <= 33


def test_the_forbidden_rule_would_find_far_more() -> None:
    """Stopping as soon as a difference is significant: the rules prevent it, and this test would detect it."""
    rng = random.Random(11)
    found = 0
    for _ in range(200):
        values = [rng.gauss(0, 0.015) for _ in range(24)]
        found += any(t_p(values[:n]) < 0.05 for n in range(4, 25))
    assert found >= 30


def test_a_fixed_rule_looks_at_nothing() -> None:
    decided_long_ago = [[0.5, 0.5001, 0.4999, 0.5] * 5]
    rule = Rule("fixed", 8, 20)
    assert [n for n in range(1, 21) if rule.reason_to_end(n, decided_long_ago)] == [20]


def test_significance_alone_ends_nothing() -> None:
    """Far from zero, but wide: precision continues, also between two looks."""
    wide = [[0.5, 0.4, 0.6, 0.55, 0.45, 0.5, 0.6, 0.4, 0.5]]
    assert Rule("precision", 8, 24).reason_to_end(9, wide) is None
    assert Rule("looks", 8, 24).reason_to_end(9, wide) is None
    assert Rule("looks", 8, 24).reason_to_end(8, wide) is not None


def test_precision_waits_for_every_comparison() -> None:
    narrow, wide = [0.1 + (-1) ** n * 0.001 for n in range(8)], [(-1) ** n * 0.1 for n in range(8)]
    rule = Rule("precision", 8, 24)
    assert rule.reason_to_end(8, [narrow, wide]) is None
    assert "narrow" not in (rule.reason_to_end(8, [narrow, narrow]) or "narrow")
    assert rule.reason_to_end(7, [narrow[:7]]) is None, "not before the least number"


def test_planned_looks() -> None:
    assert planned_looks(8, 24) == [8, 12, 16, 20, 24]
    assert planned_looks(8, 8) == [8]
    assert planned_looks(8, 10) == [8, 9, 10]
    assert Rule("looks", 8, 24).alpha == LOOK_ALPHA


def test_a_look_decides_both_ways() -> None:
    assert decided([0.05, 0.051, 0.049, 0.05], 0.02, LOOK_ALPHA), "different"
    assert decided([0.0001, -0.0001, 0.0002, -0.0002], 0.02, LOOK_ALPHA), "equivalent"
    assert not decided([0.03, -0.03, 0.02, -0.02], 0.02, LOOK_ALPHA)
