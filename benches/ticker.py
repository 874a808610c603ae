"""Lateness of other callbacks in the server's event loop: `python -m benches.ticker [--servers towline,granian]`.

A 10 ms ticker runs in the server's own event loop; its lateness is measured while the generator saturates the server.
"""

from __future__ import annotations

import argparse
import datetime
import http.client
import json
import sys
import threading
import time
from typing import Any

from towline.bench.runner.agent import Agent, AgentFailed
from towline.bench.runner.design import Cores
from towline.bench.runner.protocol import SliceSpec
from towline.bench.subjects import Process, Server

from benches import report
from benches.bench_servers import ASGI_SERVERS, SubjectFailed, chosen, running

APPS = {"hello": "ticker:hello", "fastapi": "ticker:fastapi"}
GOALS_MS = {"hello": 1.0, "fastapi": 2.0}
SETTLE = 0.5


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benches.ticker", description=__doc__.split("\n\n")[0])
    parser.add_argument("--servers", default=",".join(ASGI_SERVERS), help="comma-separated names")
    parser.add_argument("--apps", default=",".join(APPS), help=", ".join(APPS))
    parser.add_argument("--seconds", type=int, default=4, help="measured seconds of saturation")
    parser.add_argument("--no-save", dest="save", action="store_false", help="leave benches/results/ alone")
    options = parser.parse_args()
    entries: dict[str, Any] = {}
    for server in chosen(options.servers):
        for app in options.apps.split(","):
            name = f"{server.name} {app}"
            entries[name] = measure_server(server, APPS[app], options.seconds)
            print(name, entries[name]["lateness"], flush=True)
    if options.save:
        report.save("ticker", entries)
        write_tables()
    return 0


def measure_server(server: Server, app: str, seconds: int) -> dict[str, Any]:
    lateness: dict[str, Any] = {}
    command = ""
    try:
        with running(server, app) as subject, Agent(Cores.divided().driver) as agent:
            command = " ".join(subject.command)
            read_ticker(subject.port)
            for connections in (64, 512):
                lateness[str(connections)] = under_load(subject, agent, connections, seconds)
    except (OSError, SubjectFailed, AgentFailed, http.client.HTTPException) as error:
        lateness["failed"] = str(error)
    return {
        "date": datetime.date.today().isoformat(),
        "machine": report.machine(),
        "versions": report.versions(),
        "command": command,
        "lateness": lateness,
    }


def under_load(subject: Process, agent: Agent, connections: int, seconds: int) -> dict[str, float]:
    """Lateness of the ticks between two reads, both under load."""
    session = f"{connections}"
    target = {"url": f"{subject.base_url}/", "method": "GET", "expect": {"status": 200}}
    agent.open(session, {"targets": [target], "connections": connections})
    seen: list[dict[str, Any]] = []
    load = threading.Thread(
        target=lambda: seen.append(agent.slice(session, SliceSpec(seconds + 2 * SETTLE))), daemon=True
    )
    load.start()
    time.sleep(SETTLE)
    read_ticker(subject.port)
    time.sleep(seconds)
    found = read_ticker(subject.port)
    load.join()
    agent.close(session)
    if not seen:
        raise AgentFailed("the generator ended")
    rate = seen[0]["answered"] / seen[0]["measured_s"]
    return {name: round(value, 2) for name, value in found.items()} | {"requests_per_s": round(rate, 1)}


def read_ticker(port: int) -> dict[str, float]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", "/ticker")
        found: dict[str, float] = json.loads(connection.getresponse().read())
        return found
    finally:
        connection.close()


def write_tables() -> None:
    rows = []
    for name, entry in report.load("ticker").items():
        late = entry["lateness"]
        experiments = [
            f"{late[n]['p99']:.2f}" if n in late else str(late.get("failed", ""))[:30] for n in ("64", "512")
        ]
        rows.append([name, *experiments, f"< {GOALS_MS[name.split()[1]]:g}"])
    head = ["server, application", "64 connections, ms", "512 connections, ms", "goal for towline"]
    text = "p99 lateness of a 10 ms ticker in the server's loop while the generator saturates the server.\n\n"
    parts = [text, report.table(head, rows)]
    report.write_markdown("ticker", "Lateness of other callbacks", parts, "python -m benches.ticker")


if __name__ == "__main__":
    sys.exit(main())
