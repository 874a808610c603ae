"""Metrics for StatsD: the supervisor sends the changes of all workers."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.process import HERE, MAX_WAIT, eventually, request, running


class Receiver:
    """A StatsD server: sums of counters, samples of timers, last values of gauges."""

    def __init__(self, listening: socket.socket) -> None:
        self._socket = listening
        self._socket.setblocking(False)
        self.sums: Counter[str] = Counter()
        self.gauges: dict[str, float] = {}
        self.longest = 0

    def read(self) -> Receiver:
        while True:
            try:
                datagram = self._socket.recv(65536)
            except BlockingIOError:
                return self
            self.longest = max(self.longest, len(datagram))
            for line in datagram.decode().split("\n"):
                self._count(line)

    def _count(self, line: str) -> None:
        name, _, rest = line.partition(":")
        value, kind, *options = rest.split("|")
        rate = 1.0
        for option in options:
            if option.startswith("@"):
                assert "e" not in option
                rate = float(option[1:])
        if kind == "g":
            self.gauges[name] = float(value)
        elif kind == "c":
            self.sums[name] += int(value)
        else:
            assert kind == "ms"
            assert 0 < float(value) <= 30_000
            self.sums[name] += round(1 / rate)


def bound(address: tuple[str, int] = ("127.0.0.1", 0)) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listening.bind(address)
    return listening


def test_counters_of_all_workers_are_sent() -> None:
    with bound() as listening:
        receiver = Receiver(listening)
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with running("apps:asgi", "--workers", "2", "--statsd", address) as program:
            for _ in range(20):
                assert request(program.port, "/pid").status == 200
            eventually(lambda: receiver.read().sums["towline.requests"] >= 20, "20 requests", timeout=20)
            assert receiver.sums["towline.request.status.200"] == receiver.sums["towline.requests"]
            assert receiver.sums["towline.request.duration"] == receiver.sums["towline.requests"]
            assert receiver.gauges["towline.workers"] == 2
            assert receiver.longest <= 1432
            total = receiver.sums["towline.requests"]
            # The gauges go on, and nothing is counted twice.
            receiver.gauges.clear()
            eventually(lambda: bool(receiver.read().gauges), "the next send", timeout=20)
            assert receiver.sums["towline.requests"] == total


def test_requests_of_the_last_second_are_sent_at_the_stop(tmp_path: Path) -> None:
    """With the prefix and tags of a dashboard made for gunicorn, over a Unix socket."""
    path = tmp_path / "statsd.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(path))
        receiver = Receiver(listening)
        options = (
            "--statsd-host",
            f"unix:{path}",
            "--statsd-prefix",
            "gunicorn.",
            "--dogstatsd-tags",
            "a:b,c",
        )
        with running("apps:wsgi", *options) as program:
            before = receiver.read().sums["gunicorn.requests"]
            assert request(program.port, "/pid").status == 200
            program.signal(signal.SIGTERM)
            assert program.wait() == 0
        assert receiver.read().sums["gunicorn.requests"] - before >= 1


def test_a_server_that_does_not_listen_delays_nothing() -> None:
    with bound() as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with running("apps:asgi", "--statsd", address) as program:
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            started = time.monotonic()
            assert request(program.port, "/pid").status == 200
            assert time.monotonic() - started < 1
            time.sleep(0.1)
        assert "Traceback" not in program.log


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (("--statsd", "127.0.0.1:http"), 2, "statsd: expected HOST:PORT or unix:PATH, not '127.0.0.1:http'"),
        (
            ("--statsd", "127.0.0.1:70000"),
            2,
            "statsd: expected HOST:PORT or unix:PATH, not '127.0.0.1:70000'",
        ),
        (("--statsd", "127.0.0.1", "--statsd-prefix", "a:b"), 2, "statsd_prefix: expected a name without"),
        (("--statsd", "127.0.0.1", "--statsd-tags", "a|b"), 2, "statsd_tags: expected NAME:VALUE without"),
        (("--statsd", "name.invalid"), 3, "--statsd name.invalid: "),
        (("--statsd", "unix:/nowhere/statsd.sock"), 3, "--statsd unix:/nowhere/statsd.sock: No such file"),
    ],
)
def test_a_wrong_address_prefix_or_tag_stops_the_start(
    options: tuple[str, ...], status: int, message: str
) -> None:
    command = [sys.executable, "-m", "towline", "serve", "apps:asgi", "--port", "0", *options]
    ended = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=MAX_WAIT, check=False)
    assert ended.returncode == status, ended.stderr
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
