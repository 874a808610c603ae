"""Servers that stand still, measured in alternating slices: `python -m benches.stalls [--rounds 300] [--no-save]`.

Two native responders of the same build, of which one stands still as its log says: 100 or 300 ms of each second, once
for 2 s, or for 20 ms after many requests, as a garbage collector does. Their slices alternate as in every comparison,
in a closed and in an open loop, and as upstreams of the blocking client. The truth follows from the log by arithmetic;
rates must be within 3 %, p99 within 5 % of it or a millisecond.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from towline.bench.analysis import paired
from towline.bench.clients.process import Worker
from towline.bench.clients.subjects import CLIENTS
from towline.bench.clients.worker.job import Job
from towline.bench.hdr import merged
from towline.bench.record import Slice
from towline.bench.responder import Responder
from towline.bench.runner.agent import Agent, slice_of
from towline.bench.runner.protocol import SliceSpec
from towline.bench.statistics.paired import Part, log_ratio, trimmed_mean
from towline.bench.subjects.machine import stolen_s
from towline.bench.subjects.resources import waited_s

from benches import report
from benches.accuracy import cores

SLICE_S, DISCARD_S = 0.03, 0.001
CONNECTIONS, RATE_PER_S = 8, 2000.0
WITHIN_RATE, WITHIN_P99, WITHIN_MS = 0.03, 0.05, 1.0
SIDES = ("steady", "stalling")

STALLS = {
    "100 ms of each second": ("--stall-every", "1s", "--stall-for", "100ms"),
    "300 ms of each second": ("--stall-every", "1s", "--stall-for", "300ms"),
    "once for 2 s": ("--stall-requests", "{once}", "--stall-for", "2s", "--stall-times", "1"),
    "20 ms after many requests": ("--stall-requests", "{many}", "--stall-for", "20ms"),
}
LOADS = ("closed", "open", "client")
MANY_REQUESTS = {"closed": 20_000, "open": 2000, "client": 2000}
"""Requests between two pauses: at full rate some 0.1 to 0.2 s, several slices. Where a pause comes in each slice, the two
are in step: each slice ends with the pause, the discarded beginning never has one, and the rate reads up to a tenth too low."""


@dataclass(frozen=True)
class StallFigures:
    """Rates as shares of the steady server's, and p99 in milliseconds.

    `p99_truth_ms`: None where stalls concern about 1 % of the requests or fewer, so that p99 depends on the machine.
    """

    rate: float
    rate_truth: float
    p99_ms: float
    p99_truth_ms: float | None

    def is_right(self, within: float = 1.0) -> bool:
        """`within` widens the bounds, for tests beside other load."""
        rate = abs(self.rate / self.rate_truth - 1) <= WITHIN_RATE * within
        if self.p99_truth_ms is None:
            return rate
        return rate and abs(self.p99_ms - self.p99_truth_ms) <= within * max(
            WITHIN_P99 * self.p99_truth_ms, WITHIN_MS
        )


Slicing = Callable[[str], Slice]


def measure(stall: str, load: str, rounds: int, seed: int = 1) -> StallFigures:
    """Alternating slices in random order, and their figures."""
    generator, server = cores()
    pinned = {"cores": [server]} if server is not None else {}
    # In the first third of the load, also where others use the cores.
    once = rounds * SLICE_S / 3 * {"open": RATE_PER_S}.get(load, 4 * RATE_PER_S)
    counts = {"{once}": str(round(once)), "{many}": str(MANY_REQUESTS[load])}
    options = [counts.get(word, word) for word in STALLS[stall]]
    order, slices = random.Random(seed), {name: list[Slice]() for name in SIDES}
    with Responder(**pinned) as steady, Responder(*options, **pinned) as stalling, ExitStack() as stack:
        take = (of_client if load == "client" else of_server)(
            stack, load, dict(zip(SIDES, (steady, stalling), strict=True)), generator
        )
        for number in range(rounds):
            for name in order.sample(SIDES, 2):
                slices[name].append(replace(take(name), round=number))
        log = [(begin / 1e9, end / 1e9) for begin, end in stalling.injected().stalls]
    return found(slices, log, load, float(options[1]) if stall.endswith("requests") else None)


def of_server(stack: ExitStack, load: str, servers: dict[str, Responder], core: int | None) -> Slicing:
    agent = stack.enter_context(Agent(cores=[core] if core is not None else None))
    for name, responder in servers.items():
        target = {"url": f"{responder.base_url}/", "expect": {"body": {"text": "alive\r\n"}}}
        agent.open(name, {"targets": [target], "connections": CONNECTIONS, "timeout_s": 10.0})
    work = SliceSpec(SLICE_S, DISCARD_S, rate_per_s=RATE_PER_S if load == "open" else None)
    if load == "open":
        # More connections than requests become due in the longest stall.
        for name, responder in servers.items():
            agent.open(
                name, {"targets": [{"url": f"{responder.base_url}/"}], "connections": 5000, "timeout_s": 10.0}
            )
    clock = time.time() - time.monotonic()

    def take(name: str) -> Slice:
        stolen_before, waited_before = stolen_s(), waited_s(servers[name].pid)
        one = slice_of(agent.slice(name, work), name)
        assert not one.failed, one.first_failure
        return replace(
            one,
            began_unix_s=one.began_unix_s - clock,
            subject_waited_s=waited_s(servers[name].pid) - waited_before,
            stolen_s=stolen_s() - stolen_before,
        )

    return take


def of_client(stack: ExitStack, _load: str, servers: dict[str, Responder], core: int | None) -> Slicing:
    client, job = CLIENTS["towline-sync"], Job("get", "sync", answer_text="alive\r\n")
    workers: dict[str, Worker] = {}
    for name, responder in servers.items():
        worker = workers[name] = Worker(Path(sys.executable), [core] if core is not None else None)
        stack.callback(worker.stop)
        opened = {"adapter": client.adapter, "packages": client.packages, "job": job.plain()}
        worker.call(30, op="open", library=client.library, bases=[responder.base_url], **opened)

    def take(name: str) -> Slice:
        pids = (workers[name].pid, servers[name].pid)
        stolen_before, waited_before = stolen_s(), sum(map(waited_s, pids))
        began = time.monotonic()
        plain = workers[name].call(30, op="slice", seconds=SLICE_S, discard_s=DISCARD_S, count=None)["found"]
        assert not plain["failed"], plain["first_failure"]
        return Slice(
            name,
            0,
            0,
            0,
            began + DISCARD_S,
            plain["measured_s"],
            plain["answered"],
            subject_waited_s=sum(map(waited_s, pids)) - waited_before,
            stolen_s=stolen_s() - stolen_before,
            histogram=plain["histogram"],
        )

    return take


def found(
    slices: dict[str, list[Slice]],
    log: Sequence[tuple[float, float]],
    load: str,
    every_requests: float | None,
) -> StallFigures:
    """`every_requests`: the requests after which a stall comes each time; otherwise its moment is in the log."""
    mine, others = slices["stalling"], slices["steady"]
    total_s = sum(one.measured_s for one in mine)
    counted = [end - begin for begin, end in log if any(_holds(one, begin) for one in mine)]
    stalled_s = sum(counted)
    if every_requests:
        assert log, "too few requests for a stall: more rounds are needed"
        # Exact, where a stall may begin at the edge of a slice: so many requests at the steady rate, then the stall.
        working_s = (
            every_requests * sum(one.measured_s for one in others) / sum(one.answered for one in others)
        )
        stall_s = fmean(end - begin for begin, end in log)
        stalled_s = total_s * stall_s / (working_s + stall_s)
        usual = 1.0
    else:
        # Two equal servers differ by the machine's noise: the usual pair has no stall.
        usual = math.exp(trimmed_mean({0: [_log_ratio(*pair) for pair in zip(mine, others, strict=True)]})[0])
    ratio = paired(mine, others, "per_s")
    p99 = merged(tuple(one.histogram for one in mine if one.histogram))
    assert p99 is not None
    return StallFigures(
        rate=math.exp(sum(ratio.by_restart.values()) / len(ratio.by_restart)),
        rate_truth=1.0 if load == "open" else usual * (1 - stalled_s / total_s),
        p99_ms=p99.at(0.99) / 1e6,
        p99_truth_ms=_open_p99_ms(mine, log) if load == "open" else _closed_p99_ms(mine, counted, load),
    )


def _log_ratio(one: Slice, other: Slice) -> float:
    return log_ratio(Part(one.answered, one.measured_s), Part(other.answered, other.measured_s))


def _holds(one: Slice, moment_s: float) -> bool:
    return one.began_unix_s <= moment_s <= one.began_unix_s + one.measured_s


def _open_p99_ms(slices: Sequence[Slice], log: Sequence[tuple[float, float]]) -> float | None:
    """A request that is due in a stall waits for its end, the others do not."""
    waits = sorted(wait for one in slices for wait in _waits(one, log))
    p99 = waits[math.ceil(0.99 * len(waits)) - 1] * 1e3
    return p99 or None


def _waits(one: Slice, log: Sequence[tuple[float, float]]) -> Iterator[float]:
    due = one.began_unix_s
    while due < one.began_unix_s + one.measured_s:
        yield next((end - due for begin, end in log if begin <= due < end), 0.0)
        due += 1 / RATE_PER_S


def _closed_p99_ms(slices: Sequence[Slice], counted: Sequence[float], load: str) -> float | None:
    """Each stall delays the requests in flight by its length. None: they are about 1 % of all, or less."""
    in_flight = 1 if load == "client" else CONNECTIONS
    slowest = math.floor(0.01 * sum(one.answered for one in slices)) // in_flight
    return sorted(counted, reverse=True)[slowest] * 1e3 if slowest < 0.8 * len(counted) else None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benches.stalls", description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=300, help="slices of each of the two (300: about 20 s)")
    parser.add_argument("--stalls", default=";".join(STALLS), help="; ".join(STALLS))
    parser.add_argument("--loads", default=",".join(LOADS), help=", ".join(LOADS))
    parser.add_argument("--no-save", dest="save", action="store_false", help="leave benches/results/ alone")
    options = parser.parse_args()
    entries: dict[str, Any] = {}
    print("\n".join(HEAD), flush=True)
    for stall in options.stalls.split(";"):
        for load in options.loads.split(","):
            one = measure(stall, load, options.rounds)
            entries[f"{stall}, {load}"] = {**vars(one), "right": one.is_right()}
            print(row(f"{stall}, {load}", entries[f"{stall}, {load}"]), flush=True)
    if options.save:
        report.save("stalls", entries)
        write_page()
    return 0 if all(one["right"] for one in entries.values()) else 1


HEAD = ("| stall, load | rate (truth) | p99 ms (truth) | right |", "|---|---|---|---|")


def row(name: str, entry: dict[str, Any]) -> str:
    truth = entry["p99_truth_ms"]
    p99 = f"{entry['p99_ms']:.2f} ({'-' if truth is None else f'{truth:.2f}'})"
    right = "yes" if entry["right"] else "no"
    return f"| {name} | {entry['rate']:.3f} ({entry['rate_truth']:.3f}) | {p99} | {right} |"


def write_page() -> None:
    entries = report.load("stalls")
    lines = [
        "# Servers that stand still",
        "",
        "`python -m benches.stalls`: rates are shares of that of a steady server of the same build, whose slices alternate with those "
        "of the server that stands still; in parentheses the truth from its log. `client`: the blocking client, one request at a time. "
        "Without a truth the p99 is not that of a stall.",
        "",
        *HEAD,
        *(row(name, entry) for name, entry in entries.items()),
        "",
    ]
    report.RESULTS.joinpath("stalls.md").write_text("\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
