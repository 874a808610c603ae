"""Error rates of the verdicts: equal servers, servers slower by 5 and 10 %, with stolen time, and a CPU hog.

`python -m benches.verdicts [--count 200] [--stolen 5] [--hog 5] [--add] [--limit-seconds S]`. Each measurement runs
four servers in one experiment: the baseline, the same again, one that costs 5 % more CPU and one that costs 10 %. It
gives three comparisons, each judged by itself, as if only its two servers had been measured. The servers are the
native responder with 20 us of work per request, so that they, not the generator, are the limit. `--stolen`: a program
takes this share (%) of both cores away in bursts of 30 ms, besides what the hypervisor takes, which is recorded.

Writes benches/results/verdicts.json.gz, with the figures of all slices, and verdicts.md; `--add` keeps the existing
measurements, so that a long series can be made in parts, and `--tables` only derives the tables again. Needs
`cargo build --release -p towline-load`.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from towline.bench import Verdict
from towline.bench.analysis import Comparison, analyse_experiment
from towline.bench.api import Command, measure
from towline.bench.record import ExperimentRecord, Slice, SubjectRecord
from towline.bench.runner.design import Cores, Design, WarmUp
from towline.bench.runner.progress import Progress
from towline.bench.scenarios import catalogue
from towline.bench.statistics.stopping import Rule
from towline.bench.subjects.machine import cpu_ticks, describe, steal_share

from benches import report
from benches.stolen import stolen

SPIN_STEPS = 10_000
"""About 20 us of work. Given in steps, since each server would calibrate microseconds differently."""
CONNECTIONS = 16
RESPONDER = Path(__file__).parent.parent / "target" / "release" / "towline-responder"
SUBJECTS = {"one": 0, "same": 0, "five": 5, "ten": 10}
"""Additional CPU time in per cent. The first is the baseline."""
METRICS = {"per_s": "requests/s", "cpu_us": "CPU time per request"}
COLUMNS = (
    "subject", "restart", "round", "answered", "measured_ms", "cpu_ms", "subject_share", "driver_share", "driver_waited",
    "subject_waited_ms", "stolen_ms",
)  # fmt: skip
"""Fields of a slice in the record. Older series lack the last two."""


def main() -> int:
    options = arguments()
    kept = {name: entry for name, entry in report.load("verdicts").items() if "measurements" in entry}
    if not options.tables:
        until = time.monotonic() + options.limit_seconds
        series(kept, f"stolen {options.stolen:g}%", options.count, options, until)
        series(kept, "hog", options.hog, options, until)
    save(kept)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benches.verdicts", description=__doc__.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=200, help="measurements of the four servers")
    parser.add_argument(
        "--stolen", type=float, default=5.0, help="per cent of both cores that a program takes"
    )
    parser.add_argument(
        "--hog", type=int, default=5, help="measurements beside a program on the generator's core"
    )
    parser.add_argument("--restarts", type=int, default=8, help="of one measurement")
    parser.add_argument("--seconds", type=float, default=0.9, help="load on each server in a restart")
    parser.add_argument(
        "--limit-seconds", type=float, default=math.inf, help="start no measurement after this time"
    )
    parser.add_argument("--add", action="store_true", help="keep the existing measurements")
    parser.add_argument("--tables", action="store_true", help="measure nothing")
    return parser.parse_args()


def series(kept: dict[str, Any], name: str, count: int, options: argparse.Namespace, until: float) -> None:
    """Makes the measurements of one kind and saves after each."""
    settings = {
        "restarts": options.restarts,
        "seconds": options.seconds,
        "spin_steps": SPIN_STEPS,
        "connections": CONNECTIONS,
        "columns": list(COLUMNS),
    }
    entry = kept.get(name) if options.add else None
    if entry is None or any(entry[key] != value for key, value in settings.items()):
        entry = settings | {"machine": describe(), "began": now(), "measurements": []}
    if count:
        kept[name] = entry
    cores = Cores.divided()
    with hogging(cores) if name == "hog" else stolen(options.stolen / 100):
        for _ in range(count):
            if time.monotonic() >= until:
                break
            measurement = measured(cores, options, seed=len(entry["measurements"]))
            entry["measurements"].append(measurement)
            entry["ended"] = now()
            save(kept)
            found = comparisons(entry, measurement)
            line = ", ".join(described(found[other, "per_s"]) for other in list(SUBJECTS)[1:])
            print(f"{name}, {len(entry['measurements'])}: {line}", flush=True)


def now() -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())


def described(one: Comparison) -> str:
    return f"{one.ratio:.3f} [{one.low:.3f}, {one.high:.3f}] {one.verdict.value}"


@contextmanager
def hogging(cores: Cores) -> Iterator[None]:
    """A program that never stops on the generator's core."""
    program = f"import os\nos.sched_setaffinity(0, {set(cores.driver or os.sched_getaffinity(0))})\nwhile True: pass"
    hog = subprocess.Popen([sys.executable, "-c", program])
    try:
        yield
    finally:
        hog.kill()
        hog.wait()


