"""Attacks on HTTP/3 servers: `python -m benches.http3_attacks [--servers towline,nginx,caddy] [--only NAME...]`.

Each attack of tests/wire/http3_attacks.py runs five times against a process of each server, which has done nothing else. The
figures are the server's CPU time, per connection of the attacker and per unit that it sent, and the growth of its memory.
Nothing else uses the server meanwhile, so other work on the machine hardly changes them. Two rows are no attacks and show
what honest clients cost: `connections` (handshake and end) and `requests`. The server has the first core, the attacker the
last one. An attack whose connection the server has ended begins again after 0.1 s. After each run another client makes ten
requests, of which the failed ones are counted; a server that answers none is not attacked again. All of it takes about nine minutes; a line shows the progress.
"""

from __future__ import annotations

import argparse
import datetime
import logging
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from towline.bench.runner.agent import Agent, AgentFailed
from towline.bench.runner.design import Cores
from towline.bench.runner.protocol import SliceSpec
from towline.bench.subjects import Process, Server, SubjectFailed, make_certificate, versions

from benches import report
from benches.bench_servers import chosen, running
from tests.wire.http3_attacks import (
    ATTACKS,
    BEFORE,
    HONEST,
    Outcome,
    attack,
    first_packets,
    handshake_flood,
)

