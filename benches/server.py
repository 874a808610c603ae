"""Requests per second of `towline serve` and its peers: `make bench`, or `python -m benches.server --help`.

All servers of a cell live at the same time on one core, the generator on another. Rounds go through them
in random order and the others are stopped (SIGSTOP) while one is measured, so that slow drifts of the
machine fall on all alike; every restart begins with fresh processes. Ratios are paired by round.
"""

from __future__ import annotations

import argparse
import datetime
import os
import random
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

from benches import report
from benches.cells import CELLS, Cell
from benches.generator import Slice, measure, require_wrk, wrk_command
from benches.subjects import NAMES, Subject, program
from benches.verify import WrongAnswer, verify

OURS = "towline"


@dataclass(frozen=True)
class Plan:
    servers: tuple[str, ...] | None
    seconds: int
    rounds: int
    restarts: int
    seed: int
    server_core: int | None
    generator_core: int | None


def main() -> int:
    options = arguments()
    require_wrk()
    cells = [CELLS[name] for name in options.cells]
    server_core, generator_core = cores()
    plan = Plan(options.servers, options.seconds, options.rounds, options.restarts, options.seed,
                server_core, generator_core)  # fmt: skip
    for cell in cells:
        entry = run_cell(cell, plan)
        if options.save:
            report.save("server", {cell.name: entry})
            write_tables()
        print(cell_table(cell, entry))
    return 0


def arguments() -> argparse.Namespace:
    def words(known: Any) -> Any:
        def parse(text: str) -> tuple[str, ...]:
            if unknown := set(text.split(",")) - set(known):
                raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
            return tuple(text.split(","))

        return parse

    parser = argparse.ArgumentParser(prog="python -m benches.server", description=__doc__.split("\n\n")[0])
    parser.add_argument("--cells", type=words(CELLS), default=tuple(CELLS), help=", ".join(CELLS))
    parser.add_argument(
        "--servers", type=words(NAMES), help="among towline and the peers of each cell (default: all)"
    )
    parser.add_argument("--seconds", type=int, default=3, help="of one slice (wrk counts whole seconds)")
    parser.add_argument("--rounds", type=int, default=5, help="slices of each server between two restarts")
    parser.add_argument("--restarts", type=int, default=1, help="times that all servers start afresh")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="of the order of slices")
    parser.add_argument("--no-save", dest="save", action="store_false", help="leave benches/results/ alone")
    return parser.parse_args()


def cores() -> tuple[int | None, int | None]:
    available = sorted(os.sched_getaffinity(0))
    if len(available) < 2:
        print(
            "warning: one core only; server and generator share it and the figures mean little",
            file=sys.stderr,
        )
        return None, None
    return available[0], available[1]


def run_cell(cell: Cell, plan: Plan) -> dict[str, Any]:
    names = tuple(name for name in (OURS, *cell.peers) if plan.servers is None or name in plan.servers)
    missing = [name for name in names if program(name) is None]
    for name in missing:
        print(f"{cell.name}: {name} is not installed and is left out", file=sys.stderr)
    entry: dict[str, Any] = {
        "what": cell.what,
        "date": datetime.date.today().isoformat(),
        "machine": report.machine(),
        "versions": report.versions(),
        "plan": {
            "seconds": plan.seconds,
            "rounds": plan.rounds,
            "restarts": plan.restarts,
            "seed": plan.seed,
        },
        "generator": " ".join(wrk_command(cell, 0, plan.seconds)).replace(":0/", ":PORT/"),
        "order": [],
        "failed": dict.fromkeys(missing, "not installed"),
        "servers": {},
    }
    chance = random.Random(f"{plan.seed}/{cell.name}")
    slices: dict[str, list[Slice]] = {}
    for _ in range(plan.restarts):
        run_restart(
            cell, [name for name in names if name not in entry["failed"]], plan, chance, entry, slices
        )
    for name, measured in slices.items():
        if name not in entry["failed"]:
            entry["servers"][name] |= summary(measured)
    entry["ratios"] = ratios(entry["servers"])
    return entry


