"""No descriptor left: nothing burns, one line a second says so, and it ends with its cause."""

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
    with running(*serving, cwd=HERE) as program, contextlib.ExitStack() as held:
        pid = worker(program)
        kept = held.enter_context(connect(program.port))
        assert kept.get("/ok").status == 200
        baseline = cpu_seconds_during(pid, 1.0) * SECONDS
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (max(descriptors(pid)) + 5, before[1]))
        waiting = [held.enter_context(contextlib.closing(open_socket(program.port))) for _ in range(60)]
        eventually(lambda: _lines(program.log), "the first line about it")

        lines, begun = _lines(program.log), time.monotonic()
        spent = cpu_seconds_during(pid, SECONDS)
        told, watched = _lines(program.log) - lines, time.monotonic() - begun
        print(f"{spent * 1000:.1f} ms of CPU in {SECONDS} s (idle: {baseline * 1000:.1f} ms), {told} lines")
        # Whoever burns takes all of the time, or his share of a busy machine.
        assert spent < baseline + 0.5
        assert 1 <= told <= watched + 1
        # Who is connected already notices nothing.
        assert kept.get("/ok").status == 200

        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        begun = time.monotonic()
        assert request(program.port, "/ok").status == 200
        assert time.monotonic() - begun < 10
        assert len(waiting) == 60


def _lines(log: str) -> int:
    return sum("short of descriptors" in line for line in log.splitlines())
