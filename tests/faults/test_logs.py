"""Log outputs that fail: requests succeed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from towline.bench.subjects.ports import free_port

from tests.support.process import eventually, request, running
from tests.support.process_resources import HERE, every_front_end

pytestmark = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")


@every_front_end
def test_a_full_disk_costs_lines_and_no_request(serving: list[str]) -> None:
    with running(*serving, "--access-log", "/dev/full", "--metrics", cwd=HERE) as program:
        for _ in range(50):
            assert request(program.port, "/ok").body == b"ok"

        def dropped() -> float:
            page = request(program.port, "/metrics").body.decode()
            name = "towline_dropped_log_lines_total "
            return next(float(line[len(name) :]) for line in page.splitlines() if line.startswith(name))

        eventually(lambda: dropped() >= 50, "the count of lost lines")


@contextlib.contextmanager
def into_broken_pipes(app: str, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The program with the reading ends of stdout and stderr closed."""
    read, write = os.pipe()
    port = free_port()
    command = [sys.executable, "-m", "towline", "serve", app, "--port", str(port), *options]
    process = subprocess.Popen(command, cwd=HERE, stdout=write, stderr=write)
    os.close(write)
    try:
        banner = b""
        while b"Towline" not in banner:
            banner += os.read(read, 4096)
        os.close(read)
        yield process, port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


@every_front_end
def test_broken_pipes_for_logs_cost_no_request(serving: list[str]) -> None:
    with into_broken_pipes(*serving, "--access-log", "-") as (process, port):
        for _ in range(20):
            assert request(port, "/ok").status == 200
            assert request(port, "/raise").status == 500  # its traceback is lost
        assert process.poll() is None
    assert process.returncode == 0