def measured(cores: Cores, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """One measurement of all four, with the figures of its slices."""
    design = Design(
        rule=Rule("fixed", options.restarts, options.restarts),
        seconds=options.seconds,
        seed=seed,
        cores=cores,
        warm_up=WarmUp(windows=8, window_s=0.015, cap_s=1.0),
        baseline="one",
    )
    hello = replace(catalogue()["hello"], connections=CONNECTIONS)
    began, ticks = time.monotonic(), cpu_ticks()
    servers = {name: responder(percent) for name, percent in SUBJECTS.items()}
    found = measure(servers, hello, design, progress=Progress())
    names = list(SUBJECTS)
    return {
        "seconds": round(time.monotonic() - began, 1),
        "steal_share": round(steal_share(ticks, cpu_ticks()), 4),
        "failures": found.failures,
        "slices": [
            [
                names.index(one.subject),
                one.restart,
                one.round,
                one.answered,
                round(one.measured_s * 1e3, 3),
                round(one.subject_cpu_s * 1e3, 3),
                round(one.subject_busiest_share, 2),
                round(one.driver_busiest_share, 2),
                round(one.driver_waited_share, 2),
                round(one.subject_waited_s * 1e3, 3),
                None if one.stolen_s is None else round(one.stolen_s * 1e3, 3),
            ]
            for one in found.analysis.record.experiments[0].slices
        ],
    }


def responder(percent: int) -> Command:
    argv = [str(RESPONDER), "--port", "{port}", "--spin-steps", str(SPIN_STEPS)]
    return Command([*argv, "--spin-percent", str(percent)])


def comparisons(entry: dict[str, Any], measurement: dict[str, Any]) -> dict[tuple[str, str], Comparison]:
    """By the other server and the metric: each pair of servers by itself, from the slices of the record."""
    names = list(SUBJECTS)
    slices = []
    for row in measurement["slices"]:
        one = dict(zip(entry["columns"], row, strict=True))
        stolen_ms = one.get("stolen_ms")
        slices.append(
            Slice(
                names[one["subject"]],
                one["restart"],
                one["round"],
                0,
                0.0,
                one["measured_ms"] / 1e3,
                one["answered"],
                subject_cpu_s=one["cpu_ms"] / 1e3,
                subject_busiest_share=one["subject_share"],
                subject_waited_s=one.get("subject_waited_ms", 0.0) / 1e3,
                stolen_s=None if stolen_ms is None else stolen_ms / 1e3,
                driver_busiest_share=one["driver_share"],
                driver_waited_share=one["driver_waited"],
            )
        )
    found = {}
    for other in names[1:]:
        pair = ("one", other)
        subjects = [SubjectRecord(name, "server") for name in pair]
        own = [one for one in slices if one.subject in pair]
        load = {"connections": entry["connections"]}
        experiment = ExperimentRecord("hello", "hello", "", "Roadrunner", "capacity", load, subjects, own)
        for one in analyse_experiment(experiment, "one").comparisons:
            found[other, one.metric] = one
    return found


def save(kept: dict[str, Any]) -> None:
    report.save("verdicts", kept, replace=True)
    (report.RESULTS / "verdicts.md").write_text("\n".join(page(kept)) + "\n")


def page(kept: dict[str, Any]) -> list[str]:
    lines = [
        "# Error rates of the verdicts",
        "",
        "Written by `python -m benches.verdicts`; the slices of every comparison are in `verdicts.json.gz`.",
    ]
    for name, entry in kept.items():
        lines += ["", *table(name, entry)]
    return lines


def table(name: str, entry: dict[str, Any]) -> list[str]:
    done = entry["measurements"]
    if not done:
        return []
    found = [comparisons(entry, one) for one in done]
    steal = sorted(one["steal_share"] for one in done)
    what = (
        "a program on the generator's core"
        if name == "hog"
        else f"a program took {name.split()[1]} of both cores"
    )
    rows = [
        row(truth, metric, [one[other, metric] for one in found if (other, metric) in one])
        for other, truth in list(SUBJECTS.items())[1:]
        for metric in METRICS
    ]
    return [
        f"## {name}",
        "",
        f"{len(done)} comparisons of each kind: {entry['restarts']} restarts with {entry['seconds']:g} s of load on each "
        f"server, {median(one['seconds'] for one in done) / 2:.0f} s for a comparison of two. {what[0].upper()}{what[1:]}, "
        f"and the hypervisor {steal[0]:.1%} to {steal[-1]:.1%} (median {median(steal):.1%}).",
        "",
        "| other server | figure | verdicts | median ratio | intervals that cover the truth | median half-width |",
        "| --- | --- | --- | ---: | ---: | ---: |",
        *rows,
        "",
        f"{entry['machine'].get('cpu', '')}, {entry['began']} to {entry.get('ended', '')}.",
    ]


def row(percent: int, metric: str, found: list[Comparison]) -> str:
    truth = 1 + percent / 100 if metric == "per_s" else 1 / (1 + percent / 100)
    judged = [one for one in found if one.verdict is not Verdict.REFUSED and math.isfinite(one.high)]
    counts = Counter(one.verdict.value for one in found)
    verdicts = ", ".join(f"{count} {word}" for word, count in counts.most_common())
    covered = sum(one.low <= truth <= one.high for one in judged)
    half = f"{median(math.log(one.high / one.low) / 2 for one in judged):.1%}" if judged else "-"
    ratio = f"{median(one.ratio for one in judged):.3f}" if judged else "-"
    other = f"+{percent} % CPU time" if percent else "equal"
    return f"| {other} | {METRICS[metric]} | {verdicts} | {ratio} | {covered} of {len(judged)} | {half} |"


if __name__ == "__main__":
    sys.exit(main())
