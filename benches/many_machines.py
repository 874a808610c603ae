"""One load from four machines, which are network namespaces with an OpenSSH server each: `python -m benches.many_machines
[--rounds 5] [--only NAME ...] [--no-save]` (root, sshd).

Four agents at 5,000 requests a second each must be one open loop of 20,000 requests a second. The error of its schedule is
the time from the intended start of a request to its sending (the agents' `lag`), on clocks whose error is known here: all
namespaces have the same monotonic clock, so that the true difference is 0. One agent with the whole rate is measured in
alternation. Four machines share the cores of one: with real-time priority a thread that wakes runs at once, as it does on a
machine of its own; without, it waits for time slices of others.

What of the error is the generator's own, and what the scheduler's: one agent of 5,000 requests a second on a core of its own, with all
else on the other, and for every load the time for which its threads were ready and had no core (/proc/PID/task/TID/schedstat). What of it
is the machine's: the share of the cores' time that the hypervisor took.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from towline.bench.responder import Responder
from towline.bench.subjects.machine import cpu_ticks, steal_share

from benches import report
from tests.bench.sshd import AGENT, on_machines

ALL_CORES = os.sched_getaffinity(0)
AGENTS, RATE_PER_S, GOAL_US = 4, 20_000, 100.0
OWN_CORE = "one agent, 5 k/s, a core of its own"
LOADS = {
    OWN_CORE: ("a", "-R", str(RATE_PER_S // AGENTS), "-c", "8"),
    f"{OWN_CORE}, real-time": ("a", "-R", str(RATE_PER_S // AGENTS), "-c", "8"),
    "four agents, 5 k/s each": ("a,b,c,d", "-R", str(RATE_PER_S), "-c", "32"),
    "four agents, real-time": ("a,b,c,d", "-R", str(RATE_PER_S), "-c", "32"),
    "four agents, Poisson, real-time": ("a,b,c,d", "-R", str(RATE_PER_S), "-c", "32", "--poisson"),
    "one agent, 20 k/s": ("a", "-R", str(RATE_PER_S), "-c", "32"),
    "four agents, closed loop": ("a,b,c,d", "-c", "64"),
}
OPEN_LOOPS = [name for name, options in LOADS.items() if "-R" in options]


def leave_a_core(name: str, responder: Responder) -> None:
    """Moves the server and this process, with all that it starts, to the other cores for a load that has one of its own."""
    cores = ALL_CORES - {max(ALL_CORES)} if name.startswith(OWN_CORE) and len(ALL_CORES) > 1 else ALL_CORES
    for pid in (responder.pid, os.getpid()):
        os.sched_setaffinity(pid, cores)


def measure(name: str, ssh: str, url: str, seconds: float) -> dict[str, Any]:
    """One run; the report of the generator, and the share of the cores' time that the hypervisor took."""
    hosts, *options = LOADS[name]
    command = [sys.executable, "-m", "towline", "load", "--json", "--hosts", hosts, "--ssh", ssh]
    # A thread that wakes runs at once, as on a machine of its own.
    prefix = "chrt --fifo 10 " if "real-time" in name else ""
    if name.startswith(OWN_CORE):
        prefix += f"taskset -c {max(ALL_CORES)} "
    command += ["--agent-command", prefix + AGENT, "--warm-up", "1", "-d", str(seconds), *options, url]
    ticks = cpu_ticks()
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=False)
    if not done.stdout:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return {**found, "stolen_share": steal_share(ticks, cpu_ticks())}


def figures(found: dict[str, Any]) -> dict[str, float]:
    """The figures of a run that the page shows; times in microseconds."""

    def at(latency: dict[str, Any], percent: float) -> float:
        return next((p["us"] for p in latency["percentiles"] if p["percent"] == percent), 0.0)

    # Without an open loop each thread has the same part of the requests, nearly.
    per_thread_s = found["requests_per_s"] / len(found["agents"])
    lag = (found["open_loop"] or {}).get("lag") or {"percentiles": []}
    agents = found["agents"]
    return {
        "requests_per_s": found["requests_per_s"],
        "achieved": (found["open_loop"] or {}).get("achieved_share", 1.0),
        "lag_p50": at(lag, 50),
        "lag_p99": at(lag, 99),
        "lag_p999": at(lag, 99.9),
        "start_delay": max(agent["start_delay_us"] for agent in agents),
        "clock_error": max(abs(agent["clock_ahead_us"]) for agent in agents),
        "clock_bound": max(agent["clock_error_us"] for agent in agents),
        "cpu_us": found["generator"]["cpu_us_per_request"],
        "kept_waiting": found["generator"]["kept_waiting_share"],
        "stolen": found["stolen_share"],
        "kept_waiting_us": found["generator"]["kept_waiting_share"] * 1e6 / per_thread_s,
    }


