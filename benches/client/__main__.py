"""Requests per second and CPU per request of towline's clients and their peers.

All clients of a cell live at the same time, each in a process of its own, on one core; the responder is on
another. Rounds go through them in random order, so that slow drifts of the machine fall on all alike; every
restart begins with fresh processes. Ratios are paired by round.
"""

from __future__ import annotations

import argparse
import datetime
import random
import statistics
import sys
from dataclasses import dataclass
from typing import Any

from benches import report
from benches.server import cores

from .adapters import SUBJECTS
from .cells import CELLS, Cell
from .process import Failed, Missing, Responder, Worker
from .tables import cell_table, write_tables

# Above this share of its core the responder may have been the limit, unless the client's core was full too.
RESPONDER_FULL, CLIENT_FULL = 0.9, 0.9


@dataclass(frozen=True)
class Plan:
    subjects: tuple[str, ...] | None
    seconds: float
    slow_seconds: float
    rounds: int
    restarts: int
    seed: int
    loop: str
    client_core: int | None


def main() -> int:
    options = arguments()
    client_core, responder_core = cores()
    plan = Plan(options.subjects, options.seconds, options.slow_seconds, options.rounds, options.restarts,
                options.seed, options.loop, client_core)  # fmt: skip
    for name in options.cells:
        responder = Responder(responder_core)
        try:
            entry = CellRun(CELLS[name], plan, responder).run()
        finally:
            responder.stop()
        if options.save:
            key = name if options.loop == "asyncio" else f"{name}/{options.loop}"
            report.save("client", {key: entry})
            write_tables()
        print(cell_table(CELLS[name], entry), flush=True)
    return 0


def arguments() -> argparse.Namespace:
    def words(known: Any) -> Any:
        def parse(text: str) -> tuple[str, ...]:
            chosen = [name for word in text.split(",") for name in matching(word, known)]
            return tuple(dict.fromkeys(chosen))

        return parse

    parser = argparse.ArgumentParser(
        prog="python -m benches.client", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument(
        "--cells", type=words(CELLS), default=tuple(CELLS), help="NAME or PREFIX*, of " + ", ".join(CELLS)
    )
    parser.add_argument(
        "--subjects", type=words(SUBJECTS), help="of " + ", ".join(SUBJECTS) + " (default: all)"
    )
    parser.add_argument("--seconds", type=float, default=0.5, help="of a slice that has no count of its own")
    parser.add_argument("--slow-seconds", type=float, default=6.0, help="that a slow reader reads")
    parser.add_argument("--rounds", type=int, default=4, help="slices of each client between two restarts")
    parser.add_argument("--restarts", type=int, default=2, help="times that all clients start afresh")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="of the order of slices")
    parser.add_argument(
        "--loop", choices=("asyncio", "uvloop"), default="asyncio", help="of all clients alike"
    )
    parser.add_argument("--no-save", dest="save", action="store_false", help="leave benches/results/ alone")
    return parser.parse_args()


def matching(word: str, known: Any) -> list[str]:
    found = [name for name in known if name == word or (word.endswith("*") and name.startswith(word[:-1]))]
    if not found:
        raise argparse.ArgumentTypeError(f"unknown: {word}; known: {', '.join(known)}")
    return found


