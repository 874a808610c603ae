"""How often the verdicts are right: equal servers, servers slower by a known share, and a hog beside the generator.

`python -m benches.verdicts [--equal 200] [--slower 40] [--hog 5]`. Every comparison is a whole one of the bench: its own
restarts, warm-up, slices and verdict. The servers are the native responder with 20 us of work a request, so that they
and not the generator are the limit. Writes benches/results/verdicts.json and verdicts.md; `--add` keeps the comparisons
that are there, so that a long series can be measured in parts. `cargo build --release -p towline-load` is needed before.
"""

from __future__ import annotations

import argparse
import json
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
from towline.bench.runner.progress import Silent
from towline.bench.scenarios import catalogue
from towline.bench.statistics.stopping import Rule
from towline.bench.subjects.machine import describe

RESULTS = Path(__file__).parent / "results"
SPIN_STEPS = 10_000
"""About 20 us. Not in microseconds, of which each server would have its own measure."""
CONNECTIONS = 16
RESPONDER = Path(__file__).parent.parent / "target" / "release" / "towline-responder"


@dataclass(frozen=True)
class Kind:
    """A kind of comparison: what is different, and how long each lasts."""

    name: str
    what: str
    count: int
    percent: int = 0
    restarts: int = 8
    seconds: float = 0.24
    """Of load on each in each restart."""
    hog: bool = False


def main() -> int:
    options = arguments()
    began = time.monotonic()
    kinds = [
        Kind("equal", "two equal servers", options.equal, restarts=options.restarts, seconds=options.equal_seconds),
        Kind("slower", f"one costs {options.percent} % more CPU", options.slower, options.percent,
             restarts=options.restarts, seconds=options.slower_seconds),
        Kind("hog", "two equal servers, and a program that spins on the generator's core", options.hog,
             restarts=4, seconds=0.24, hog=True),
    ]  # fmt: skip
    kept = json.loads((RESULTS / "verdicts.json").read_text()) if (RESULTS / "verdicts.json").exists() else {}
    for kind in kinds:
        if kind.count:
            run_kind(kind, kept, add=options.add, until=began + options.limit_seconds)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benches.verdicts", description=__doc__.split("\n\n")[0])
    parser.add_argument("--equal", type=int, default=200, help="comparisons of equal servers")
    parser.add_argument("--slower", type=int, default=40, help="comparisons with a slower one")
    parser.add_argument("--hog", type=int, default=5, help="comparisons beside a hog")
    parser.add_argument("--percent", type=int, default=5, help="by how much the slower one is")
    parser.add_argument("--restarts", type=int, default=8, help="of one comparison")
    parser.add_argument("--equal-seconds", type=float, default=0.24, help="of load on each in a restart")
    parser.add_argument("--slower-seconds", type=float, default=1.6, help="the same where one is slower")
    parser.add_argument("--limit-seconds", type=float, default=math.inf, help="begin none after this time")
    parser.add_argument("--add", action="store_true", help="to the comparisons that are there")
    return parser.parse_args()


def run_kind(kind: Kind, kept: dict[str, Any], *, add: bool, until: float) -> None:
    """Keeps what there is after each comparison."""
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
            print(f"{kind.name} {len(entry['comparisons'])}: {said(found)}", flush=True)
    finally:
        if hog is not None:
            hog.kill()
            hog.wait()


def settings(kind: Kind) -> dict[str, Any]:
    return {
        "what": kind.what, "percent": kind.percent, "restarts": kind.restarts, "seconds": kind.seconds,
        "spin_steps": SPIN_STEPS, "connections": CONNECTIONS,
    }  # fmt: skip


def now() -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())


def said(one: Comparison) -> str:
    return f"{one.ratio:.4f} [{one.low:.4f}, {one.high:.4f}] {one.verdict.value}" + (
        f": {one.reason}" if one.reason else ""
    )


def spin(cores: Cores) -> subprocess.Popen[bytes]:
    program = f"import os\nos.sched_setaffinity(0, {set(cores.driver or os.sched_getaffinity(0))})\nwhile True: pass"
    return subprocess.Popen([sys.executable, "-c", program])


def compare(kind: Kind, cores: Cores, seed: int) -> Comparison:
    design = Design(
        rule=Rule("fixed", kind.restarts, kind.restarts), seconds=kind.seconds, seed=seed, cores=cores,
        warm_up=WarmUp(windows=8, window_s=0.015, cap_s=1.0), baseline="one",
    )  # fmt: skip
    hello = replace(catalogue()["hello"], connections=CONNECTIONS)
    found = measure({"one": responder(0), "other": responder(kind.percent)}, hello, design, watch=Silent())
    return found["other"]


def responder(percent: int) -> Command:
    argv = [str(RESPONDER), "--port", "{port}", "--spin-steps", str(SPIN_STEPS)]
    return Command([*argv, *(["--spin-percent", str(percent)] if percent else [])])


def record(one: Comparison) -> dict[str, Any]:
    return {
        "ratio": round(one.ratio, 5), "low": finite(one.low), "high": finite(one.high),
        "p": round(one.p, 6), "verdict": one.verdict.value, "reason": one.reason,
    }  # fmt: skip


def finite(value: float) -> float | None:
    return round(value, 5) if math.isfinite(value) else None


def save(kept: dict[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "verdicts.json").write_text(json.dumps(kept, indent=1) + "\n")
    (RESULTS / "verdicts.md").write_text("\n".join(page(kept)) + "\n")


def page(kept: dict[str, Any]) -> list[str]:
    lines = [
        "# How often the verdicts are right", "",
        "Written by `python -m benches.verdicts`; every ratio stands in `verdicts.json`.", "",
        "| comparisons | truth | said so | covered by the interval | median half-width | load on each |",
        "| --- | ---: | --- | ---: | ---: | ---: |",
    ]  # fmt: skip
    for entry in kept.values():
        lines.append(row(entry))
    first = next(iter(kept.values()), None)
    if first is not None:
        machine = first["machine"]
        lines += ["", f"{machine.get('cpu', '')}, {first['began']}."]
    return lines


def row(entry: dict[str, Any]) -> str:
    found = entry["comparisons"]
    truth = 1 + entry["percent"] / 100
    judged = [one for one in found if one["verdict"] != Verdict.REFUSED.value]
    words: dict[str, int] = {}
    for one in found:
        words[one["verdict"]] = words.get(one["verdict"], 0) + 1
    said = ", ".join(f"{count} {word}" for word, count in sorted(words.items(), key=lambda item: -item[1]))
    covered = sum(one["low"] <= truth <= one["high"] for one in judged if one["low"] is not None)
    halves = sorted((one["high"] - one["low"]) / 2 for one in judged if one["low"] is not None)
    half = f"{halves[len(halves) // 2]:.1%}" if halves else "-"
    share = f"{covered} of {len(judged)}" if judged else "-"
    load = f"{entry['restarts'] * entry['seconds']:.1f} s"
    return f"| {len(found)} of {entry['what']} | {truth:.2f} | {said} | {share} | {half} | {load} |"


if __name__ == "__main__":
    sys.exit(main())
