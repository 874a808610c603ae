"""Memory of a hello server with one worker: `python -m benches.hello_memory [--servers towline,weft] [--no-save]`.

What is counted: every process that the command has started, supervisor included, one second after 2,000 requests over one
connection. `PSS` is the sum of `Pss` in /proc/PID/smaps_rollup; a page that other programs on the machine have mapped too,
such as those of libpython, counts in part, so servers are compared within one run only. `own pages` is the number of distinct
pages of all processes together, each counted once, whatever else runs: what the server takes on a machine of its own; only root
can read it. Servers start one after the other, in several rounds; figures are medians.

Towline's modules are compiled first, as an installation from a wheel does. Source that is compiled at each start takes more.
"""

from __future__ import annotations

import argparse
import compileall
import http.client
import statistics
import struct
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import towline

from benches import report
from benches.bench_servers import OURS, SubjectFailed, chosen, running
from benches.memory import APP
from benches.worker_memory import memory_mb

SERVERS = f"{OURS},weft,peregrine,uvicorn-httptools,granian,hypercorn,gunicorn-asgi"
REQUESTS, ROUNDS = 2_000, 5
PAGE_BYTES = 4096
PRESENT, FRAME_NUMBER = 1 << 63, (1 << 55) - 1
"""Bits of an entry of /proc/PID/pagemap."""


def own_pages_mb(pids: Iterable[int]) -> float:
    """Distinct pages of the processes in MB; 0 where the system hides the numbers of pages."""
    pages: set[int] = set()
    for pid in pids:
        with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                begin, end = (int(text, 16) for text in line.split()[0].split("-"))
                if begin >= 1 << 63:
                    continue  # of the kernel
                pagemap.seek(begin // PAGE_BYTES * 8)
                entries = pagemap.read((end - begin) // PAGE_BYTES * 8)
                pages.update(e & FRAME_NUMBER for (e,) in struct.iter_unpack("Q", entries) if e & PRESENT)
    return (len(pages - {0}) * PAGE_BYTES) / 1e6


def send_requests(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    for _ in range(REQUESTS):
        connection.request("GET", "/")
        response = connection.getresponse()
        if response.status != 200 or not response.read():
            raise SubjectFailed(f"status {response.status}")
    time.sleep(1)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benches.hello_memory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--servers", default=SERVERS, help="comma-separated names")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--no-save", dest="save", action="store_false", help="leave benches/results/ alone")
    options = parser.parse_args()
    compileall.compile_dir(Path(towline.__file__).parent, quiet=1)
    found: dict[str, list[dict[str, float]]] = {}
    servers = list(chosen(options.servers))
    for _ in range(options.rounds):
        for server in servers:
            with running(server, APP) as subject:
                send_requests(subject.port)
                pids = subject.pids()
                pss = sum(memory_mb(pid)["pss"] for pid in pids)
                figures = {"pss": pss, "own_pages": own_pages_mb(pids), "processes": float(len(pids))}
                found.setdefault(server.name, []).append(figures)
    rows = []
    for name, rounds in found.items():
        pss = [one["pss"] for one in rounds]
        own = statistics.median(one["own_pages"] for one in rounds)
        rows.append(
            [
                name,
                f"{rounds[0]['processes']:.0f}",
                f"{statistics.median(pss):.1f}",
                f"{min(pss):.1f} to {max(pss):.1f}",
                f"{own:.1f}" if own else "",
            ]
        )
    table = report.table(["server", "processes", "PSS, MB", "range", "own pages, MB"], rows)
    text = (__doc__ or "").split("\n\n")[1] + f"\n\n{options.rounds} rounds.\n"
    print(table)
    if options.save:
        report.save_page("hello_memory", "Memory of a hello server", {"servers": found}, [text, table])
    return 0


if __name__ == "__main__":
    sys.exit(main())
