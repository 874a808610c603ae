"""`towline bench selftest`: measures servers of known behaviour on the user's machine.

Equal servers must not differ, one that costs 5 % more must be found, and a delay must be reported exactly. The result
is the smallest difference that this machine can resolve in its present state.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from statistics import NormalDist

from .analysis import Comparison
from .api import Command, Comparisons, measure
from .runner.design import Design
from .runner.interrupts import Interrupted, Interrupts
from .runner.plan import Options
from .runner.progress import Progress
from .scenarios import catalogue
from .verdict import ALPHA, Verdict

SPIN_STEPS = 10_000
"""Work per request, about 20 us: the servers, not the generator, must be the limit. Given in steps, since each
server would calibrate microseconds differently."""
SLOWER_PERCENT = 5
DELAY_US = 2000
DELAY_RATE_PER_S = 1000.0
DELAY_TOLERANCE_US = 1000.0
POWER = 0.9


@dataclass(frozen=True)
class Finding:
    """One line of the result."""

    what: str
    text: str
    good: bool


def selftest(options: Options, progress: Progress) -> int:
    """Prints the results. Exit status: 0 all correct, 1 something is not, 130 interrupted."""
    design = options.design()
    if options.runs is None:
        design = replace(design, rule=replace(design.rule, least=6, most=6))
    if options.duration is None:
        design = replace(design, seconds=1.2)
    with Interrupts(progress.message):
        try:
            hello = catalogue()["hello"]
            spinning = ("--spin-steps", str(SPIN_STEPS))
            named = {
                "plain": _responder(*spinning),
                "plain again": _responder(*spinning),
                "slower": _responder(*spinning, "--spin-percent", str(SLOWER_PERCENT)),
            }
            work = measure(
                named,
                hello,
                replace(design, baseline="plain"),
                progress=progress,
                title="servers of known cost",
            )
            delayed = measure(
                {"delayed": _responder("--delay", f"{DELAY_US}us", "--exact")},
                hello,
                _short(design),
                rate=DELAY_RATE_PER_S,
                progress=progress,
                title="a server of known delay",
            )
        except Interrupted as interrupted:
            return interrupted.status
    findings = [equal(work), slower(work), delay(delayed)]
    out = [f"{'ok  ' if one.good else 'NOT '} {one.what}: {one.text}" for one in findings]
    out += ["", resolution(work, design.seconds)]
    sys.stdout.write("\n".join(out) + "\n")
    return 0 if all(one.good for one in findings) else 1


def _short(design: Design) -> Design:
    """Three restarts are enough to show a delay."""
    few = min(3, design.rule.most)
    return replace(design, rule=replace(design.rule, kind="fixed", least=few, most=few), baseline="delayed")


def _responder(*options: str) -> Command:
    return Command(["{python}", "-m", "towline.bench.responder", "--port", "{port}", *options])


def equal(found: Comparisons) -> Finding:
    """One server twice: one false alarm in twenty is chance, more is an error."""
    one = found["plain again"]
    good = one.verdict not in (Verdict.FASTER, Verdict.SLOWER, Verdict.REFUSED)
    return Finding("two equal servers", _ratio_text(one), good)


def slower(found: Comparisons) -> Finding:
    """The interval must contain the true value; whether the server is called slower depends on the machine."""
    one = found["slower"]
    true_value = 1 + SLOWER_PERCENT / 100
    good = one.reason is None and one.low <= true_value <= one.high and one.verdict is not Verdict.SLOWER
    return Finding(f"one that costs {SLOWER_PERCENT} % more", _ratio_text(one), good)


def delay(found: Comparisons) -> Finding:
    """The median latency of a known delay."""
    try:
        value = found.figure("delayed").value
    except KeyError as error:
        return Finding(f"a delay of {DELAY_US} us", str(error), False)
    good = DELAY_US <= value <= DELAY_US + DELAY_TOLERANCE_US
    return Finding(f"a delay of {DELAY_US} us", f"p50 {value:.0f} us", good)


def resolution(found: Comparisons, seconds: float) -> str:
    """The difference that is found nine times in ten, from the spread between restarts."""
    one = found["plain again"]
    half = (math.log(one.high) - math.log(one.low)) / 2
    # The interval is t times the standard error; to be found that often, a difference must be larger.
    normal = NormalDist()
    factor = (normal.inv_cdf(1 - ALPHA / 2) + normal.inv_cdf(POWER)) / normal.inv_cdf(1 - ALPHA / 2)
    least = math.expm1(half * factor)
    load = seconds * one.restarts
    return (
        f"This machine, as it is now, resolves about {least:.1%} with {one.restarts} restarts "
        f"({load:.0f} s of load on each); a quarter of the difference takes sixteen times as much."
    )


def _ratio_text(one: Comparison) -> str:
    if one.reason is not None:
        return f"{one.verdict.value}: {one.reason}"
    return f"ratio {one.ratio:.3f} [{one.low:.3f}, {one.high:.3f}], {one.verdict.value}"
