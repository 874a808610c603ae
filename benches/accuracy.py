"""Checks the figures of load generators on servers of known behaviour: `python -m benches.accuracy [--seconds 10] [--no-save]`.

The server is the native responder with injected delays, stalls and errors; the expected figures are computed from
its own log of what it injected. The generator is Towline's, in an open loop; wrk and oha are run too where they are
installed, to show the effect of a closed loop and of latency correction. Server and generator have one core each.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from towline.bench.responder import InjectedFaults, Responder, pinned_to

from benches import report

RATE_PER_S = 1000
CONNECTIONS = 200
PERCENTS = (50.0, 95.0, 99.0, 99.9)
# Tolerances: a millisecond for the scheduler, or a share of the expected figure.
WITHIN_MS, WITHIN_SHARE, WITHIN_SHARE_STALL = 1.0, 0.02, 0.05


@dataclass(frozen=True)
class Window:
    """The measured time, on the clock of `time.monotonic_ns`."""

    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Case:
    title: str
    options: tuple[str, ...]
    target: str
    expected: Callable[[InjectedFaults, Window], dict[float, float]]
    share: float = WITHIN_SHARE


@dataclass(frozen=True)
class Measured:
    """Latency in milliseconds by percentile, requests answered and failed."""

    percentiles: dict[float, float]
    answered: int
    failed: int


def fixed(ms: float) -> Callable[[InjectedFaults, Window], dict[float, float]]:
    return lambda injected, window: dict.fromkeys(PERCENTS, ms)


def bimodal(
    fast_ms: float, slow_ms: float, share: float
) -> Callable[[InjectedFaults, Window], dict[float, float]]:
    found = {percent: slow_ms if percent > 100 * (1 - share) else fast_ms for percent in PERCENTS}
    return lambda injected, window: found


def stalled(injected: InjectedFaults, window: Window) -> dict[float, float]:
    """A request that is due within a stall waits until its end; all others do not wait."""
    count = round((window.end_s - window.begin_s) * RATE_PER_S)
    waits = [0.0] * count
    for begin_ns, end_ns in injected.stalls:
        first = max(0, int((begin_ns / 1e9 - window.begin_s) * RATE_PER_S) + 1)
        for number in range(first, count):
            wait = end_ns / 1e9 - (window.begin_s + number / RATE_PER_S)
            if wait <= 0:
                break
            waits[number] = wait * 1e3
    waits.sort()
    return {percent: waits[min(count - 1, int(count * percent / 100))] for percent in PERCENTS}


CASES = {
    "delay_1ms": Case("every response after 1 ms", ("--delay", "1ms", "--exact"), "/", fixed(1.0)),
    "delay_10ms": Case("every response after 10 ms", ("--delay", "10ms", "--exact"), "/", fixed(10.0)),
    "stall": Case(
        "a stall of 100 ms each second",
        ("--stall-every", "1s", "--stall-for", "100ms"),
        "/",
        stalled,
        WITHIN_SHARE_STALL,
    ),
    "bimodal": Case(
        "9 of 10 responses after 1 ms, 1 after 150 ms",
        ("--exact",),
        "/?fast_ms=1&slow_ms=150&slow_share=0.1",
        bimodal(1.0, 150.0, 0.1),
    ),
    "errors": Case(
        "1 of 100 responses with status 500, all after 1 ms",
        ("--exact",),
        "/?delay_us=1000&error_share=0.01",
        fixed(1.0),
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benches.accuracy", description=__doc__.split("\n\n")[0])
    parser.add_argument("--cases", default=",".join(CASES), help=", ".join(CASES))
    parser.add_argument("--seconds", type=int, default=10, help="of each generator on each case")
    parser.add_argument("--tools", default=",".join(TOOLS), help=", ".join(TOOLS))
    parser.add_argument("--no-save", dest="save", action="store_false", help="leave benches/results/ alone")
    options = parser.parse_args()
    entries, right = {}, True
    for name in options.cases.split(","):
        entries[name] = measure(CASES[name], options.tools.split(","), options.seconds)
        print("\n".join(table(CASES[name], entries[name])), end="\n\n", flush=True)
        right &= bool(entries[name]["towline"]["right"])
    if options.save:
        report.save("accuracy", entries)
        write_page()
    return 0 if right else 1


def measure(case: Case, tools: list[str], seconds: int) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    generator_core, server_core = cores()
    for name in tools:
        program = TOOLS[name][0]()
        if program is None:
            continue
        # A new responder for each tool: its log of injected faults is for that tool alone.
        with Responder(*case.options, cores=[server_core] if server_core is not None else None) as responder:
            started = time.monotonic()
            command = [*program, *TOOLS[name][1](responder.base_url + case.target, seconds)]
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=seconds * 3 + 30,
                preexec_fn=pinned_to([generator_core] if generator_core is not None else None),
            )
            found, window = TOOLS[name][2](done.stdout, started, seconds)
            injected = responder.injected()
        expected = case.expected(injected, window)
        entry[name] = {
            "truth_ms": expected,
            "found_ms": found.percentiles,
            "answered": found.answered,
            "failed": found.failed,
            "injected_errors": injected.errors,
            "injected_requests": injected.requests,
            "right": is_right(case, expected, found, injected),
        }
    return entry


def cores() -> tuple[int | None, int | None]:
    """For the generator and the server."""
    available = sorted(os.sched_getaffinity(0))
    return (available[0], available[1]) if len(available) > 1 else (None, None)


def is_right(case: Case, expected: dict[float, float], found: Measured, injected: InjectedFaults) -> bool:
    times = all(
        abs(found.percentiles[percent] - ms) <= max(WITHIN_MS, case.share * ms)
        for percent, ms in expected.items()
        if percent in found.percentiles
    )
    return times and found.failed == injected.errors


def ours(output: str, started: float, seconds: int) -> tuple[Measured, Window]:
    plain = json.loads(output)
    times = {one["percent"]: one["us"] / 1e3 for one in plain["response"]["percentiles"]}
    begin_s = plain["began_unix_s"] - (time.time() - time.monotonic())
    failed = sum(plain["errors"].values())
    found = Measured({percent: times[percent] for percent in PERCENTS}, plain["answered"], failed)
    return found, Window(begin_s, begin_s + plain["measured_s"])


def wrk(output: str, started: float, seconds: int) -> tuple[Measured, Window]:
    """The tool prints neither p95 nor p99.9."""
    times = {}
    for percent, number, unit in re.findall(r"^ +(\d+)% +([\d.]+)(us|ms|s)$", output, re.MULTILINE):
        if float(percent) in PERCENTS:
            times[float(percent)] = float(number) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[unit]
    requests = re.search(r"(\d+) requests in", output)
    failed = re.search(r"Non-2xx or 3xx responses: (\d+)", output)
    assert requests is not None, output
    count = int(failed[1]) if failed else 0
    return Measured(times, int(requests[1]) - count, count), Window(started, started + seconds)


def oha(output: str, started: float, seconds: int) -> tuple[Measured, Window]:
    plain = json.loads(output)
    known = plain["latencyPercentiles"]
    times = {percent: known[f"p{percent:g}"] * 1e3 for percent in PERCENTS}
    statuses = plain["statusCodeDistribution"]
    failed = sum(count for status, count in statuses.items() if not status.startswith(("2", "3")))
    return Measured(times, sum(statuses.values()) - failed, failed), Window(started, started + seconds)


def installed(*places: str) -> list[str] | None:
    program = next(filter(None, map(shutil.which, places)), None)
    return [program] if program else None


Tool = tuple[
    Callable[[], list[str] | None],
    Callable[[str, int], list[str]],
    Callable[[str, float, int], tuple[Measured, Window]],
]

OHA = ("oha", os.path.expanduser("~/.cargo/bin/oha"))
SIZE = ["-c", str(CONNECTIONS)]
TOOLS: dict[str, Tool] = {
    "towline": (
        lambda: [sys.executable, "-m", "towline", "load"],
        lambda url, seconds: [*SIZE, "-R", str(RATE_PER_S), "-d", f"{seconds}s", "--json", url],
        ours,
    ),
    "wrk": (
        lambda: installed("wrk"),
        lambda url, seconds: ["-t1", "-c10", f"-d{seconds}s", "--latency", url],
        wrk,
    ),
    "oha": (
        lambda: installed(*OHA),
        lambda url, seconds: [
            "--no-tui",
            "--output-format",
            "json",
            *SIZE,
            "-q",
            str(RATE_PER_S),
            "-z",
            f"{seconds}s",
            url,
        ],
        oha,
    ),
    "oha-corrected": (
        lambda: installed(*OHA),
        lambda url, seconds: [
            "--no-tui",
            "--output-format",
            "json",
            "--latency-correction",
            *SIZE,
            "-q",
            str(RATE_PER_S),
            "-z",
            f"{seconds}s",
            url,
        ],
        oha,
    ),
}


def table(case: Case, entry: dict[str, Any]) -> list[str]:
    head = (
        "| | "
        + " | ".join(f"p{percent:g} ms (truth)" for percent in PERCENTS)
        + " | failed (truth) | right |"
    )
    lines = [f"### {case.title}", "", head, "|---" * (len(PERCENTS) + 3) + "|"]
    for name, found in entry.items():
        expected, times = keyed(found["truth_ms"]), keyed(found["found_ms"])
        experiments = [
            f"{times[percent]:.2f} ({expected[percent]:.2f})"
            if percent in times
            else f"- ({expected[percent]:.2f})"
            for percent in PERCENTS
        ]
        experiments += [f"{found['failed']} ({found['injected_errors']})", "yes" if found["right"] else "no"]
        lines.append(f"| {name} | {' | '.join(experiments)} |")
    return lines


def keyed(times: dict[Any, float]) -> dict[float, float]:
    """Restores the numeric keys, which JSON stores as strings."""
    return {float(percent): ms for percent, ms in times.items()}


def write_page() -> None:
    entries = report.load("accuracy")
    lines = [
        "# Accuracy of load generators",
        "",
        f"`python -m benches.accuracy`: the native responder as a server of known behaviour. Open loops send {RATE_PER_S:,} "
        f"requests a second over {CONNECTIONS} connections, wrk has 10 connections in a closed loop. In parentheses: the figure "
        "computed from the server's log of that run. Right: all percentiles within 2 % (stalls: 5 %) or one millisecond, and "
        "the number of failures exact.",
        "",
    ]
    for name, case in CASES.items():
        if name in entries:
            lines += [*table(case, entries[name]), ""]
    report.RESULTS.joinpath("accuracy.md").write_text("\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
