"""Effect of one HTTP/2 client on others: `python -m benches.http2 [slow] [attacks] [--only NAME...]`.

`slow`: request rate of fast streams on a connection, alone and together with slow streams: responses that are read at
1 KiB every 100 ms, uploads that the application does not read. Slices of all three alternate.
`attacks`: CPU time of the server for each connection and for each frame of an attack of tests/wire, in five runs. Nothing else uses
the server meanwhile. After each run another client makes ten requests, which must succeed.
"""

from __future__ import annotations

import argparse
import datetime
import os
import random
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from towline.bench.runner.agent import Agent
from towline.bench.runner.design import Cores
from towline.bench.runner.protocol import SliceSpec
from towline.bench.subjects import Process
from towline.config import ServerConfig

from benches import report
from benches.bench_servers import OURS, chosen, running
from tests.wire.http2_attacks import (
    ATTACKS,
    DATA,
    END_HEADERS,
    END_STREAM,
    GET,
    GOAWAY,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    Outcome,
    attack,
    frame,
    settings,
    window_update,
)

APP = "asgi_suite:app"
# :scheme http, :authority x; the method from the static table, the path as a literal (RFC 7541 A, 6.2.2).
DOWNLOAD = b"\x82\x86\x04\x0d/download/100" + b"\x01\x01x"
WAIT = b"\x83\x86\x04\x05/wait" + b"\x01\x01x"
WINDOW = ServerConfig("").http2_initial_stream_window_size
SLOW_STREAMS, FAST_STREAMS = 16, 16
CREDIT_BYTES, CREDIT_EVERY_S = 1024, 0.1
PROBE_S, PROBE_RATE_PER_S = 0.05, 200.0
SETTLE_S = 0.05
"""Time in which the server handles what has arrived."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benches.http2", description=__doc__.split("\n\n")[0])
    parser.add_argument("questions", nargs="*", default=["slow", "attacks"], help="slow, attacks (both)")
    parser.add_argument("--only", nargs="+", choices=ATTACKS, metavar="ATTACK", default=list(ATTACKS))
    parser.add_argument("--rounds", type=int, default=7, help="slices of each kind (7)")
    parser.add_argument("--runs", type=int, default=5, help="of each attack (5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each slice")
    parser.add_argument("--no-save", dest="save", action="store_false", help="leave benches/results/ alone")
    options = parser.parse_args()
    (server,) = chosen(OURS)
    entries: dict[str, Any] = {}
    with running(server, APP) as subject:
        if driver := Cores.divided().driver:
            os.sched_setaffinity(0, driver)
        conditions = {
            "date": datetime.date.today().isoformat(),
            "machine": report.machine(),
            "versions": report.versions(),
            "command": " ".join(subject.command),
        }
        if "slow" in options.questions:
            entries["slow"] = slow(subject, options.rounds, options.seconds) | conditions
        if "attacks" in options.questions:
            for name in options.only:
                entries[name] = attacked(subject, name, options.runs, options.seconds) | conditions
                print(name, *row(entries[name]), sep=" | ", flush=True)
    if options.save:
        report.save("http2", entries)
        write_tables()
    return 0


class FrameConnection:
    """A connection that writes its frames itself, with fast and slow streams."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The connection's window must not limit the measurement.
        self.sock.sendall(PREFACE + settings() + frame(SETTINGS, 1) + window_update(0, 2**31 - 1 - 65535))
        self.next, self.received, self.slow = 1, b"", list[int]()
        self.credited_at = time.monotonic()

    def id(self) -> int:
        self.next += 2
        return self.next - 2

    def unread_responses(self) -> None:
        self.slow = [self.id() for _ in range(SLOW_STREAMS)]
        heads = [frame(HEADERS, END_HEADERS | END_STREAM, one, DOWNLOAD) for one in self.slow]
        self.sock.sendall(b"".join(heads))

    def unread_uploads(self) -> None:
        for _ in range(SLOW_STREAMS):
            stream = self.id()
            pieces = [frame(DATA, 0, stream, bytes(16384)) for _ in range(WINDOW // 16384)]
            self.sock.sendall(frame(HEADERS, END_HEADERS, stream, WAIT) + b"".join(pieces))

    def exchange(self) -> None:
        """`FAST_STREAMS` concurrent requests and their responses."""
        first = self.next
        heads = [frame(HEADERS, END_HEADERS | END_STREAM, self.id(), GET) for _ in range(FAST_STREAMS)]
        if self.slow and time.monotonic() - self.credited_at > CREDIT_EVERY_S:
            self.credited_at = time.monotonic()
            heads += [window_update(one, CREDIT_BYTES) for one in self.slow]
        self.sock.sendall(b"".join(heads))
        missing = FAST_STREAMS
        while missing:
            self.received += self.sock.recv(1 << 18)
            missing -= self.ended_since(first)

    def ended_since(self, first: int) -> int:
        ended, at, data = 0, 0, self.received
        while len(data) - at >= 9:
            end = at + 9 + int.from_bytes(data[at : at + 3], "big")
            if end > len(data):
                break
            kind, flags, stream = struct.unpack_from(">BBI", data, at + 3)
            if kind in (RST_STREAM, GOAWAY):
                raise ValueError(f"the server reset stream {stream} (frame of type {kind})")
            ended += kind in (DATA, HEADERS) and flags & END_STREAM and stream >= first
            at = end
        self.received = data[at:]
        return ended

    def rate(self, seconds: float) -> float:
        started, count = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - started) < seconds:
            self.exchange()
            count += FAST_STREAMS
        return count / elapsed


def slow(subject: Process, rounds: int, seconds: float) -> dict[str, Any]:
    kinds: dict[str, Callable[[FrameConnection], None]] = {
        "alone": lambda line: None,
        "unread responses": FrameConnection.unread_responses,
        "unread uploads": FrameConnection.unread_uploads,
    }
    lines = {kind: FrameConnection(subject.port) for kind in kinds}
    for line in lines.values():
        line.rate(seconds)
    grown: dict[str, float] = {}
    for kind, make in kinds.items():
        before = subject.usage().rss_bytes
        make(lines[kind])
        lines[kind].rate(seconds)
        grown[kind] = round((subject.usage().rss_bytes - before) / (1 << 20), 2)
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind in random.sample(list(kinds), len(kinds)):
            rates[kind].append(round(lines[kind].rate(seconds), 1))
    ratios = {kind: report.ratio(rates[kind], rates["alone"]) for kind in kinds if kind != "alone"}
    for kind, ratio in ratios.items():
        print(f"{kind}: {ratio}, {grown[kind]} MiB", flush=True)
    return {"streams": SLOW_STREAMS, "rates": rates, "ratios": ratios, "grown_mib": grown}


def attacked(subject: Process, name: str, runs: int, seconds: float) -> dict[str, Any]:
    found: list[dict[str, float]] = []
    ends: Counter[str] = Counter()
    with Agent() as agent:  # on our core
        target = {"url": f"{subject.base_url}/", "method": "GET", "expect": {"status": 200}}
        agent.open(name, {"targets": [target], "connections": 1, "protocol": "h2"})
        probe(agent, name)
        before_bytes = subject.usage().rss_bytes
        for _ in range(runs):
            before, until = subject.usage(), time.monotonic() + seconds
            outcomes = []
            while time.monotonic() < until:
                outcomes.append(attack(("127.0.0.1", subject.port), name))
            time.sleep(SETTLE_S)
            used = subject.usage().since(before)
            frames = sum(one.frames for one in outcomes)
            found.append({"cpu_s": round(used.cpu_s, 6), "frames": frames, "connections": len(outcomes)})
            ends.update(shown_end(one) for one in outcomes)
            probe(agent, name)
        grown_mib = round((subject.usage().rss_bytes - before_bytes) / (1 << 20), 1)
    return {
        "runs": found,
        "cpu_us_per_frame": report.spread([1e6 * one["cpu_s"] / one["frames"] for one in found]),
        "cpu_ms_per_connection": report.spread([1e3 * one["cpu_s"] / one["connections"] for one in found]),
        "frames_per_connection": round(
            sum(one["frames"] for one in found) / sum(one["connections"] for one in found)
        ),
        "grown_mib": grown_mib,
        "ends": dict(ends.most_common()),
    }


def shown_end(outcome: Outcome) -> str:
    if outcome.error is not None:
        return f"GOAWAY {outcome.error}"
    return "closed" if outcome.is_cut else "borne"


def probe(agent: Agent, session: str) -> None:
    """Some requests of another client."""
    seen = agent.slice(session, SliceSpec(PROBE_S, rate_per_s=PROBE_RATE_PER_S))
    if any(seen["errors"].values()):
        raise ValueError(f"the other client failed: {seen['first_failure']}")


def row(entry: dict[str, Any]) -> list[str]:
    return [
        report.shown(entry["cpu_us_per_frame"]),
        report.shown(entry["cpu_ms_per_connection"]),
        f"{entry['frames_per_connection']:,}",
        f"{entry['grown_mib']:.1f}",
        next(iter(entry["ends"])),
    ]


def write_tables() -> None:
    found = report.load("http2")
    parts = []
    if "slow" in found:
        rows = [
            [
                kind,
                f"{ratio['ratio']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})",
                f"{found['slow']['grown_mib'][kind]:.1f}",
            ]
            for kind, ratio in found["slow"]["ratios"].items()
        ]
        head = [f"{SLOW_STREAMS} slow streams", "rate of the fast streams, ratio (goal > 0.9)", "memory, MiB"]
        parts.append(report.table(head, rows))
    rows = [[name, *row(found[name])] for name in ATTACKS if "runs" in found.get(name, {})]
    head = ["attack", "CPU us/frame: median (least to most)", "CPU ms/connection", "frames/connection"]
    parts.append(report.table([*head, "memory, MiB", "most connections"], rows))
    about = {report.conditions(entry): None for entry in found.values()}
    parts.append("\n".join(about) + "\n")
    report.write_markdown("http2", "Effect of one HTTP/2 client on others", parts, "python -m benches.http2")


if __name__ == "__main__":
    sys.exit(main())
