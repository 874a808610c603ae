"""Resource use of a process, and sockets that end abnormally."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process import Program

HERE = Path(__file__).parents[1] / "faults"
HEAD = b"GET /ok HTTP/1.1\r\nhost: test\r\n\r\n"

every_front_end = pytest.mark.parametrize(
    "serving",
    [
        pytest.param(["apps:asgi"], id="asgi"),
        pytest.param(["apps:asgi", "--loop", "asyncio"], id="asgi-asyncio"),
        pytest.param(["apps:wsgi"], id="wsgi"),
        pytest.param(["apps:wsgi", "--threads", "3"], id="wsgi-threads"),
    ],
)


def descriptors(pid: int) -> set[int]:
    return {int(entry) for entry in os.listdir(f"/proc/{pid}/fd")}


def stable_descriptors(pid: int) -> int:
    """Number of open descriptors once it has been constant for a second."""
    count = len(descriptors(pid))
    since = time.monotonic()
    while time.monotonic() < since + 1.0:
        if (now := len(descriptors(pid))) != count:
            count, since = now, time.monotonic()
        time.sleep(0.02)
    return count


def cpu_seconds(pid: int) -> float:
    """CPU seconds used by all threads of the process, from a clock in nanoseconds (utime has a resolution of 10 ms)."""
    used_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        used_ns += int((task / "schedstat").read_text().split()[0])
    return used_ns / 1e9


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def cpu_seconds_during(pid: int, seconds: float) -> float:
    before = cpu_seconds(pid)
    time.sleep(seconds)
    return cpu_seconds(pid) - before


def worker(program: Program) -> int:
    (pid,) = program.children()
    return pid


def reset(sock: socket.socket) -> None:
    """Closes the socket with RST instead of FIN."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def open_socket(port: int, data: bytes = b"") -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), 10)
    if data:
        sock.sendall(data)
    return sock


def response_time(port: int) -> float:
    """Seconds from a new connection to the first bytes of its response."""
    started = time.perf_counter()
    with contextlib.closing(open_socket(port, HEAD)) as sock:
        assert sock.recv(4096).startswith(b"HTTP/1.1 200")
        return time.perf_counter() - started


@contextlib.contextmanager
def descriptor_limit_for(sockets: int) -> Iterator[None]:
    """Raises the descriptor limit, which the program inherits; skips the test if the hard limit is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = sockets + 500
    if hard not in (-1, resource.RLIM_INFINITY) and hard < needed:
        pytest.skip(f"only {hard} descriptors are allowed here, {needed} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
