"""The paired ratio: the trimmed mean and its error, subjects that stand still, and stolen time."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev

import numpy
import pytest
from scipy import stats
from towline.bench.analysis import neighbours, paired, pauses_s
from towline.bench.record import Slice
from towline.bench.statistics import Interval, t_interval
from towline.bench.statistics.paired import MIN_PAIRS, PairedRatio, Part, paired_ratio, trimmed_mean

SLICE_S, STEPS = 0.027, 27
"""A slice of 30 ms without its discarded part, in steps of 1 ms."""
GAP_S = 0.003
BURST_S = 0.03
PAIRS, RESTARTS = 40, 8


def test_the_trimmed_mean_and_its_error_are_the_known_ones() -> None:
    rng = random.Random(1)
    values = [rng.gauss(0.1, 1) ** 3 for _ in range(101)]
    mean, pseudo = trimmed_mean({at: [value] for at, value in enumerate(values)})
    assert mean == pytest.approx(stats.trim_mean(values, 0.25))
    assert fmean(pseudo.values()) == pytest.approx(mean)
    # Tukey and McLaughlin 1963: the winsorised deviation, by the share that is kept.
    cut = len(values) // 4
    winsorised = stdev(float(value) for value in stats.mstats.winsorize(numpy.array(values), (0.25, 0.25)))
    expected = winsorised / ((1 - 2 * cut / len(values)) * math.sqrt(len(values)))
    assert stdev(pseudo.values()) / math.sqrt(len(values)) == pytest.approx(expected)


def test_values_of_one_restart_are_not_independent() -> None:
    """Ten values each of eight restarts that differ: the error is that of eight values, not of eighty."""
    rng = random.Random(2)
    restarts = {}
    for at in range(8):
        level = rng.gauss(0, 1)
        restarts[at] = [level + rng.gauss(0, 0.1) for _ in range(10)]
    _, clustered = trimmed_mean(restarts)
    _, alone = trimmed_mean(dict(enumerate([[value] for values in restarts.values() for value in values])))
    assert t_interval(list(clustered.values())).half > 2 * t_interval(list(alone.values())).half


@dataclass
class Core:
    """A core of which others take the share `stolen`, in bursts of 30 ms on average."""

    rng: random.Random
    stolen: float = 0.0
    clock: float = 0.0
    burst_ends: float = 0.0
    next_burst: float = 0.0

    def slice(self, per_s: float, pause_s: float = 0.0, offset_s: float = 0.0) -> Part:
        """The next slice of a subject that stands still for `pause_s` of each second."""
        free = 0
        for step in range(STEPS):
            now = self.clock + (step + 0.5) * SLICE_S / STEPS
            free += not self.is_stolen(now) and (now + offset_s) % 1.0 >= pause_s
        self.clock += SLICE_S + GAP_S
        return Part(per_s * SLICE_S * free / STEPS * math.exp(self.rng.gauss(0, 0.03)), SLICE_S)

    def is_stolen(self, now: float) -> bool:
        while self.stolen and now >= self.next_burst:
            self.burst_ends = self.next_burst + self.rng.expovariate(1 / BURST_S)
            self.next_burst = self.burst_ends + self.rng.expovariate(
                self.stolen / BURST_S / (1 - self.stolen)
            )
        return now < self.burst_ends


def simulated(
    seed: int, effect: float = 0.0, stolen: float = 0.0, pause_s: float = 0.0
) -> tuple[PairedRatio, Interval, Interval]:
    """One comparison with 1.2 s of load on each subject in each restart: the ratio, its interval, and the interval of
    totals alone. Others begin to use the core before the first slice."""
    rng = random.Random(seed)
    core = Core(rng, stolen, next_burst=rng.random() / 10)
    restarts: dict[int, list[tuple[Part, Part]]] = {}
    for restart in range(RESTARTS):
        faster = 20_000 * math.exp(effect + rng.gauss(0, 0.005))
        offset_s = rng.random()
        restarts[restart] = []
        for _ in range(PAIRS):
            if rng.random() < 0.5:
                one = core.slice(faster)
                other = core.slice(20_000, pause_s, offset_s)
            else:
                other = core.slice(20_000, pause_s, offset_s)
                one = core.slice(faster)
            restarts[restart].append((one, other))
    plain = [
        math.log(sum(one.amount for one, _ in pairs) / sum(other.amount for _, other in pairs))
        for pairs in restarts.values()
    ]
    found = paired_ratio(restarts)
    return found, t_interval(list(found.by_restart.values())), t_interval(plain)


@pytest.mark.parametrize("stolen", [0.0, 0.1, 0.4])
def test_equal_subjects_raise_few_alarms_whatever_is_stolen(stolen: float) -> None:
    intervals = [simulated(seed, stolen=stolen)[1] for seed in range(200)]
    alarms = sum(not one.low <= 0 <= one.high for one in intervals)
    assert alarms <= 17, "5 % of 200, with two standard errors"


@pytest.mark.parametrize(("effect", "least"), [(0.05, 80), (0.10, 95)])
def test_differences_are_found_and_measured_with_ten_per_cent_stolen(effect: float, least: int) -> None:
    found = [simulated(seed, math.log1p(effect), 0.1) for seed in range(100)]
    assert sum(interval.low > 0 for _, interval, _ in found) >= least
    covered = sum(interval.low <= math.log1p(effect) <= interval.high for _, interval, _ in found)
    assert covered >= 88, "95 % intervals hold the truth"
    trimmed, plain = (median(one[at].half for one in found) for at in (1, 2))
    assert trimmed < 0.6 * plain


@pytest.mark.parametrize("stolen", [0.0, 0.1])
@pytest.mark.parametrize("pause_s", [0.1, 0.3])
def test_a_subject_that_stands_still_is_slower_by_its_pauses(pause_s: float, stolen: float) -> None:
    """A trimmed mean alone would report 0 to a third of it."""
    truth = -math.log(1 - pause_s)
    found = [simulated(seed, stolen=stolen, pause_s=pause_s) for seed in range(30)]
    assert sum(ratio.disagree and not ratio.trimmed for ratio, _, _ in found) >= 27
    assert fmean(interval.mean for _, interval, _ in found) == pytest.approx(truth, abs=0.03)


def test_a_subject_without_any_response_has_no_ratio() -> None:
    parts = [(Part(10, 1), Part(0, 1))] * 40
    assert paired_ratio({0: parts, 1: parts}).by_restart == {}
    few = [(Part(10, 1), Part(0, 1))] * 30 + [(Part(10, 1), Part(10, 1))] * 10
    found = paired_ratio({0: few, 1: few})
    assert not found.trimmed
    assert found.by_restart[0] == pytest.approx(math.log(4))


def test_few_pairs_are_totals() -> None:
    pairs = [(Part(10 + at, 1), Part(10, 1)) for at in range(MIN_PAIRS - 1)]
    found = paired_ratio({0: pairs})
    assert (found.trimmed, found.disagree) == (False, False)
    assert found.by_restart[0] == pytest.approx(math.log(1 + (MIN_PAIRS - 2) / 20))
    assert paired_ratio({0: [*pairs, (Part(10, 1), Part(10, 1))]}).trimmed


def a_slice(subject: str, round_: int, answered: int, measured_s: float = 1.0) -> Slice:
    return Slice(subject, 0, round_, 0, 0.0, measured_s, answered, subject_cpu_s=answered * 1e-5)


def test_a_subject_with_fewer_slices_is_paired_with_its_neighbours() -> None:
    fast = [a_slice("fast", at, 100 + at) for at in range(9)]
    slow = [a_slice("slow", at, 10, 3.0) for at in (1, 4, 7)]
    for ours, theirs, flipped in ((slow, fast, False), (fast, slow, True)):
        pairs = neighbours(ours, theirs)
        groups = [(one, other) if flipped else (other, one) for one, other in pairs]
        assert [[one.round for one in many] for many, _ in groups] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
        assert [[one.round for one in single] for _, single in groups] == [[1], [4], [7]]
    assert paired(fast, slow, "per_s").by_restart[0] == pytest.approx(math.log(104 / (10 / 3)))
    assert paired(fast, slow, "cpu_us").by_restart[0] == pytest.approx(0.0)
    assert neighbours([], fast) == neighbours(fast, []) == []


def with_pauses(pause_s: float, every: int, **waits: float) -> dict[str, list[Slice]]:
    """Two equal subjects in 8 restarts; the second stands still in one of so many slices, or is disturbed in it."""
    found: dict[str, list[Slice]] = {"steady": [], "stops": []}
    rng, number = random.Random(4), 0
    for restart in range(RESTARTS):
        for round_ in range(PAIRS):
            number += 1
            for name, slices in found.items():
                paused = pause_s if name == "stops" and number % every == every // 2 else 0.0
                answered = round(20_000 * SLICE_S * math.exp(rng.gauss(0, 0.03)))
                one = Slice(name, restart, round_, 0, 0.0, SLICE_S + paused, answered, stolen_s=0.0)
                slices.append(replace(one, **waits) if paused else one)
    return found


@pytest.mark.parametrize(("pause_s", "every"), [(2.0, 320), (0.3, 110), (0.1, 60)])
def test_few_pauses_count_in_the_ratio(pause_s: float, every: int) -> None:
    """One to five slices among 320 are within their scatter: a trimmed mean would lose them."""
    slices = with_pauses(pause_s, every)
    ratio = paired(slices["stops"], slices["steady"], "per_s")
    assert ratio.disagree
    count = round(RESTARTS * PAIRS / every)
    assert pauses_s(slices["stops"]) == pytest.approx([pause_s] * count, abs=0.001)
    assert pauses_s(slices["steady"]) == []
    load_s = PAIRS * SLICE_S
    by_restart = Counter(one.restart for one in slices["stops"] if one.measured_s > SLICE_S)
    truth = fmean(math.log(load_s / (load_s + by_restart[at] * pause_s)) for at in range(RESTARTS))
    assert fmean(ratio.by_restart.values()) == pytest.approx(truth, abs=0.01)


@pytest.mark.parametrize(
    ("pause_s", "waits"),
    [
        (2.0, {"subject_waited_s": 2.0}),
        (0.3, {"driver_waited_share": 0.95}),
        (0.3, {"stolen_s": 0.29}),
        (0.03, {}),
    ],
)
def test_disturbed_slices_are_no_pauses(pause_s: float, waits: dict[str, float]) -> None:
    slices = with_pauses(pause_s, 110, **waits)
    assert pauses_s(slices["stops"]) == []
    assert paired(slices["stops"], slices["steady"], "per_s").trimmed


def test_records_without_stolen_time_have_no_pauses() -> None:
    slices = [replace(one, stolen_s=None) for one in with_pauses(2.0, 320)["stops"]]
    assert pauses_s(slices) == []


def with_slow_slices(**changes: float) -> dict[str, list[Slice]]:
    """Two equal subjects; the second has a tenth of its responses in one slice of six."""
    found: dict[str, list[Slice]] = {"steady": [], "slow": []}
    rng = random.Random(5)
    for restart in range(RESTARTS):
        for round_ in range(PAIRS):
            for name, slices in found.items():
                is_slow = name == "slow" and (restart + round_) % 6 == 0
                answered = round(20_000 * SLICE_S * math.exp(rng.gauss(0, 0.03)) * (0.1 if is_slow else 1))
                one = Slice(name, restart, round_, 0, 0.0, SLICE_S, answered, stolen_s=0.0)
                slices.append(replace(one, **changes) if is_slow else one)
    return found


@pytest.mark.parametrize(
    ("changes", "is_own"),
    [
        ({}, True),
        ({"subject_cpu_s": SLICE_S, "subject_waited_s": 3 * SLICE_S}, True),
        ({"subject_cpu_s": 0.1 * SLICE_S, "subject_waited_s": 0.9 * SLICE_S}, False),
        ({"driver_waited_share": 0.9}, False),
        ({"stolen_s": 0.9 * SLICE_S}, False),
    ],
    ids=["unknown", "its own threads", "another process", "the driver's core", "the hypervisor"],
)
def test_slow_slices_count_unless_the_machine_was_the_cause(changes: dict[str, float], is_own: bool) -> None:
    slices = with_slow_slices(**changes)
    ratio = paired(slices["steady"], slices["slow"], "per_s")
    assert ratio.disagree == is_own
    truth = -math.log(1 - 0.9 / 6) if is_own else 0.0
    assert fmean(ratio.by_restart.values()) == pytest.approx(truth, abs=0.02)