APP = "asgi_suite:app"
SERVERS = "towline,nginx,caddy"
"""Hypercorn is still busy with some attacks long after their end."""
PROBE_S, PROBE_RATE_PER_S = 0.05, 200.0
"""Requests of another client after each run: the server still serves."""
PAUSE_S = 0.1
"""Pause before an attack begins again; without it, the measurement would show the handshakes."""
SETTLE_S = 0.05
"""Time in which the server handles what has arrived."""
WAIT_S = 30.0
ROWS = (*HONEST, *ATTACKS)
ERRORS = {
    **{0x100 + number: f"H3_{name}" for number, name in enumerate(
        ("NO_ERROR", "GENERAL_PROTOCOL_ERROR", "INTERNAL_ERROR", "STREAM_CREATION_ERROR", "CLOSED_CRITICAL_STREAM",
         "FRAME_UNEXPECTED", "FRAME_ERROR", "EXCESSIVE_LOAD", "ID_ERROR", "SETTINGS_ERROR", "MISSING_SETTINGS",
         "REQUEST_REJECTED", "REQUEST_CANCELLED", "REQUEST_INCOMPLETE", "MESSAGE_ERROR")
    )},
    **{0x200 + number: f"QPACK_{name}" for number, name in enumerate(
        ("DECOMPRESSION_FAILED", "ENCODER_STREAM_ERROR", "DECODER_STREAM_ERROR")
    )},
    **dict(enumerate((
        "NO_ERROR", "INTERNAL_ERROR", "CONNECTION_REFUSED", "FLOW_CONTROL_ERROR", "STREAM_LIMIT_ERROR", "STREAM_STATE_ERROR",
        "FINAL_SIZE_ERROR", "FRAME_ENCODING_ERROR", "TRANSPORT_PARAMETER_ERROR", "CONNECTION_ID_LIMIT_ERROR",
        "PROTOCOL_VIOLATION", "INVALID_TOKEN", "APPLICATION_ERROR", "CRYPTO_BUFFER_EXCEEDED", "KEY_UPDATE_ERROR",
        "AEAD_LIMIT_REACHED", "NO_VIABLE_PATH",
    ))),
}  # fmt: skip
"""Error codes of HTTP/3 (RFC 9114 8.1), QPACK (RFC 9204 8.3) and QUIC (RFC 9000 20.1)."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benches.http3_attacks", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("--servers", default=SERVERS, help="comma-separated names")
    parser.add_argument("--only", nargs="+", choices=ROWS, metavar="ATTACK", default=list(ROWS))
    parser.add_argument("--runs", type=int, default=5, help="of each attack on each server (5)")
    parser.add_argument("--seconds", type=float, default=0.7, help="of each run (0.7)")
    parser.add_argument("--no-save", dest="save", action="store_false", help="leave benches/results/ alone")
    options = parser.parse_args()
    servers = list(chosen(options.servers))
    conditions = {
        "date": datetime.date.today().isoformat(),
        "machine": report.machine(),
        "versions": report.versions()
        | {server.name: shown_version(server) for server in servers if shown_version(server)},
    }
    with tempfile.TemporaryDirectory() as folder, Attacker() as attacker:
        tls = make_certificate(Path(folder)).tls
        progress = Progress(len(options.only) * len(servers) * options.runs)
        design = Design(tls, options.runs, options.seconds, progress)
        for name in options.only:
            found = measured(name, servers, attacker, design)
            progress.clear()
            print(name, *(f"{server}: {line(one)}" for server, one in found.items()), sep="\n  ", flush=True)
            if options.save:
                report.save("http3_attacks", {name: {"servers": found} | conditions})
                write_tables()
    return 0


def shown_version(server: Server) -> str:
    return " ".join(versions(server).values())


class Progress:
    """A line on the terminal: how far the measurement is, and how long it still takes."""

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0
        self._began = time.monotonic()

    def step(self, text: str, count: int = 1) -> None:
        self._done += count
        left_s = (time.monotonic() - self._began) / self._done * (self._total - self._done)
        self._show(f"run {self._done} of {self._total}: {text}, about {left_s / 60:.1f} min left")

    def clear(self) -> None:
        self._show("")

    def _show(self, text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


# --- one attack ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Design:
    tls: tuple[Path, Path]
    runs: int
    seconds: float
    progress: Progress


@dataclass
class Subject:
    """A server under one attack, and its figures. CPU time and bytes are those of all its processes."""

    process: Process
    runs: list[dict[str, float]] = field(default_factory=list)
    failed: int = 0
    is_stuck: bool = False
    """No request after a run was answered: further runs would measure nothing."""
    outcomes: list[Outcome] = field(default_factory=list)
    before_bytes: int = 0

    def figures(self) -> dict[str, Any]:
        seconds = sum(one.seconds for one in self.outcomes) or 1.0
        ends = Counter(shown_end(one.closed) for one in self.outcomes)
        frames = sorted(one.frames for one in self.outcomes if one.closed is not None)
        return {
            "command": " ".join(self.process.command),
            "runs": self.runs,
            "cpu_us_per_unit": report.spread(
                [1e6 * one["cpu_s"] / one["units"] for one in self.runs if one["units"]]
            ),
            "cpu_ms_per_connection": report.spread(
                [1e3 * one["cpu_s"] / one["connections"] for one in self.runs if one["connections"]]
            ),
            "grown_mib": round((self.process.peaks().rss_bytes - self.before_bytes) / (1 << 20), 1),
            "failed": self.failed,
            "ends": dict(ends.most_common()),
            "frames_until_end": frames[len(frames) // 2] if frames else None,
            "frames_per_s": round(sum(one.frames for one in self.outcomes) / seconds),
            "amplification": round(
                sum(one.received_bytes for one in self.outcomes)
                / (sum(one.sent_bytes for one in self.outcomes) or 1),
                2,
            ),
        }


def measured(name: str, servers: Sequence[Server], attacker: Attacker, design: Design) -> dict[str, Any]:
    """Figures by server."""
    chance = random.Random(name)
    with ExitStack() as stack:
        agent = stack.enter_context(Agent(Cores.divided().driver))
        subjects: dict[str, Subject] = {}
        found: dict[str, Any] = {}
        for server in servers:
            try:
                process = stack.enter_context(running(server, APP, http3=design.tls))
            except SubjectFailed as error:
                found[server.name] = {"failure": str(error)}
                design.progress.step(f"{name}, {server.name} does not start", design.runs)
                continue
            subjects[server.name] = Subject(process)
            target = {"url": f"{process.base_url}/", "method": "GET", "expect": {"status": 200}}
            session = {
                "targets": [target],
                "connections": 1,
                "protocol": "h3",
                "trust": "any",
                "timeout_s": 1.0,
            }
            agent.open(server.name, session)
            probe(subjects[server.name], (agent, server.name))
            process.reset_peaks()
            subjects[server.name].before_bytes = process.usage().rss_bytes
        for _ in range(design.runs):
            for one in chance.sample(list(subjects), len(subjects)):
                if not subjects[one].is_stuck:
                    take_run(subjects[one], attacker, name, design.seconds)
                    probe(subjects[one], (agent, one))
                design.progress.step(f"{name}, {one}")
        return found | {one: subject.figures() for one, subject in subjects.items()}


def take_run(subject: Subject, attacker: Attacker, name: str, seconds: float) -> None:
    before = subject.process.usage()
    outcomes = attacker.run(name, subject.process.port, seconds)
    time.sleep(SETTLE_S)
    used = subject.process.usage().since(before)
    subject.runs.append(
        {
            "cpu_s": round(used.cpu_s, 6),
            "units": sum(one.frames for one in outcomes),
            "connections": 0 if name in BEFORE else len(outcomes),
            "seconds": round(used.at_s, 3),
        }
    )
    subject.outcomes += outcomes


def probe(subject: Subject, session: tuple[Agent, str]) -> None:
    """Some requests of another client."""
    try:
        seen = session[0].slice(session[1], SliceSpec(PROBE_S, rate_per_s=PROBE_RATE_PER_S))
        failed = sum(seen["errors"].values())
        subject.is_stuck = failed >= PROBE_S * PROBE_RATE_PER_S
    except AgentFailed:
        failed, subject.is_stuck = 1, True
    subject.failed += failed


def shown_end(closed: str | None) -> str:
    """`0x107 too many` as `H3_EXCESSIVE_LOAD`."""
    if closed is None:
        return "borne"
    code = closed.split(" ")[0]
    if not code.startswith("0x"):
        return closed
    return ERRORS.get(int(code, 16), code)


# --- the attacker -------------------------------------------------------------------------------------------


class Attacker:
    """A process of its own, on the driver's core."""

    def __enter__(self) -> Attacker:
        self._link, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("fork").Process(
            target=_attack, args=(theirs,), daemon=True
        )
        self._process.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.join()

    def run(self, name: str, port: int, seconds: float) -> list[Outcome]:
        """Attack for some seconds, on one connection after the other."""
        self._link.send((name, port, seconds))
        if not self._link.poll(WAIT_S):
            raise TimeoutError("the attacker does not respond")
        found = self._link.recv()
        if isinstance(found, BaseException):
            raise found
        return list(found)


