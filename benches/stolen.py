"""A program that takes cores away in bursts, as a hypervisor or a neighbour does: `with stolen(0.1): ...`.

One process per core, with real-time priority, so that nothing of the core is left to others during a burst; where
that is not permitted, with ordinary priority. The bursts take 30 ms on average, at random intervals.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

BURST_S = 0.03
PROGRAM = """
import os, random, sys, time
core, share, burst_s, parent = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
os.sched_setaffinity(0, {core})
try:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
except PermissionError:
    pass
while os.getppid() == parent:
    time.sleep(random.expovariate(share / burst_s / (1 - share)))
    end = time.perf_counter() + random.expovariate(1 / burst_s)
    while time.perf_counter() < end:
        pass
"""


@contextmanager
def stolen(share: float) -> Iterator[None]:
    """Takes `share` (0 to below 1) of each core away."""
    if not 0 <= share < 1:
        raise ValueError(f"share must be at least 0 and below 1, not {share}")
    cores = sorted(os.sched_getaffinity(0)) if share else []
    argv = [sys.executable, "-c", PROGRAM]
    programs = [
        subprocess.Popen([*argv, str(core), str(share), str(BURST_S), str(os.getpid())]) for core in cores
    ]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()
