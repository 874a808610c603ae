"""From a design to a verdict, on subjects with known differences."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
from towline.bench.analysis import Comparison, analyse_experiment, judge
from towline.bench.record import ExperimentRecord
from towline.bench.runner.design import Cores, Design, WarmUp
from towline.bench.runner.loop import ExperimentPlan, ExperimentRun
from towline.bench.statistics import holm, t_p
from towline.bench.statistics.stopping import Rule
from towline.bench.verdict import Verdict

from tests.bench.simulator import Simulated, SimulatedMachine

DESIGN = Design(
    Rule("fixed", 8, 8),
    seconds=1.2,
    warm_up=WarmUp(windows=8, cap_s=0.05),
    cores=Cores(None, None),
    baseline="a",
)
DIFFERENT = (Verdict.FASTER, Verdict.SLOWER)


def calm(experiment: ExperimentRecord) -> ExperimentRecord:
    """Without the load of the test machine: it does not affect simulated subjects."""
    starts = {
        one.name: [replace(start, pressure_cpu_share=0.0, steal_share=0.0) for start in one.starts]
        for one in experiment.subjects
    }
    return replace(
        experiment, subjects=[replace(one, starts=starts[one.name]) for one in experiment.subjects]
    )


def compared(seed: int, effect: float = 0.0, design: Design = DESIGN, **noise: float) -> Comparison:
    machine = SimulatedMachine(seed, **noise)
    subjects = (Simulated("a", machine), Simulated("b", machine, 10_000 / (1 + effect)))
    run = ExperimentRun(
        ExperimentPlan("experiment", "s", "simulated", "own", subjects), replace(design, seed=seed)
    )
    run.run()
    found = analyse_experiment(calm(run.record()), "a", alpha=design.rule.alpha).comparison("a", "b")
    assert found is not None
    return found


def test_two_hundred_comparisons_of_equals_raise_few_alarms() -> None:
    seen = Counter(compared(seed).verdict for seed in range(200))
    assert sum(seen[one] for one in DIFFERENT) <= 17, seen
    assert seen[Verdict.REFUSED] == 0


@pytest.mark.parametrize(
    "rule", [Rule("precision", 8, 24, half=0.012), Rule("looks", 8, 24)], ids=lambda rule: str(rule.kind)
)
def test_rules_that_end_early_raise_no_more_alarms(rule: Rule) -> None:
    design = replace(DESIGN, rule=rule, seconds=0.4)
    seen = Counter(compared(seed, design=design).verdict for seed in range(100))
    # 5 % of 100, with three standard errors; peeking would give 20 and more.
    assert sum(seen[one] for one in DIFFERENT) <= 11, seen


def test_five_per_cent_is_found_and_measured() -> None:
    found = [compared(seed, 0.05) for seed in range(60)]
    assert sum(one.verdict is Verdict.FASTER for one in found) >= 57
    assert sum(one.low <= 1.05 <= one.high for one in found) >= 53, "95 % intervals must hold the truth"


def test_a_difference_within_the_margin_is_no_difference() -> None:
    """With little noise eight restarts are enough for `equivalent`, and no other verdict is given."""
    quiet = partial(compared, white=0.003, per_start=0.003)
    found = [quiet(seed, 0.003).verdict for seed in range(20)]
    assert set(found) == {Verdict.EQUIVALENT}


def test_few_restarts_give_the_number_needed() -> None:
    design = replace(DESIGN, rule=Rule("fixed", 4, 4))
    undecided = [
        one
        for one in (compared(seed, 0.01, design) for seed in range(10))
        if one.verdict is Verdict.UNDECIDED
    ]
    assert undecided
    assert all(one.restarts_needed is not None and one.restarts_needed > 4 for one in undecided)


def test_the_interval_that_is_shown_is_that_of_the_verdict() -> None:
    rng = random.Random(3)
    families = [
        [[rng.gauss(0.1 * at, 0.1) for _ in range(4)] for at in range(rng.randrange(1, 10))]
        for _ in range(60)
    ]
    seen: Counter[bool] = Counter()
    for family in families:
        adjusted = holm([t_p(logs) for logs in family])
        for logs, p in zip(family, adjusted, strict=True):
            found = judge("a", "b", "per_s", logs, p, 0.02, None, len(family))
            undecided = found.low <= 1 <= found.high
            assert undecided == (p >= 0.05)
            seen[undecided] += 1
    assert min(seen.values()) > 50
