"""Cost of a call of our client with many origins, idle connections and queued calls, and threads that close at once.

`python -m benches.client_pool [--rounds 5] [--only origins,close]`. The responder runs on one core, the client on another,
each measurement in a process of its own; the sizes of a group alternate within a round. Three groups measure our client
alone: its cost per call must not grow with the size. `close` compares: each of N threads has received the head of a
response; they all read the body and release the connection at once.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import towline
from towline.bench.responder import Responder
from towline.bench.runner.design import Cores

from benches import report

ORIGINS, IDLE, QUEUED = (1, 10, 100, 1_000), (10, 100, 1_000, 10_000), (100, 1_000, 10_000, 100_000)
THREADS = (1, 10, 50, 200)
SIZES = {"origins": ORIGINS, "idle": IDLE, "queued": QUEUED, "close": THREADS}
CLOSING = ("towline", "httpcore", "httpcorexyz", "urllib3")
CALLS = 20_000
"""Measured calls of a process, except of `queued`, which makes its number of calls."""
CONCURRENCY = 20
TIMEOUT_S = 60.0


class Clock:
    """Microseconds of wall time and of CPU time since it was made."""

    def __init__(self) -> None:
        self.cpu, self.wall = _cpu_s(), time.perf_counter()

    def per_call(self, calls: int) -> dict[str, float]:
        wall, cpu = time.perf_counter() - self.wall, _cpu_s() - self.cpu
        return {"us": wall / calls * 1e6, "cpu_us": cpu / calls * 1e6}


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


# Measurements, each in a process of its own.


def origins(size: int, port: int, _client: str) -> dict[str, float]:
    """One call after the other to `size` origins in turn, each with an idle connection."""
    urls = [f"http://127.{1 + (index >> 8)}.0.{index & 255}:{port}/" for index in range(size)]
    limits = towline.Limits(max_connections=2_000, max_keepalive_connections=2_000)
    with towline.Client(trust_env=False, limits=limits) as client:
        for url in urls:
            client.get(url)
        clock, left = Clock(), CALLS
        while left > 0:
            for url in urls[:left]:
                client.get(url)
            left -= size
        return clock.per_call(CALLS)


def idle(size: int, port: int, _client: str) -> dict[str, float]:
    """Calls at once by 20 tasks, with `size` connections in the pool."""

    async def run() -> dict[str, float]:
        limits = towline.Limits(
            max_connections=size, max_connections_per_host=size, max_keepalive_connections=size
        )
        url = f"http://127.0.0.1:{port}/"
        async with towline.AsyncClient(trust_env=False, limits=limits, timeout=TIMEOUT_S) as client:
            while client.pool_status()["idle"] < size:
                await client.prewarm(url, min(size, client.pool_status()["idle"] + 500))
            await _tasks(client, url, 1_000)
            clock = Clock()
            await _tasks(client, url, CALLS)
            return clock.per_call(CALLS)

    return asyncio.run(run())


async def _tasks(client: towline.AsyncClient, url: str, calls: int) -> None:
    async def task() -> None:
        for _ in range(calls // CONCURRENCY):
            await client.get(url)

    await asyncio.gather(*(task() for _ in range(CONCURRENCY)))


def queued(size: int, port: int, _client: str) -> dict[str, float]:
    """`size` calls begun at once, which share 20 connections."""

    async def run() -> dict[str, float]:
        limits = towline.Limits(max_connections=CONCURRENCY, max_connections_per_host=CONCURRENCY)
        url = f"http://127.0.0.1:{port}/"
        timeout = towline.Timeout(TIMEOUT_S, pool=None)
        async with towline.AsyncClient(trust_env=False, limits=limits, timeout=timeout) as client:
            await _tasks(client, url, 1_000)
            repeats = max(1, CALLS // size)
            clock = Clock()
            for _ in range(repeats):
                await asyncio.gather(*(client.get(url) for _ in range(size)))
            return clock.per_call(repeats * size)

    return asyncio.run(run())


def close(size: int, port: int, client: str) -> dict[str, float]:
    """`size` threads read a small body and release its connection at once; a call is one such release."""
    rounds = max(3, 1_000 // size)
    url = f"http://127.0.0.1:{port}/"
    spent: list[float] = []
    used: list[float] = []
    with ExitStack() as stack:
        opened = OPENERS[client](stack, size)
        for repetition in range(rounds + 1):
            barrier = threading.Barrier(size + 1, timeout=TIMEOUT_S)

            def thread(barrier: threading.Barrier = barrier) -> None:
                release = opened(url)
                barrier.wait()
                release()

            threads = [threading.Thread(target=thread) for _ in range(size)]
            for each in threads:
                each.start()
            barrier.wait()
            clock = Clock()
            for each in threads:
                each.join()
            cost = clock.per_call(size)
            if repetition:  # the first one opens the connections
                spent.append(cost["us"])
                used.append(cost["cpu_us"])
    return {"us": statistics.median(spent), "cpu_us": statistics.fmean(used)}


Opened = Callable[[str], Callable[[], None]]
"""Sends a request, receives the head, and returns what reads the body and releases the connection."""


def _open_towline(stack: ExitStack, size: int) -> Opened:
    limits = towline.Limits(
        max_connections=size, max_connections_per_host=size, max_keepalive_connections=size
    )
    client = stack.enter_context(towline.Client(trust_env=False, limits=limits))

    def opened(url: str) -> Callable[[], None]:
        block = client.stream("GET", url)
        response = block.__enter__()

        def release() -> None:
            response.read()
            block.__exit__(None, None, None)

        return release

    return opened


def _open_httpcore(package: str) -> Callable[[ExitStack, int], Opened]:
    def make(stack: ExitStack, size: int) -> Opened:
        pool = import_module(package).ConnectionPool(max_connections=size, max_keepalive_connections=size)
        stack.enter_context(pool)

        def opened(url: str) -> Callable[[], None]:
            block = pool.stream("GET", url)
            response = block.__enter__()

            def release() -> None:
                response.read()
                block.__exit__(None, None, None)

            return release

        return opened

    return make


def _open_urllib3(stack: ExitStack, size: int) -> Opened:
    pool = import_module("urllib3").PoolManager(maxsize=size, block=True)
    stack.callback(pool.clear)

    def opened(url: str) -> Callable[[], None]:
        response = pool.request("GET", url, preload_content=False)

        def release() -> None:
            response.read()
            response.release_conn()

        return release

    return opened


OPENERS: dict[str, Callable[[ExitStack, int], Opened]] = {
    "towline": _open_towline,
    "httpcore": _open_httpcore("httpcore"),
    "httpcorexyz": _open_httpcore("httpcorexyz"),
    "urllib3": _open_urllib3,
}
GROUPS: dict[str, Callable[[int, int, str], dict[str, float]]] = {
    "origins": origins,
    "idle": idle,
    "queued": queued,
    "close": close,
}


# The driver.


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benches.client_pool", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument(
        "--only", default=",".join(GROUPS), help=f"comma-separated groups: {', '.join(GROUPS)}"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-save", dest="save", action="store_false", help="leave benches/results/ alone")
    parser.add_argument(
        "--worker", nargs=4, metavar=("GROUP", "SIZE", "PORT", "CLIENT"), help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if options.worker:
        group, size, port, client = options.worker
        print(json.dumps(GROUPS[group](int(size), int(port), client)))
        return 0
    unknown = set(options.only.split(",")) - set(GROUPS)
    if unknown:
        parser.error(f"--only: no group {', '.join(sorted(unknown))}; there is {', '.join(GROUPS)}")
    entries = {group: measure(group, options.rounds) for group in options.only.split(",")}
    parts = list(tables(entries))
    print("\n".join(parts))
    if options.save:
        report.save("client_pool", entries)
        write_tables()
    return 0


def write_tables() -> None:
    entries = report.load("client_pool")
    conditions = [f"{report.conditions(next(iter(entries.values())))}.\n"]
    command = "python -m benches.client_pool"
    report.write_markdown(
        "client_pool", "Scale of the client's pool", [*tables(entries), *conditions], command
    )


def measure(group: str, rounds: int) -> dict[str, Any]:
    cores = Cores.divided()
    clients = installed() if group == "close" else ("towline",)
    cells = [(client, size) for size in SIZES[group] for client in clients]
    found: dict[tuple[str, int], list[dict[str, float]]] = {cell: [] for cell in cells}
    with Responder("--host", "0.0.0.0", cores=cores.subject) as responder:
        port = int(responder.base_url.rpartition(":")[2])
        for number in range(rounds):
            for client, size in cells if number % 2 == 0 else reversed(cells):
                found[client, size].append(worker(group, size, port, client, cores.driver))
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": report.machine(),
        "versions": report.versions(("towline", *CLOSING[1:])),
        "rounds": rounds,
        "cells": [
            {"client": client, "size": size, "rounds": values} for (client, size), values in found.items()
        ],
    }


def installed() -> tuple[str, ...]:
    absent = [name for name in CLOSING if find_spec(name) is None]
    if absent:
        print(f"not installed, left out (make peers): {', '.join(absent)}", file=sys.stderr)
    return tuple(name for name in CLOSING if name not in absent)


def worker(group: str, size: int, port: int, client: str, cores: Sequence[int] | None) -> dict[str, float]:
    command = [sys.executable, "-m", "benches.client_pool", "--worker", group, str(size), str(port), client]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        if cores is not None:
            os.sched_setaffinity(0, cores)

    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, preexec_fn=prepare)
    result: dict[str, float] = json.loads(done.stdout)
    return result


TITLES = {
    "origins": "origins, one call after the other",
    "idle": "connections in the pool, 20 calls at once",
    "queued": "calls begun at once, 20 connections",
    "close": "threads that release a connection at once",
}


def tables(entries: dict[str, Any]) -> Iterator[str]:
    """A table for each group: a row for each client, a column for each size."""
    yield "Microseconds per call, wall time · CPU time; medians of the rounds.\n"
    for group, entry in entries.items():
        cells = {(cell["client"], cell["size"]): cell["rounds"] for cell in entry["cells"]}
        sizes = list(dict.fromkeys(size for _, size in cells))
        rows = [
            [client, *(_median(cells[client, size]) for size in sizes)]
            for client in dict.fromkeys(client for client, _ in cells)
        ]
        yield report.table([TITLES[group], *(f"{size:,}" for size in sizes)], rows)


def _median(rounds: list[dict[str, float]]) -> str:
    wall, cpu = (statistics.median(one[name] for one in rounds) for name in ("us", "cpu_us"))
    return f"{wall:,.1f} · {cpu:,.1f}"


if __name__ == "__main__":
    sys.exit(main())
