"""Memory of each further worker: `python -m benches.worker_memory [--no-save]`.

A server runs with 1, 2 and 4 workers, serves some thousand requests, and is then read from /proc/PID/smaps_rollup: supervisor
and workers together. Pages that processes share are counted once by PSS, a share to each; what a worker has for itself alone
is its USS (private pages). RSS counts shared pages in every process and says nothing about a further worker.

The cost of a further worker is the growth of the sum of PSS from 2 workers to 4, divided by 2: what a machine must have more.
`python -m benches.hello_memory` compares one worker and its supervisor with other servers.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from towline.bench.subjects.reaper import descendants

from benches import report
from benches.bench_servers import START_S, serving

WORKERS = (1, 2, 4)
REQUESTS, CONNECTIONS = 20_000, 32
GOAL_MB = 20.0
APPLICATIONS = {
    "ASGI": ("asgi_suite:app", ("--interface", "asgi"), None),
    "WSGI": ("wsgi_hello:app", ("--interface", "wsgi"), None),
    "FastAPI": ("fastapi_json:app", ("--interface", "asgi"), "fastapi"),
    "Django": ("django_json:app", (), "django"),
}
FIELDS = ("Rss", "Pss", "Private_Clean", "Private_Dirty")


def wait_for_workers(pid: int, workers: int) -> None:
    """The workers are below a supervisor."""
    deadline = time.monotonic() + START_S
    while len(descendants(pid)) < workers:
        if time.monotonic() > deadline:
            raise SystemExit(f"fewer than {workers} workers have started")
        time.sleep(0.05)


def memory_mb(pid: int) -> dict[str, float]:
    """Fields of smaps_rollup in MB (10^6 bytes); `uss` is the private part."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:] if line.split(":")[0] in FIELDS}
    return {
        "rss": kib["Rss"] * 1024 / 1e6,
        "pss": kib["Pss"] * 1024 / 1e6,
        "uss": (kib["Private_Clean"] + kib["Private_Dirty"]) * 1024 / 1e6,
    }


def measure(app: str, options: tuple[str, ...], workers: int) -> dict[str, Any]:
    """Memory of the whole server and of its workers, after requests on all of them."""
    with serving(app, "--workers", str(workers), *options) as (pid, url):
        wait_for_workers(pid, workers)
        command = [
            sys.executable,
            "-m",
            "towline",
            "load",
            "--json",
            "-n",
            str(REQUESTS),
            "-c",
            str(CONNECTIONS),
            url,
        ]
        done = subprocess.run(command, capture_output=True, check=False, timeout=300)
        if done.returncode != 0:
            raise SystemExit(f"the load has failed: {done.stderr.decode()}")
        time.sleep(1.0)
        found = [memory_mb(one) for one in (pid, *descendants(pid))]
    own = found[1:]
    return {
        "processes": found,
        "rss": sum(one["rss"] for one in found),
        "pss": sum(one["pss"] for one in found),
        "worker_uss": statistics.mean(one["uss"] for one in own),
    }


def per_worker(by_workers: dict[int, dict[str, Any]]) -> float:
    """Growth of the sum of PSS for each further worker, from two workers on."""
    _, least, *_, most = WORKERS
    return float(by_workers[most]["pss"] - by_workers[least]["pss"]) / (most - least)


def page(found: dict[str, dict[int, dict[str, Any]]]) -> list[str]:
    rows = [
        [
            name,
            *(f"{by_workers[workers]['pss']:.1f}" for workers in WORKERS),
            f"{by_workers[WORKERS[-1]]['rss']:.1f}",
            f"{by_workers[WORKERS[-1]]['worker_uss']:.1f}",
            f"{per_worker(by_workers):.1f}",
        ]
        for name, by_workers in found.items()
    ]
    head = ["application", *(f"PSS, {workers} worker{'s'[: workers - 1]}" for workers in WORKERS)]
    parts = [
        f"MB of the whole server after {REQUESTS:,} requests. PSS counts a page that processes share once; the last column, the",
        "growth of PSS, is what a machine needs for each further worker. RSS is beside it to be compared, USS is what one worker",
        "has for itself alone.",
        "",
        report.table([*head, "RSS, 4 workers", "USS of a worker", "each further worker"], rows),
    ]
    hello = [per_worker(by_workers) for name, by_workers in found.items() if name.startswith("ASGI")]
    if hello:
        is_met = "met" if max(hello) <= GOAL_MB else "missed"
        parts += [
            f"The goal of at most {GOAL_MB:g} MB for a hello application is {is_met}: {max(hello):.1f} MB.",
            "",
        ]
    return parts


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benches.worker_memory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--apps", default=",".join(APPLICATIONS), help="comma-separated names")
    parser.add_argument("--no-save", dest="save", action="store_false", help="leave benches/results/ alone")
    options = parser.parse_args(arguments)
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for name in options.apps.split(","):
        app, interface, package = APPLICATIONS[name]
        if package is not None and importlib.util.find_spec(package) is None:
            continue
        for title, more in ((name, ()), (f"{name}, --preload", ("--preload",))):
            found[title] = {}
            for workers in WORKERS:
                # Without the collector's and the allocator's chance: the median of three starts.
                tries = [measure(app, (*interface, *more), workers) for _ in range(3)]
                found[title][workers] = sorted(tries, key=lambda one: one["pss"])[1]
            print(f"{title}: {per_worker(found[title]):.1f} MB for each further worker", flush=True)
    parts = page(found)
    print("\n".join(parts))
    if options.save:
        record = {"servers": found, "page_bytes": os.sysconf("SC_PAGE_SIZE")}
        report.save_page("worker_memory", "Memory of each further worker", record, parts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
