"""The statistics compared with scipy's."""

from __future__ import annotations

import math
import random

import pytest
from towline.bench import statistics

stats = pytest.importorskip("scipy.stats", reason="scipy has no release for this Python")

CHANCE = random.Random(4)
SAMPLES = [[CHANCE.gauss(size / 20, 1.5) for _ in range(size)] for size in (2, 3, 5, 8, 9, 13, 25, 40, 100)]
ids = [f"n{len(values)}" for values in SAMPLES]


@pytest.mark.parametrize("df", [1, 2, 3, 7, 7.5, 30, 1000])
def test_students_t(df: float) -> None:
    for t in (-50.0, -3.2, -1.0, -1e-6, 0.0, 0.3, 2.0, 12.0, 400.0):
        assert statistics.t_cdf(t, df) == pytest.approx(stats.t.cdf(t, df), rel=1e-9, abs=1e-14)
    for p in (0.0005, 0.0079, 0.025, 0.5, 0.9, 0.975, 0.9995):
        assert statistics.t_quantile(p, df) == pytest.approx(stats.t.ppf(p, df), rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("values", SAMPLES, ids=ids)
def test_interval_and_p(values: list[float]) -> None:
    found = statistics.t_interval(values, 0.05)
    expected = stats.t.interval(0.95, len(values) - 1, loc=sum(values) / len(values), scale=stats.sem(values))
    assert (found.low, found.high) == pytest.approx(expected, rel=1e-9)
    assert statistics.t_p(values, 0.1) == pytest.approx(stats.ttest_1samp(values, 0.1).pvalue, rel=1e-8)


@pytest.mark.parametrize("values", SAMPLES, ids=ids)
def test_signed_rank(values: list[float]) -> None:
    exact = len(values) <= 25
    expected = stats.wilcoxon(values, method="exact" if exact else "approx").pvalue
    assert statistics.signed_rank_p(values) == pytest.approx(expected, rel=1e-9)


def test_signed_rank_with_ties() -> None:
    """Enumerated over all signs; scipy's exact method does not support ties."""
    values = [1.0, -1.0, 2.0, 2.0, 3.0, -0.5]
    ranks = stats.rankdata([abs(one) for one in values])
    sums = [sum(r for r, up in zip(ranks, bits, strict=True) if up) for bits in signs(len(values))]
    observed = sum(r for r, one in zip(ranks, values, strict=True) if one > 0)
    middle = sum(ranks) / 2
    extreme = sum(abs(one - middle) >= abs(observed - middle) - 1e-9 for one in sums) / len(sums)
    assert statistics.signed_rank_p(values) == pytest.approx(extreme)


def signs(n: int) -> list[list[bool]]:
    return [[bool(number >> bit & 1) for bit in range(n)] for number in range(2**n)]


def test_holm() -> None:
    """Holm's own procedure, step by step: reject while p(i) <= alpha / (m - i + 1)."""
    rng = random.Random(5)
    for _ in range(200):
        p_values = [rng.random() ** 3 for _ in range(rng.randint(1, 9))]
        alpha = rng.choice((0.01, 0.05, 0.2))
        rejected = set()
        for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
            if p_values[index] > alpha / (len(p_values) - rank):
                break
            rejected.add(index)
        adjusted = statistics.holm(p_values)
        assert {index for index, p in enumerate(adjusted) if p <= alpha} == rejected


def test_restarts_needed_is_the_least_number_that_is_enough() -> None:
    for values in SAMPLES[2:6]:
        half = statistics.t_interval(values).half / 2
        needed = statistics.restarts_needed(values, half)
        assert needed is not None

        def half_of(n: int, spread: float = stats.tstd(values)) -> float:
            return float(stats.t.ppf(0.975, n - 1) * spread / math.sqrt(n))

        assert half_of(needed) <= half < half_of(needed - 1)
