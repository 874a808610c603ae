"""Two workers on two cores compared with one on one: `python -m benches.cores [--rounds 10] [--no-save]` (root, `ip`, `tc`).

The load comes from a network namespace, over a veth pair. On a machine with two cores the generator shares them with the
server, so requests are made expensive (about 2 ms of Python): the generator then takes a few hundredths of a core. Both
servers run all the time, each confined to its cores (cpusets: `sched_setaffinity` before the start), and take turns in slices.

The cores themselves may be two threads of one, or share a budget. So in each round the same loop of Python, without a server,
runs in one process and then in two: that ratio is the machine's. The server's is compared with it and with 2.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benches import report
from benches.apps.cpu_work import work
from benches.bench_servers import serving
from tests.bench.namespaces import are_available, machines

REQUEST_MS = 2.0
CONNECTIONS = 32
GOAL = 1.9
WARM_UP_S = 0.5
LOOP_S = 1.0


def calibrated(core: int) -> int:
    """Rounds of the loop that take `REQUEST_MS` on a core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        rounds = 10_000
        times = []
        for _ in range(30):
            start = time.perf_counter()
            work(rounds)
            times.append(time.perf_counter() - start)
    finally:
        os.sched_setaffinity(0, before)
    return round(rounds * REQUEST_MS / 1000 / statistics.median(times))


def spun(cores: list[int], rounds: int) -> float:
    """Loops in a second of one process on each of the cores, in all."""
    code = (
        "import os, sys, time; from benches.apps.cpu_work import work; core, rounds, begin, seconds = map(float, sys.argv[1:])\n"
        "os.sched_setaffinity(0, {int(core)}); work(int(rounds)); time.sleep(max(0, begin - time.time()))\n"
        "start = time.perf_counter(); done = 0\n"
        "while time.perf_counter() - start < seconds:\n work(int(rounds)); done += 1\n"
        "print(done / (time.perf_counter() - start))"
    )
    begin = time.time() + 0.5  # all have started by then
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, *map(str, (core, rounds, begin, LOOP_S))],
            stdout=subprocess.PIPE,
            text=True,
        )
        for core in cores
    ]
    return sum(float(process.communicate(timeout=60)[0]) for process in processes)


def load(namespace: str, url: str, seconds: float) -> dict[str, float]:
    """One slice of a closed loop from the namespace."""
    command = [
        "ip",
        "netns",
        "exec",
        namespace,
        sys.executable,
        "-m",
        "towline",
        "load",
        "--json",
        "-c",
        str(CONNECTIONS),
    ]
    command += ["--warm-up", str(WARM_UP_S), "-d", str(seconds), url]
    before = stolen_s()
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=False)
    found = json.loads(done.stdout or "{}")
    if done.returncode != 0:
        raise SystemExit(f"the load has failed: {done.stderr}{found.get('first_failure')}")
    return {
        "per_s": found["requests_per_s"],
        "p50_ms": next(one["us"] for one in found["response"]["percentiles"] if one["percent"] == 50) / 1000,
        "generator_share": found["generator"]["cpu_s"] / found["measured_s"],
        "stolen_share": (stolen_s() - before) / (seconds + WARM_UP_S),
    }


def stolen_s() -> float:
    """Time of the machine's cores that the hypervisor gave to others."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK") if len(fields) > 8 else 0.0


def measure(rounds: int, seconds: float) -> dict[str, Any]:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    loops = calibrated(first)
    found: dict[str, Any] = {"loops": loops, "one": [], "two": [], "machine_one": [], "machine_two": []}
    with ExitStack() as stack:
        ((namespace, _, outer),) = stack.enter_context(machines(1, "10gbit"))
        urls = {}
        for name, cores in (("one", [first]), ("two", [first, second])):
            _, urls[name] = stack.enter_context(
                serving(
                    "cpu_work:app",
                    *("--workers", str(len(cores))),
                    address=outer,
                    cores=cores,
                    env={"WORK": str(loops)},
                )
            )
        for number in range(rounds):
            # In turns, so that a drift of the machine meets both.
            for name in ("one", "two") if number % 2 else ("two", "one"):
                found[name].append(load(namespace, urls[name], seconds))
            found["machine_one"].append(spun([first], loops))
            found["machine_two"].append(spun([first, second], loops))
            ratio = found["two"][-1]["per_s"] / found["one"][-1]["per_s"]
            machine = found["machine_two"][-1] / found["machine_one"][-1]
            print(f"round {number + 1}: server {ratio:.3f}, machine {machine:.3f}", flush=True)
    found["server_ratio"] = report.ratio(rates(found["two"]), rates(found["one"]))
    found["machine_ratio"] = report.ratio(found["machine_two"], found["machine_one"])
    return found


def rates(slices: list[dict[str, float]]) -> list[float]:
    return [one["per_s"] for one in slices]


def page(found: dict[str, Any]) -> list[str]:
    def median(name: str, key: str) -> float:
        return statistics.median(one[key] for one in found[name])

    rows = [
        [
            title,
            f"{median(name, 'per_s'):,.0f}",
            f"{median(name, 'p50_ms'):.1f} ms",
            f"{median(name, 'generator_share'):.1%}",
            f"{median(name, 'stolen_share'):.1%}",
        ]
        for name, title in (("one", "one worker on one core"), ("two", "two workers on two cores"))
    ]
    server, machine = found["server_ratio"], found["machine_ratio"]
    between = "{ratio:.3f} ({low:.3f} to {high:.3f})"
    text = [
        f"Requests of {REQUEST_MS:g} ms of Python, {CONNECTIONS} connections from a network namespace, medians of {len(found['one'])} rounds:",
        "",
        report.table(["server", "requests/s", "median", "generator, of a core", "stolen"], rows),
    ]
    if "low" in server:
        left = (2 - median("two", "generator_share")) / 2 * machine["ratio"]
        text += [
            f"- Two workers serve {between.format(**server)} times as many requests as one (95 % interval over rounds);",
            f"  the goal of {GOAL} is {'met' if server['ratio'] >= GOAL else 'missed'}.",
            f"- The same loop in two processes without a server, compared with one: {between.format(**machine)}.",
            f"- Without the generator's share, which is taken from the two workers only, that leaves {left:.3f}.",
        ]
    return [*text, ""]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benches.cores",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a slice")
    parser.add_argument("--no-save", dest="save", action="store_false", help="leave benches/results/ alone")
    options = parser.parse_args(arguments)
    if len(os.sched_getaffinity(0)) < 2:
        report.fail("two cores are needed")
    if not are_available():
        report.fail("network namespaces are needed: root, `ip` and `tc` (Debian: iproute2)")
    found = measure(options.rounds, options.seconds)
    parts = page(found)
    print("\n".join(parts))
    if options.save:
        report.save_page("cores", "Two workers on two cores", found, parts, ("towline",))
    return 0


if __name__ == "__main__":
    sys.exit(main())
