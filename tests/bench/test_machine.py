"""The machine and the costs of processes: figures are right, and the description is anonymous."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path

from towline.bench.subjects import cpu_ticks, describe, steal_share
from towline.bench.subjects.machine import pressure_cpu_us
from towline.bench.subjects.resources import Meter, pss_bytes

SPIN = """
import os, sys, threading, time
def spin(seconds):
    while time.thread_time() < seconds: pass
if os.fork() == 0:
    spin(0.2)
    os._exit(0)
thread = threading.Thread(target=spin, args=(0.2,)); thread.start(); thread.join()
held = bytearray(os.urandom(1)) * (20 << 20)
print("done", flush=True)
sys.stdin.read()
"""


def test_cpu_time_of_threads_and_ended_children_and_memory_are_counted() -> None:
    meter = Meter(os.getpid())
    with subprocess.Popen(
        [sys.executable, "-S", "-c", SPIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        before = meter.usage()
        assert child.stdout is not None
        while not select.select([child.stdout], [], [], 0.02)[0]:
            meter.usage()  # the forked process leaves no record: it is measured while it runs
        assert child.stdout.readline() == b"done\n"
        due = time.monotonic() + 10
        while meter.usage().since(before).cpu_s < 0.3 and time.monotonic() < due:
            time.sleep(0.02)
        usage, peaks = meter.usage().since(before), meter.peaks()
        own = next(pid for pid in meter.pids() if pid == child.pid)
        shared = pss_bytes([own])
        assert child.stdin is not None
        child.stdin.close()
    assert 0.3 <= usage.cpu_s < 5
    assert usage.switches > 0
    assert peaks.rss_bytes > 20 << 20
    assert peaks.processes >= 1
    assert peaks.threads >= 1
    assert shared is None or shared > 20 << 20


def test_the_description_is_anonymous() -> None:
    text = json.dumps(describe())
    assert describe()["cores"] == os.cpu_count()
    assert describe()["kernel"]
    for secret in (socket.gethostname(), str(Path.home()), os.getcwd()):
        assert secret not in text


def test_steal_is_a_share_of_the_time_between() -> None:
    assert steal_share((10, 1000), (30, 1200)) == 0.1
    assert steal_share((10, 1000), (10, 1000)) == 0.0
    stolen, every = cpu_ticks()
    assert 0 <= stolen <= every


def test_pressure_only_grows() -> None:
    first = pressure_cpu_us()
    if first is not None:
        assert (pressure_cpu_us() or 0) >= first >= 0
