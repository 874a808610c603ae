"""Attacks on HTTP/3 servers: `python -m benches.http3_attacks [--servers towline,nginx,caddy,hypercorn] [--only NAME...]`.

Each attack of tests/wire/http3_attacks.py runs against a fresh process of each server while another client sends 300
requests per second (open loop). The server has the first core; the other client and, with what that leaves, the
attacker share the last one. Slices with and without the attack alternate, and so do the servers; without it, a process
of the same priority computes, so that the other client's core is as busy. The smaller p99 of each kind counts: other
load on the machine can only increase it. An attack whose connection the server has ended begins again after 0.1 s.
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
from contextlib import ExitStack, contextmanager
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
from tests.wire.http3_attacks import ATTACKS, BEFORE, Outcome, attack, first_packets, handshake_flood

APP = "asgi_suite:app"
SERVERS = "towline,nginx,caddy,hypercorn"
RATE_PER_S, CONNECTIONS = 300.0, 4
"""Of the other client; what every server can do."""
PAUSE_S = 0.1
"""Pause before an attack begins again; without it, the measurement would show the handshakes."""
LEAD_S = 0.15
"""Time that the attack runs before the slice, and after it."""
WAIT_S = 30.0
KINDS = ("without", "with")
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
    parser.add_argument("--only", nargs="+", choices=ATTACKS, metavar="ATTACK", default=list(ATTACKS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.8, help="of each slice")
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
        for name in options.only:
            found = measured(name, servers, tls, attacker, (options.rounds, options.seconds))
            print(name, *(f"{server}: {line(one)}" for server, one in found.items()), sep="\n  ", flush=True)
            if options.save:
                report.save("http3_attacks", {name: {"servers": found} | conditions})
                write_tables()
    return 0


def shown_version(server: Server) -> str:
    return " ".join(versions(server).values())


# --- one attack ---------------------------------------------------------------------------------------------


@dataclass
class Subject:
    """A server under one attack, and its figures. Bytes are those of all its processes."""

    process: Process
    p99_us: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    cpu_share: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    failed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    outcomes: list[Outcome] = field(default_factory=list)
    before_bytes: int = 0

    def figures(self) -> dict[str, Any]:
        least = {kind: min(found) for kind, found in self.p99_us.items()}
        seconds = sum(one.seconds for one in self.outcomes) or 1.0
        ends = Counter(shown_end(one.closed) for one in self.outcomes)
        frames = sorted(one.frames for one in self.outcomes if one.closed is not None)
        return {
            "command": " ".join(self.process.command),
            "p99_us": self.p99_us,
            "ratio": round(least["with"] / least["without"], 2),
            "cpu_share": self.cpu_share,
            "cpu_more": round(_median(self.cpu_share["with"]) - _median(self.cpu_share["without"]), 3),
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


def measured(
    name: str,
    servers: Sequence[Server],
    tls: tuple[Path, Path],
    attacker: Attacker,
    design: tuple[int, float],
) -> dict[str, Any]:
    """Figures by server. `design`: rounds, and seconds of each slice."""
    rounds, seconds = design
    chance = random.Random(name)
    with ExitStack() as stack:
        agent = stack.enter_context(Agent(Cores.divided().driver))
        subjects: dict[str, Subject] = {}
        found: dict[str, Any] = {}
        for server in servers:
            try:
                process = stack.enter_context(running(server, APP, http3=tls))
            except SubjectFailed as error:
                found[server.name] = {"failure": str(error)}
                continue
            subjects[server.name] = Subject(process)
            target = {"url": f"{process.base_url}/", "method": "GET", "expect": {"status": 200}}
            session = {
                "targets": [target],
                "connections": CONNECTIONS,
                "protocol": "h3",
                "trust": "any",
                "timeout_s": 2.0,
            }
            agent.open(server.name, session)
            agent.slice(server.name, SliceSpec(seconds, rate_per_s=RATE_PER_S))
            process.reset_peaks()
            subjects[server.name].before_bytes = process.usage().rss_bytes
        for number in range(rounds):
            for one in chance.sample(list(subjects), len(subjects)):
                for kind in KINDS if number % 2 else KINDS[::-1]:
                    attacked = name if kind == "with" else None
                    take_slice(subjects[one], (agent, one), attacker, attacked, seconds)
        return found | {one: subject.figures() for one, subject in subjects.items()}


def take_slice(
    subject: Subject, session: tuple[Agent, str], attacker: Attacker, name: str | None, seconds: float
) -> None:
    """Requests of the other client, while `name` is done to the server; None: nothing."""
    agent, kind = session[0], "without" if name is None else "with"
    with attacker.at(name, subject.process.port, seconds + 2 * LEAD_S) as outcomes:
        time.sleep(LEAD_S)
        before = subject.process.usage()
        found: list[float] = []
        try:
            seen = agent.slice(session[1], SliceSpec(seconds, rate_per_s=RATE_PER_S))
            subject.failed[kind] += sum(seen["errors"].values())
            found = [one["us"] for one in seen["response"]["percentiles"] if one["percent"] == 99]
        except AgentFailed:
            subject.failed[kind] += 1
        used = subject.process.usage().since(before)
    subject.cpu_share[kind].append(round(used.cpu_s / used.at_s, 4))
    # Without any response: at least the slice.
    subject.p99_us[kind].append(found[0] if found else seconds * 1e6)
    subject.outcomes += outcomes


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


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
    """A process that runs when its core has nothing else to do, and attacks or computes."""

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

    @contextmanager
    def at(self, name: str | None, port: int, seconds: float) -> Any:
        """Context during which an attack is under way, for so many seconds from its begin; the list is its outcomes then."""
        outcomes: list[Outcome] = []
        self._link.send((name, port, seconds))
        self._receive()
        yield outcomes
        outcomes += self._receive()

    def _receive(self) -> Any:
        if not self._link.poll(WAIT_S):
            raise TimeoutError("the attacker does not respond")
        found = self._link.recv()
        if isinstance(found, BaseException):
            raise found
        return found


def _attack(link: Connection) -> None:
    # Any other thread of its core goes first, at once.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    # The library reports each connection that a server ends.
    logging.disable(logging.ERROR)
    if core := Cores.divided().driver:
        os.sched_setaffinity(0, core)
    while True:
        name, port, seconds = link.recv()
        packets = first_packets() if name == "handshake_flood" else []
        link.send("began")
        until = time.monotonic() + seconds
        outcomes: list[Outcome] = []
        try:
            while (left := until - time.monotonic()) > 0:
                if name is None:
                    sum(range(1000))
                elif name == "handshake_flood":
                    outcomes.append(handshake_flood(("127.0.0.1", port), left, packets))
                else:
                    outcomes.append(attack(name, ("127.0.0.1", port), left))
                    time.sleep(0 if name in BEFORE else PAUSE_S)
            link.send(outcomes)
        except Exception as error:
            link.send(error)


# --- tables -------------------------------------------------------------------------------------------------


def line(one: dict[str, Any]) -> str:
    if "failure" in one:
        return str(one["failure"])
    return (
        f"p99 x {one['ratio']:.2f} ({min(one['p99_us']['without']):.0f} us), +{one['grown_mib']:.1f} MiB, "
        f"+{one['cpu_more']:.0%} CPU, {one['frames_per_s']:,}/s, {end(one)}, {sum(one['failed'].values())} failed"
    )


def end(one: dict[str, Any]) -> str:
    """How most attacks ended."""
    most = next(iter(one["ends"]), "borne")
    if one["frames_until_end"] is None or most == "borne":
        return str(most)
    return f"{most} after {one['frames_until_end']:,}"


def write_tables() -> None:
    found = {name: entry for name, entry in report.load("http3_attacks").items() if name in ATTACKS}
    names = [name for name in ATTACKS if name in found]
    servers = list(dict.fromkeys(server for name in names for server in found[name]["servers"]))
    parts = []
    for title, cell in {
        "p99 of another client with the attack, as a multiple of that without (microseconds without)": lambda one: (
            f"{one['ratio']:.2f} ({min(one['p99_us']['without']):.0f})"
            + (f", {one['failed']['with']} failed" if one["failed"]["with"] else "")
        ),
        "Growth of the server's resident memory, MiB": lambda one: f"{one['grown_mib']:.1f}",
        "CPU time of the server in addition, % of a core": lambda one: f"{100 * one['cpu_more']:.0f}",
        "End of the attack's connection, and the units sent until then (median); units per second": lambda one: (
            f"{end(one)}; {one['frames_per_s']:,}/s"
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