class CellRun:
    """One cell, from the first process to the ratios."""

    def __init__(self, cell: Cell, plan: Plan, responder: Responder) -> None:
        self.cell, self.plan, self.responder = cell, plan, responder
        self.chance = random.Random(f"{plan.seed}/{cell.name}")
        self.failed: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        self.order: list[str] = []
        self.slices: dict[str, list[dict[str, Any]]] = {}

    def run(self) -> dict[str, Any]:
        plan, machine = self.plan, report.machine()
        chosen = [name for name in self.cell.subjects if plan.subjects is None or name in plan.subjects]
        for _ in range(plan.restarts):
            if self.cell.slow:
                self.one_by_one([name for name in chosen if name not in self.failed])
            else:
                self.restart([name for name in chosen if name not in self.failed])
        clients = {name: summary(slices) for name, slices in self.slices.items() if name not in self.failed}
        return {
            "what": self.cell.what,
            "date": datetime.date.today().isoformat(),
            "machine": machine,
            "versions": report.versions(()) | self.versions,
            "plan": {
                "seconds": plan.slow_seconds if self.cell.slow else plan.seconds,
                "rounds": 1 if self.cell.slow else plan.rounds,
                "restarts": plan.restarts,
                "seed": plan.seed,
                "loop": plan.loop,
            },
            "order": self.order,
            "failed": self.failed,
            "clients": clients,
            "ratios": {} if self.cell.slow else ratios(self.cell, clients),
        }

    def restart(self, names: list[str]) -> None:
        workers: dict[str, Worker] = {}
        try:
            for name in self.chance.sample(names, len(names)):
                if worker := self.begin(name):
                    workers[name] = worker
            for _ in range(self.plan.rounds):
                for name in self.chance.sample(sorted(workers), len(workers)):
                    if not self.slice(workers[name], self.plan.seconds):
                        workers.pop(name).stop()
        finally:
            for worker in workers.values():
                worker.stop()

    def one_by_one(self, names: list[str]) -> None:
        """A slow reader is measured in a process that has done nothing else."""
        for name in self.chance.sample(names, len(names)):
            if worker := self.begin(name):
                self.slice(worker, self.plan.slow_seconds)
                worker.stop()

    def begin(self, name: str) -> Worker | None:
        try:
            worker = Worker(name, self.cell.name, self.responder.base, self.plan.loop, self.plan.client_core)
        except Missing as missing:
            self.give_up(name, f"not installed: {missing}")
            return None
        try:
            self.versions |= worker.start()
            worker.verify()
        except (Missing, Failed) as error:
            self.give_up(name, f"{'not installed: ' if isinstance(error, Missing) else ''}{error}")
            worker.stop()
            return None
        return worker

    def slice(self, worker: Worker, seconds: float) -> bool:
        spent = self.responder.cpu_s()
        try:
            found = worker.run(seconds)
        except Failed as error:
            self.give_up(worker.name, str(error))
            return False
        if not self.cell.slow:
            # Warm-up included: a little too much, and good enough to see who was the limit.
            found["responder_cpu"] = round((self.responder.cpu_s() - spent) / found["seconds"], 3)
        self.order.append(worker.name)
        self.slices.setdefault(worker.name, []).append(found)
        return True

    def give_up(self, name: str, why: str) -> None:
        print(f"{self.cell.name}: {name} has no figure: {why}", file=sys.stderr, flush=True)
        self.failed[name] = why


def summary(slices: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over slices of whatever is a number in all of them."""
    found: dict[str, Any] = {}
    for key in slices[0]:
        values = [one[key] for one in slices]
        if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
            found[key] = round(statistics.median(values), 4)
    if "cpu_us" in found:
        found["at_least"] = sum(map(limited, slices)) * 2 > len(slices)
    return found | {"slices": slices}


def limited(one: dict[str, Any]) -> bool:
    """The responder's core was full and the client's was not: the client could have done more."""
    client_cpu = one["cpu_us"] * one["requests_per_s"] / 1e6
    return bool(one["responder_cpu"] > RESPONDER_FULL and client_cpu < CLIENT_FULL)


def ratios(cell: Cell, clients: dict[str, Any]) -> dict[str, Any]:
    """Ours to each peer of the same face: requests a second, and CPU per request (theirs to ours)."""
    found: dict[str, Any] = {}
    for peer, seen in clients.items():
        ours = cell.ours_beside(peer)
        if ours in (None, peer) or ours not in clients:
            continue
        pairs = list(zip(clients[ours]["slices"], seen["slices"], strict=False))
        found[peer] = {
            "ours": ours,
            "rate": report.ratio([a["requests_per_s"] for a, _ in pairs], [b["requests_per_s"] for _, b in pairs]),
            "cpu": report.ratio([b["cpu_us"] for _, b in pairs], [a["cpu_us"] for a, _ in pairs]),
        }  # fmt: skip
    return found


if __name__ == "__main__":
    sys.exit(main())
