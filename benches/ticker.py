"""Does the server starve other callbacks of its loop? `python -m benches.ticker [--servers towline,uvicorn]`.

A 10 ms ticker runs in the server's own event loop; its lateness is read while wrk saturates the server.
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

from benches import report
from benches.cells import CELLS, Cell
from benches.generator import measure, require_wrk
from benches.server import OURS, cores
from benches.subjects import NAMES, Subject, program

SERVERS = (OURS, "granian", "uvicorn", "hypercorn", "gunicorn-asgi")
APPS = {"hello": "ticker:hello", "fastapi": "ticker:fastapi"}
GOALS_MS = {"hello": 1.0, "fastapi": 2.0}
SETTLE = 0.5


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benches.ticker", description=__doc__.split("\n\n")[0])
    parser.add_argument("--servers", default=",".join(SERVERS), help=", ".join(NAMES))
    parser.add_argument("--apps", default=",".join(APPS), help=", ".join(APPS))
    parser.add_argument("--seconds", type=int, default=4, help="of saturation that count")
    parser.add_argument("--no-save", dest="save", action="store_false", help="leave benches/results/ alone")
    options = parser.parse_args()
    require_wrk()
    entries: dict[str, Any] = {}
    for name in options.servers.split(","):
        if program(name) is None:
            print(f"{name} is not installed and is left out", file=sys.stderr)
            continue
        for app in options.apps.split(","):
            entries[f"{name} {app}"] = measure_server(name, app, options.seconds)
            print(name, app, entries[f"{name} {app}"]["lateness"], flush=True)
    if options.save:
        report.save("ticker", entries)
        write_tables()
    return 0


def measure_server(name: str, app: str, seconds: int) -> dict[str, Any]:
    server_core, generator_core = cores()
    subject = Subject(name, APPS[app], "asgi", server_core)
    lateness: dict[str, Any] = {}
    try:
        subject.wait_ready()
        read_ticker(subject.port)
        for connections in (64, 512):
            cell = Cell("ticker", "", "", (), CELLS["asgi"].expected, connections=connections)
            lateness[str(connections)] = under_load(cell, subject, seconds, generator_core)
    except (OSError, RuntimeError, http.client.HTTPException) as error:
        lateness["failed"] = str(error)
    finally:
        subject.stop()
    return {
        "date": datetime.date.today().isoformat(),
        "machine": report.machine(),
        "versions": report.versions(),
        "command": subject.shown,
        "lateness": lateness,
    }


def under_load(cell: Cell, subject: Subject, seconds: int, core: int | None) -> dict[str, float]:
    """The ticks between two questions, both asked while wrk runs."""
    rate: list[float] = []
    load = threading.Thread(
        target=lambda: rate.append(measure(cell, subject, seconds + 2, core).requests_per_s), daemon=True
    )
    load.start()
    time.sleep(SETTLE)
    read_ticker(subject.port)
    time.sleep(seconds)
    found = read_ticker(subject.port)
    load.join()
    return {name: round(value, 2) for name, value in found.items()} | {
        "requests_per_s": rate[0] if rate else 0.0
    }


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
        cells = [
            f"{late[n]['p99']:.2f}" if n in late else str(late.get("failed", ""))[:30] for n in ("64", "512")
        ]
        rows.append([name, *cells, f"< {GOALS_MS[name.split()[1]]:g}"])
    head = ["server, application", "64 connections, ms", "512 connections, ms", "goal for towline"]
    text = "How late a 10 ms ticker in the server's loop is at p99 while wrk saturates the server.\n\n"
    report.write_markdown("ticker", "Lateness of other callbacks", [text, report.table(head, rows)])


if __name__ == "__main__":
    sys.exit(main())