def page(rounds: dict[str, list[dict[str, float]]], conditions: str) -> list[str]:
    """The page of the results."""
    lines = [
        "Four network namespaces with veth and an OpenSSH server each, the native responder in a fifth place, all on one",
        "machine. Medians of the rounds; the error of a clock is the true one, since namespaces share it, and in brackets its",
        f"bound as reported. {conditions}.",
        "",
        "| load | requests/s | achieved | lag p50 | lag p99 | p99.9 | start | clock | CPU us/request | waited for a core | per request | stolen |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, found in rounds.items():
        of = {key: median(one[key] for one in found) for key in found[0]}
        closed = of["lag_p99"] == 0
        lag = [" - " if closed else f"{of[key]:.0f} us" for key in ("lag_p50", "lag_p99", "lag_p999")]
        lines.append(
            f"| {name} | {of['requests_per_s']:,.0f} | {of['achieved']:.2%} | {' | '.join(lag)} | {of['start_delay']:.0f} us"
            f" | {of['clock_error']:.0f} us [{of['clock_bound']:.0f}] | {of['cpu_us']:.2f} | {of['kept_waiting']:.1%}"
            f" | {of['kept_waiting_us']:.1f} us | {of['stolen']:.1%} |"
        )
    lines.append("")
    for name in filter(rounds.__contains__, OPEN_LOOPS):
        errors = [one["lag_p99"] + one["clock_error"] for one in rounds[name]]
        met = sum(error < GOAL_US for error in errors)
        lines.append(
            f"- {name}: the schedule's error at p99, the clock's true error included, is {min(errors):.0f} to {max(errors):,.0f} us,"
            f" and below the goal of {GOAL_US:.0f} us in {met} of {len(errors)} rounds."
        )
    lines += [
        "",
        "The wait is that of the thread that waited longest for a core, over all its requests; `stolen` is the hypervisor's share of both",
        "cores. One agent on a core of its own hardly waits for it, and half of its requests start on time; its p99 goes with the stolen share: a core",
        "that is taken away for 1 % of the time delays 1 % of the requests or more.",
        "",
        "Four machines, a server and the controller share two cores here. A thread that wakes without real-time priority waits",
        "for the end of another one's time slice, as the column of waiting shows; on a machine of its own it does not.",
        "CPU time per request contains early wake-ups (up to 60 us before each start), which a busier agent has fewer of.",
        "",
    ]
    return [f"{line}\n" for line in lines]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--only", nargs="+", choices=LOADS, metavar="NAME", default=list(LOADS))
    parser.add_argument("--no-save", action="store_true")
    given = parser.parse_args(arguments)
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in given.only}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sshd, machines = stack.enter_context(on_machines(folder, AGENTS, "10gbit"))
        with Responder("--host", "0.0.0.0") as responder:
            # Each namespace reaches this machine at any of its addresses.
            url = f"http://{machines[0][2]}:{responder.port}/"
            for _ in range(given.rounds):
                for name, found in rounds.items():
                    leave_a_core(name, responder)
                    one = figures(measure(name, sshd.ssh, url, given.seconds))
                    found.append(one)
                    print(
                        f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in one.items()),
                        flush=True,
                    )
    entry = {"date": f"{date.today()}", "machine": report.machine(), "versions": report.versions()}
    lines = page(rounds, report.conditions(entry))
    print("".join(lines))
    if not given.no_save:
        report.save("many_machines", entry | {"rounds": rounds}, replace=True)
        text = "".join(lines)
        report.write_markdown(
            "many_machines", "One load from many machines", [text], "python -m benches.many_machines"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
