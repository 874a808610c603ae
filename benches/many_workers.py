"""System calls and wake-ups of 2 to 64 workers: `python -m benches.many_workers [--workers 2,4,16,64] [--no-save]` (root, `perf`).

All results are counts, so a machine with two cores can tell what 64 workers do for one connection. Each server gets a few
hundred connections and requests, one after the other with a pause, in which all workers fall asleep, and some connections at once.
`perf stat` counts system calls of the workers by tracepoints; `/proc/PID/task/*/status` has the voluntary context switches: a
worker that sleeps again has been woken. What idle workers do in the same time is subtracted.

Only workers that the kernel wakes for nothing make these numbers grow with the number of workers. Times and rates of many
workers on few cores mean nothing, and are not recorded.
"""

from __future__ import annotations

import argparse
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from towline.bench.subjects.reaper import descendants

from benches import report
from benches.bench_servers import serving
from benches.worker_memory import wait_for_workers

WORKERS = (2, 4, 16, 64)
SERVERS = {
    "ASGI, asyncio": ("asgi_suite:app", ("--interface", "asgi", "--loop", "asyncio")),
    "ASGI, uvloop": ("asgi_suite:app", ("--interface", "asgi", "--loop", "uvloop")),
    "WSGI": ("wsgi_hello:app", ("--interface", "wsgi")),
}
CONNECTIONS, REQUESTS, AT_ONCE = 128, 256, 128
PAUSE_S = 0.005
EVENTS = {
    "calls": ("raw_syscalls:sys_enter", None),
    "accepts": ("syscalls:sys_enter_accept4", None),
    "empty_accepts": ("syscalls:sys_exit_accept4", "ret == -11"),
    "polls": ("syscalls:sys_enter_epoll_wait", None),
    "polls2": ("syscalls:sys_enter_epoll_pwait", None),
}
REQUEST = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


def switches(pids: list[int]) -> dict[int, int]:
    """Voluntary context switches of all threads, by process."""
    found = dict.fromkeys(pids, 0)
    for pid in pids:
        for status in Path(f"/proc/{pid}/task").glob("*/status"):
            found[pid] += int(re.findall(r"\nvoluntary_ctxt_switches:\s+(\d+)", status.read_text())[0])
    return found


@contextmanager
def counted(pids: list[int], into: dict[str, float]) -> Iterator[None]:
    """Count what the workers do in the block."""
    command = ["perf", "stat", "-x", ",", "-p", ",".join(map(str, pids))]
    for event, only in EVENTS.values():
        command += ["-e", event] + (["--filter", only] if only else [])
    perf = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    time.sleep(0.6)  # it opens its events; counts of this time are of idle workers
    before, started = switches(pids), time.monotonic()
    yield
    seconds, after = time.monotonic() - started, switches(pids)
    perf.send_signal(signal.SIGINT)
    _, text = perf.communicate(timeout=60)
    rows = [line.split(",") for line in text.splitlines() if line.count(",") > 4]
    if len(rows) != len(EVENTS):
        raise SystemExit(f"perf stat has failed: {text}")
    # "<not counted>": no worker has run.
    into |= {name: float(row[0]) if row[0].isdigit() else 0.0 for name, row in zip(EVENTS, rows, strict=True)}
    into["polls"] += into.pop("polls2")
    into["wakes"] = sum(after.values()) - sum(before.values())
    into["woken_workers"] = sum(after[pid] > before[pid] for pid in pids)
    into["seconds"] = seconds


@dataclass
class Server:
    pids: list[int]
    address: tuple[str, int]
    idle: dict[str, float]

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=30)

    def count(self, run: Callable[[], object], per: int) -> dict[str, float]:
        """Work of the workers for each of `per` connections or requests of `run`, more than if they were idle."""
        found: dict[str, float] = {}
        with counted(self.pids, found):
            run()
        share = (found["seconds"] + 0.6) / (self.idle["seconds"] + 0.6)
        idle = self.idle | {"wakes": self.idle["wakes"] * found["seconds"] / self.idle["seconds"]}
        scales = {"wakes": 1.0}
        return {
            name: (found[name] - idle[name] * scales.get(name, share)) / per
            for name in ("calls", "accepts", "empty_accepts", "polls", "wakes")
        }


def ask(connection: socket.socket) -> None:
    """One request, and its whole response of known length."""
    connection.sendall(REQUEST)
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(re.findall(rb"(?i)content-length: (\d+)", head)[0])
    while len(body) < length:
        body += connection.recv(65536)


