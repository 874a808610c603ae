"""No free descriptor: little CPU, one log line a second, and recovery when descriptors are free again."""

from __future__ import annotations

import contextlib
import resource
import sys
import time

import pytest

from tests.support.process import connect, eventually, request, running
from tests.support.process_resources import (
    HERE,
    cpu_seconds_during,
    descriptors,
    every_front_end,
    open_socket,
    worker,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="prlimit and /proc are Linux's")

SECONDS = 3.0


@every_front_end
def test_emfile_costs_no_cpu_and_few_lines_and_ends(serving: list[str]) -> None:
    with running(*serving, cwd=HERE) as program, contextlib.ExitStack() as stack:
        pid = worker(program)
        open_conn = stack.enter_context(connect(program.port))
        assert open_conn.get("/ok").status == 200
        baseline = cpu_seconds_during(pid, 1.0) * SECONDS
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (max(descriptors(pid)) + 5, before[1]))
        waiting = [stack.enter_context(contextlib.closing(open_socket(program.port))) for _ in range(60)]
        eventually(lambda: _lines(program.log), "the first line about it")

        lines, started = _lines(program.log), time.monotonic()
        used_s = cpu_seconds_during(pid, SECONDS)
        logged, watched = _lines(program.log) - lines, time.monotonic() - started
        print(
            f"{used_s * 1000:.1f} ms of CPU in {SECONDS} s (idle: {baseline * 1000:.1f} ms), {logged} lines"
        )
        # A busy loop would use all of the time, or its share of a busy machine.
        assert used_s < baseline + 0.5
        assert 1 <= logged <= watched + 1
        # Open connections are not affected.
        assert open_conn.get("/ok").status == 200

        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        started = time.monotonic()
        assert request(program.port, "/ok").status == 200
        assert time.monotonic() - started < 10
        assert len(waiting) == 60


def _lines(log: str) -> int:
    return sum("short of descriptors" in line for line in log.splitlines())