def run_restart(
    cell: Cell, names: list[str], plan: Plan, chance: random.Random, entry: dict[str, Any],
    slices: dict[str, list[Slice]],
) -> None:  # fmt: skip
    subjects: dict[str, Subject] = {}
    try:
        for name in chance.sample(names, len(names)):
            subject = subjects[name] = Subject(name, cell.app, cell.interface, plan.server_core)
            entry["servers"].setdefault(name, {"command": subject.shown})
            try:
                subject.wait_ready()
                verify(cell, subject.port)
                measure(cell, subject, 1, plan.generator_core)  # warm-up, discarded
            except (RuntimeError, WrongAnswer) as error:
                print(f"{cell.name}: {name} has no figure: {error}", file=sys.stderr)
                entry["failed"][name] = str(error)
                subjects.pop(name).stop()
                continue
            subject.pause()
        for _ in range(plan.rounds):
            for name in chance.sample(sorted(subjects), len(subjects)):
                entry["order"].append(name)
                slices.setdefault(name, []).append(one_slice(cell, subjects[name], plan))
    finally:
        for subject in subjects.values():
            subject.stop()


def one_slice(cell: Cell, subject: Subject, plan: Plan) -> Slice:
    subject.resume()
    time.sleep(0.05)  # timers that ran out while it was stopped
    try:
        return measure(cell.for_server(subject.name), subject, plan.seconds, plan.generator_core)
    finally:
        subject.pause()


def summary(slices: list[Slice]) -> dict[str, Any]:
    return {
        "requests_per_s": statistics.median(one.requests_per_s for one in slices),
        "p50_us": statistics.median(one.p50_us for one in slices),
        "p99_us": statistics.median(one.p99_us for one in slices),
        "subject_cpu": round(statistics.median(one.subject_cpu for one in slices), 3),
        "generator_cpu": round(statistics.median(one.generator_cpu for one in slices), 3),
        "at_least": sum(one.at_least for one in slices) * 2 > len(slices),
        "failed_requests": sum(one.failed for one in slices),
        "slices": [one.record() for one in slices],
    }


def ratios(servers: dict[str, Any]) -> dict[str, Any]:
    if "slices" not in servers.get(OURS, {}):
        return {}

    def rates(name: str) -> list[float]:
        return [one["requests_per_s"] for one in servers[name]["slices"]]

    return {
        name: report.ratio(rates(OURS), rates(name))
        for name in servers
        if name != OURS and len(servers[name].get("slices", [])) == len(servers[OURS]["slices"])
    }


def cell_table(cell: Cell, entry: dict[str, Any]) -> str:
    goals = dict(cell.goals)
    rows = []
    for name, seen in sorted(entry["servers"].items(), key=lambda item: -item[1].get("requests_per_s", 0)):
        if "slices" not in seen:
            rows.append([name, f"no figure: {entry['failed'].get(name, '')[:60]}", "", "", "", "", ""])
            continue
        rate = f"{'at least ' if seen['at_least'] else ''}{seen['requests_per_s']:,.0f}"
        times, goal = "", ""
        if found := entry["ratios"].get(name):
            spread = f" [{found['low']:.2f}, {found['high']:.2f}]" if "low" in found else ""
            times = f"{found['ratio']:.2f} x{spread}"
        if name in goals:
            goal = f"{goals[name]:g} x"
        failed = f"{seen['failed_requests']}" if seen["failed_requests"] else ""
        # wrk has no latency of its own for pipelined requests
        p50, p99 = (f"{seen[key]:,.0f}" if cell.pipeline == 1 else "" for key in ("p50_us", "p99_us"))
        rows.append([name, rate, p50, p99, failed, times, goal])
    head = ["server", "requests/s", "p50 us", "p99 us", "failed", f"{OURS} is [95 %]", "goal"]
    return f"\n## {cell.name}: {entry['what']}\n\n{report.table(head, rows)}"


def write_tables() -> None:
    measured = report.load("server")
    parts = [
        cell_table(CELLS[name], measured[name]) + "\n" + report.conditions(measured[name]) + "\n"
        for name in CELLS
        if name in measured
    ]
    report.write_markdown("server", "Servers, one worker on one core, wrk on another", parts)


if __name__ == "__main__":
    sys.exit(main())