def one_by_one(server: Server, kept: list[socket.socket]) -> None:
    for _ in range(CONNECTIONS):
        kept.append(server.connect())
        time.sleep(PAUSE_S)


def requests(kept: list[socket.socket]) -> None:
    for number in range(REQUESTS):
        ask(kept[number % len(kept)])
        time.sleep(PAUSE_S)


def for_one_request(server: Server) -> None:
    for _ in range(CONNECTIONS):
        with server.connect() as connection:
            ask(connection)
        time.sleep(PAUSE_S)


def at_once(server: Server, kept: list[socket.socket]) -> None:
    for _ in range(AT_ONCE):
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex(server.address)
        kept.append(connection)
    time.sleep(0.5)


def shares(server: Server) -> dict[str, float]:
    """Connections of the least and the most loaded worker, as parts of the mean, from the sockets that they have open."""
    found: Counter[int] = Counter(dict.fromkeys(server.pids, 0))
    inodes = {}
    for pid in server.pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes[descriptor.readlink().name] = pid
            except OSError:
                continue
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *rest = line.split()
        if state == "01" and int(local.split(":")[1], 16) == server.address[1]:
            pid = inodes.get(f"socket:[{rest[5]}]")
            if pid is not None:
                found[pid] += 1
    mean = sum(found.values()) / len(found)
    return {"least": min(found.values()) / mean, "most": max(found.values()) / mean}


def measure(app: str, options: tuple[str, ...], workers: int) -> dict[str, Any]:
    with serving(app, "--workers", str(workers), *options) as (pid, url), ExitStack() as stack:
        wait_for_workers(pid, workers)
        time.sleep(1 + workers / 8)
        parts = urlsplit(url)
        server = Server(descendants(pid), (str(parts.hostname), int(parts.port or 80)), {})
        with counted(server.pids, server.idle):
            time.sleep(CONNECTIONS * PAUSE_S)
        kept: list[socket.socket] = []
        found: dict[str, Any] = {"connection": server.count(lambda: one_by_one(server, kept), CONNECTIONS)}
        found["shares"] = shares(server)
        found["request"] = server.count(lambda: requests(kept), REQUESTS)
        found["short"] = server.count(lambda: for_one_request(server), CONNECTIONS)
        found["at_once"] = server.count(lambda: at_once(server, kept), AT_ONCE)
        for connection in kept:
            stack.enter_context(connection)
        return found


HEAD = [
    "server",
    "workers",
    "wake-ups",
    "calls",
    "of `accept4`",
    "without a connection",
    "least and most",
    "wake-ups, one request each",
    "calls",
    "calls, all at once",
    "wake-ups of a request",
    "calls",
]


def page(found: dict[str, dict[int, dict[str, Any]]]) -> list[str]:
    rows = []
    for name, by_workers in found.items():
        for workers, one in by_workers.items():
            new, short, request = one["connection"], one["short"], one["request"]
            numbers = [new["wakes"], new["calls"], new["accepts"], new["empty_accepts"]]
            more = [
                short["wakes"],
                short["calls"],
                one["at_once"]["calls"],
                request["wakes"],
                request["calls"],
            ]
            share = f"{one['shares']['least']:.2f} to {one['shares']['most']:.2f}"
            rows.append(
                [
                    name,
                    str(workers),
                    *(f"{number:.1f}" for number in numbers),
                    share,
                    *(f"{n:.1f}" for n in more),
                ]
            )
    return [
        "Counts of all workers together, less those of idle workers. First for each connection that is opened while all workers sleep",
        f"({CONNECTIONS}, {PAUSE_S * 1000:g} ms apart), with the connections of the least and the most loaded worker as parts of the mean;",
        f"then for each connection with one request; for each of {AT_ONCE} connections that are opened at once; and for each request on a",
        "connection that is kept.",
        "",
        report.table(HEAD, rows),
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benches.many_workers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--servers", default=";".join(SERVERS), help="names, separated by semicolons")
    parser.add_argument("--workers", default=",".join(map(str, WORKERS)))
    parser.add_argument("--no-save", dest="save", action="store_false", help="leave benches/results/ alone")
    options = parser.parse_args(arguments)
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for name in options.servers.split(";"):
        found[name] = {}
        for workers in map(int, options.workers.split(",")):
            found[name][workers] = measure(*SERVERS[name], workers)
            print(name, workers, found[name][workers], file=sys.stderr, flush=True)
    parts = page(found)
    print("\n".join(parts))
    if options.save:
        report.save_page(
            "many_workers", "System calls and wake-ups of many workers", {"servers": found}, parts
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