def _attack(link: Connection) -> None:
    # The library reports each connection that a server ends.
    logging.disable(logging.ERROR)
    if core := Cores.divided().driver:
        os.sched_setaffinity(0, core)
    while True:
        name, port, seconds = link.recv()
        packets = first_packets() if name == "handshake_flood" else []
        until = time.monotonic() + seconds
        outcomes: list[Outcome] = []
        try:
            while (left := until - time.monotonic()) > 0:
                if name == "handshake_flood":
                    outcomes.append(handshake_flood(("127.0.0.1", port), left, packets))
                else:
                    outcomes.append(attack(name, ("127.0.0.1", port), left))
                    time.sleep(PAUSE_S if name in ATTACKS and name not in BEFORE else 0)
            link.send(outcomes)
        except Exception as error:
            link.send(error)


# --- tables -------------------------------------------------------------------------------------------------


def line(one: dict[str, Any]) -> str:
    if "failure" in one:
        return str(one["failure"])
    return (
        f"{report.shown(one['cpu_us_per_unit'])} us/unit, {report.shown(one['cpu_ms_per_connection'])} ms/connection, "
        f"+{one['grown_mib']:.1f} MiB, {one['frames_per_s']:,}/s, {end(one)}, {one['failed']} failed"
    )


def end(one: dict[str, Any]) -> str:
    """How most attacks ended."""
    most = next(iter(one["ends"]), "borne")
    if one["frames_until_end"] is None or most == "borne":
        return str(most)
    return f"{most} after {one['frames_until_end']:,}"


def write_tables() -> None:
    found = {
        name: entry
        for name, entry in report.load("http3_attacks").items()
        if name in ROWS and all("runs" in one or "failure" in one for one in entry["servers"].values())
    }
    names = [name for name in ROWS if name in found]
    servers = list(dict.fromkeys(server for name in names for server in found[name]["servers"]))
    parts = []
    for title, cell in {
        "CPU time of the server for each unit that the attacker sent, microseconds: median of the runs (least to most)": lambda one: (
            report.shown(one["cpu_us_per_unit"])
        ),
        "CPU time of the server for each connection of the attacker, milliseconds": lambda one: report.shown(
            one["cpu_ms_per_connection"]
        ),
        "Growth of the server's resident memory, MiB": lambda one: f"{one['grown_mib']:.1f}",
        "End of the attack's connection, and the units sent until then (median); units per second": lambda one: (
            f"{end(one)}; {one['frames_per_s']:,}/s"
            + (f"; {one['failed']} requests of another client failed" if one["failed"] else "")
        ),
    }.items():
        rows = [
            [
                name,
                *(
                    cell(one) if one and "failure" not in one else "failed" if one else ""
                    for one in (found[name]["servers"].get(server) for server in servers)
                ),
            ]
            for name in names
        ]
        parts.append(f"## {title}\n\n" + report.table(["attack", *servers], rows))
    about = {report.conditions(entry): None for entry in found.values()}
    programs = {
        f"{server} {entry['versions'][server]}": None
        for entry in found.values()
        for server in servers
        if server in entry["versions"]
    }
    parts.append("\n".join(about) + "\n\n" + ", ".join(programs) + "\n")
    command = "python -m benches.http3_attacks"
    report.write_markdown("http3_attacks", "Attacks on HTTP/3 servers", parts, command)


if __name__ == "__main__":
    sys.exit(main())
