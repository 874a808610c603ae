"""Error rates of the verdicts: equal servers, servers slower by a known share, and a CPU hog on the generator's core.

`python -m benches.verdicts [--equal 200] [--slower 40] [--hog 5]`. Each comparison is a complete one of the bench, with
restarts, warm-up, slices and verdict. The servers are the native responder with 20 us of work per request, so that
they, not the generator, are the limit. Writes benches/results/verdicts.json.gz and verdicts.md; `--add` keeps the
existing comparisons, so that a long series can be measured in parts. Needs `cargo build --release -p towline-load`.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from towline.bench import Verdict
from towline.bench.analysis import Comparison
from towline.bench.api import Command, measure
from towline.bench.runner.design import Cores, Design, WarmUp
from towline.bench.runner.progress import NoProgress
from towline.bench.scenarios import catalogue
from towline.bench.statistics.stopping import Rule
from towline.bench.subjects.machine import describe

from benches import report

SPIN_STEPS = 10_000
"""About 20 us of work. Given in steps, since each server would calibrate microseconds differently."""
CONNECTIONS = 16
RESPONDER = Path(__file__).parent.parent / "target" / "release" / "towline-responder"


@dataclass(frozen=True)
class Kind:
    """A kind of comparison: the difference between the servers, and its duration."""

    name: str
    description: str
    count: int
    percent: int = 0
    restarts: int = 8
    seconds: float = 0.24
    """Duration of load on each server in each restart."""
    hog: bool = False


def main() -> int:
    options = arguments()
    started = time.monotonic()
    kinds = [
        Kind(
            "equal",
            "two equal servers",
            options.equal,
            restarts=options.restarts,
            seconds=options.equal_seconds,
        ),
        Kind(
            "slower",
            f"one costs {options.percent} % more CPU",
            options.slower,
            options.percent,
            restarts=options.restarts,
            seconds=options.slower_seconds,
        ),
        Kind(
            "hog",
            "two equal servers, and a program that spins on the generator's core",
            options.hog,
            restarts=4,
            seconds=0.24,
            hog=True,
        ),
    ]
    kept = report.load("verdicts")
    for kind in kinds:
        if kind.count:
            run_kind(kind, kept, add=options.add, until=started + options.limit_seconds)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benches.verdicts", description=__doc__.split("\n\n")[0])
    parser.add_argument("--equal", type=int, default=200, help="comparisons of equal servers")
    parser.add_argument("--slower", type=int, default=40, help="comparisons with a slower one")
    parser.add_argument("--hog", type=int, default=5, help="comparisons with a hog")
    parser.add_argument("--percent", type=int, default=5, help="additional CPU time of the slower server")
    parser.add_argument("--restarts", type=int, default=8, help="of one comparison")
    parser.add_argument(
        "--equal-seconds", type=float, default=0.24, help="duration of load on each server in a restart"
    )
    parser.add_argument(
        "--slower-seconds", type=float, default=1.6, help="the same for servers of different speed"
    )
    parser.add_argument(
        "--limit-seconds", type=float, default=math.inf, help="start no comparison after this time"
    )
    parser.add_argument("--add", action="store_true", help="keep the existing comparisons")
    return parser.parse_args()


def run_kind(kind: Kind, kept: dict[str, Any], *, add: bool, until: float) -> None:
    """Runs the comparisons and saves after each."""
    cores = Cores.divided()
    hog = spin(cores) if kind.hog else None
    entry = kept.get(kind.name) if add else None
    if entry is None or any(entry[name] != value for name, value in settings(kind).items()):
        entry = settings(kind) | {"machine": describe(), "began": now(), "comparisons": []}
    kept[kind.name] = entry
    try:
        for _ in range(kind.count):
            if time.monotonic() >= until:
                break
            found = compare(kind, cores, seed=1000 * len(kind.name) + len(entry["comparisons"]))
            entry["comparisons"].append(record(found))
            entry["ended"] = now()
            save(kept)
            print(f"{kind.name} {len(entry['comparisons'])}: {describe_comparison(found)}", flush=True)
    finally:
        if hog is not None:
            hog.kill()
            hog.wait()


def settings(kind: Kind) -> dict[str, Any]:
    return {
        "what": kind.description,
        "percent": kind.percent,
        "restarts": kind.restarts,
        "seconds": kind.seconds,
        "spin_steps": SPIN_STEPS,
        "connections": CONNECTIONS,
    }


def now() -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())


def describe_comparison(one: Comparison) -> str:
    return f"{one.ratio:.4f} [{one.low:.4f}, {one.high:.4f}] {one.verdict.value}" + (
        f": {one.reason}" if one.reason else ""
    )


def spin(cores: Cores) -> subprocess.Popen[bytes]:
    program = f"import os\nos.sched_setaffinity(0, {set(cores.driver or os.sched_getaffinity(0))})\nwhile True: pass"
    return subprocess.Popen([sys.executable, "-c", program])


def compare(kind: Kind, cores: Cores, seed: int) -> Comparison:
    design = Design(
        rule=Rule("fixed", kind.restarts, kind.restarts),
        seconds=kind.seconds,
        seed=seed,
        cores=cores,
        warm_up=WarmUp(windows=8, window_s=0.015, cap_s=1.0),
        baseline="one",
    )
    hello = replace(catalogue()["hello"], connections=CONNECTIONS)
    found = measure(
        {"one": responder(0), "other": responder(kind.percent)}, hello, design, progress=NoProgress()
    )
    return found["other"]


def responder(percent: int) -> Command:
    argv = [str(RESPONDER), "--port", "{port}", "--spin-steps", str(SPIN_STEPS)]
    return Command([*argv, *(["--spin-percent", str(percent)] if percent else [])])


def record(one: Comparison) -> dict[str, Any]:
    return {
        "ratio": round(one.ratio, 5),
        "low": finite(one.low),
        "high": finite(one.high),
        "p": round(one.p, 6),
        "verdict": one.verdict.value,
        "reason": one.reason,
    }


def finite(value: float) -> float | None:
    return round(value, 5) if math.isfinite(value) else None


def save(kept: dict[str, Any]) -> None:
    report.save("verdicts", kept, replace=True)
    (report.RESULTS / "verdicts.md").write_text("\n".join(page(kept)) + "\n")


def page(kept: dict[str, Any]) -> list[str]:
    lines = [
        "# Error rates of the verdicts",
        "",
        "Written by `python -m benches.verdicts`; every ratio is in `verdicts.json.gz`.",
        "",
        "| comparisons | true ratio | verdicts | intervals that cover it | median half-width | load on each |",
        "| --- | ---: | --- | ---: | ---: | ---: |",
    ]
    for entry in kept.values():
        lines.append(row(entry))
    first = next(iter(kept.values()), None)
    if first is not None:
        machine = first["machine"]
        lines += ["", f"{machine.get('cpu', '')}, {first['began']}."]
    return lines


def row(entry: dict[str, Any]) -> str:
    found = entry["comparisons"]
    true_ratio = 1 + entry["percent"] / 100
    judged = [one for one in found if one["verdict"] != Verdict.REFUSED.value]
    words: dict[str, int] = {}
    for one in found:
        words[one["verdict"]] = words.get(one["verdict"], 0) + 1
    summary = ", ".join(f"{count} {word}" for word, count in sorted(words.items(), key=lambda item: -item[1]))
    covered = sum(one["low"] <= true_ratio <= one["high"] for one in judged if one["low"] is not None)
    halves = sorted((one["high"] - one["low"]) / 2 for one in judged if one["low"] is not None)
    half = f"{halves[len(halves) // 2]:.1%}" if halves else "-"
    share = f"{covered} of {len(judged)}" if judged else "-"
    load = f"{entry['restarts'] * entry['seconds']:.1f} s"
    return f"| {len(found)} of {entry['what']} | {true_ratio:.2f} | {summary} | {share} | {half} | {load} |"


if __name__ == "__main__":
    sys.exit(main())
