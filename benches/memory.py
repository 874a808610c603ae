"""Memory of connections and streams: `python -m benches.memory [--servers towline,uvicorn]`.

Growth is the resident memory of the server's process group above its level after a warm-up. Three measurements:
10,000 idle keep-alive connections; the latency of a new request with 1,100 more silent connections; 200 MB up and down.
"""

from __future__ import annotations

import argparse
import datetime
import resource
import socket
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from towline.bench.subjects import Process, Server
from towline.bench.subjects.resources import high_water_bytes, reset_high_water

from benches import report
from benches.bench_servers import ASGI_SERVERS, SubjectFailed, chosen, running

APP, HELLO = "asgi_suite:app", b"Hello, world!\n"
IDLE, SILENT, MEGABYTES = 10_000, 1_100, 200
PIECE = bytes(65536)
GOALS = {"idle_mib": 30, "new_request_ms": 50, "upload_mib": 4, "download_mib": 4}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benches.memory", description=__doc__.split("\n\n")[0])
    parser.add_argument("--servers", default=",".join(ASGI_SERVERS), help="comma-separated names")
    parser.add_argument("--connections", type=int, default=IDLE, help="idle kept-alive connections")
    parser.add_argument("--megabytes", type=int, default=MEGABYTES, help="of the upload and the download")
    parser.add_argument("--no-save", dest="save", action="store_false", help="leave benches/results/ alone")
    options = parser.parse_args()
    allow_descriptors(options.connections + SILENT + 100)
    entries = {}
    for server in chosen(options.servers):
        entries[server.name] = measure_server(server, options.connections, options.megabytes)
        print(server.name, entries[server.name]["figures"], flush=True)
    if options.save:
        report.save("memory", entries)
        write_tables()
    return 0


def allow_descriptors(needed: int) -> None:
    """Raises the limit of descriptors, which every server inherits."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        sys.exit(f"{needed} descriptors are needed and the hard limit is {hard} (ulimit -Hn)")
    limit = 65536 if hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit, needed), hard))


def measure_server(server: Server, connections: int, megabytes: int) -> dict[str, Any]:
    figures: dict[str, float | str] = {}
    measurements = {
        "idle": lambda subject: idle(subject, connections),
        "upload": lambda subject: streamed(subject, lambda port, size: upload(port, size), megabytes),
        "download": lambda subject: streamed(subject, lambda port, size: download(port, size), megabytes),
    }
    command = ""
    for name, measure in measurements.items():
        try:
            with running(server, APP) as subject:
                command = " ".join(subject.command)
                result = measure(subject)
            figures |= result if isinstance(result, dict) else {f"{name}_mib": result}
        except (OSError, ValueError, SubjectFailed) as error:
            figures[f"{name}_mib"] = f"failed: {error}"
    return {
        "date": datetime.date.today().isoformat(),
        "machine": report.machine(),
        "versions": report.versions(),
        "command": command,
        "connections": connections,
        "megabytes": megabytes,
        "figures": figures,
    }


def exchange(port: int, connection: socket.socket) -> None:
    connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    with connection.makefile("rb") as stream:
        if (body := read_response(stream)) != HELLO:
            raise ValueError(f"the answer is {body[:60]!r}")


def read_response(stream: BinaryIO) -> bytes:
    status = stream.readline()
    if b" 200 " not in status:
        raise ValueError(f"status line {status!r}")
    length = 0
    while (line := stream.readline().strip()) != b"":
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return stream.read(length)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def idle(subject: Process, count: int) -> dict[str, float | str]:
    """Each connection has received one response and is idle; then silent ones are added, and a new one sends a request."""
    sockets: list[socket.socket] = []
    figures: dict[str, float | str] = {}
    try:
        for _ in range(200):  # caches, pools and lazy imports belong to the start
            sockets.append(connect(subject.port))
            exchange(subject.port, sockets[-1])
        before = resident_kib(subject)
        for _ in range(count):
            sockets.append(connect(subject.port))
            exchange(subject.port, sockets[-1])
        figures["idle_mib"] = round((resident_kib(subject) - before) / 1024, 1)
        sockets.extend(connect(subject.port) for _ in range(SILENT))
        time.sleep(0.2)
        try:
            waits = [timed(lambda: exchange_on_new_connection(subject.port)) for _ in range(20)]
            figures["new_request_ms"] = round(max(waits) * 1000, 1)
            figures["new_request_median_ms"] = round(statistics.median(waits) * 1000, 2)
        except (OSError, ValueError) as error:
            figures["new_request_ms"] = f"failed: {error}"
    finally:
        for connection in sockets:
            connection.close()
    return figures


def resident_kib(subject: Process) -> int:
    return subject.usage().rss_bytes >> 10


def exchange_on_new_connection(port: int) -> None:
    with connect(port) as connection:
        exchange(port, connection)


def timed(act: Callable[[], None]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def streamed(subject: Process, transfer: Callable[[int, int], None], megabytes: int) -> float:
    """Peak growth during a large transfer, above the memory after a small one."""
    transfer(subject.port, 2)
    before = resident_kib(subject)
    reset_high_water(subject.pids())
    transfer(subject.port, megabytes)
    return round((high_water_bytes(subject.pids()) / 1024 - before) / 1024, 1)


def upload(port: int, megabytes: int) -> None:
    size = megabytes << 20
    with connect(port) as connection:
        connection.sendall(
            f"POST /upload HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n".encode()
        )
        for _ in range(size // len(PIECE)):
            connection.sendall(PIECE)
        with connection.makefile("rb") as stream:
            counted = int(read_response(stream))
    if counted != size:
        raise ValueError(f"the application counted {counted} bytes of {size}")


def download(port: int, megabytes: int) -> None:
    """Pauses for half a second in the middle: a server without backpressure fills its memory."""
    size = megabytes << 20
    with connect(port) as connection:
        connection.sendall(f"GET /download/{megabytes} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        with connection.makefile("rb") as stream:
            while stream.readline().strip():
                pass
            received = 0
            while received < size and (piece := stream.read1(1 << 20)):
                received += len(piece)
                if received >= size // 2 > received - len(piece):
                    time.sleep(0.5)
    if received != size:
        raise ValueError(f"received {received} of {size} bytes")


def write_tables() -> None:
    measured = report.load("memory")
    names = {
        "idle_mib": "idle connections, MiB",
        "new_request_ms": "slowest new request, ms",
        "upload_mib": "upload, MiB",
        "download_mib": "download, MiB",
    }
    rows = [
        [name, *(str(entry["figures"].get(key, ""))[:40] for key in names)]
        for name, entry in measured.items()
    ]
    rows.append(["goal", *(f"< {GOALS[key]}" for key in names)])
    about = "".join(f"\n{name}: {report.conditions(entry)}\n" for name, entry in measured.items())
    text = f"{IDLE:,} idle connections, {SILENT:,} more silent connections, streams of {MEGABYTES} MB.\n\n"
    report.write_markdown(
        "memory",
        "Memory growth",
        [text, report.table(["server", *names.values()], rows), about],
        "python -m benches.memory",
    )


if __name__ == "__main__":
    sys.exit(main())
