"""Stalls of known length, in slices with gaps for other subjects: rate and p99 by arithmetic."""

from __future__ import annotations

import itertools
import math
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from towline.bench.analysis import paired
from towline.bench.clients.process import Worker
from towline.bench.clients.subjects import CLIENTS
from towline.bench.clients.worker.job import Job
from towline.bench.clients.worker.window import Window
from towline.bench.record import Slice
from towline.bench.responder import Responder

from benches import stalls
from tests.support.waiting import holds_once

CALLERS, SERVICE_S = 8, 0.001
"""One server that takes a millisecond for each of 8 concurrent requests in turn."""


class StallingServer:
    """A virtual clock, and a server that stands still by the clock or by its work."""

    def __init__(self, every_s: float, stall_s: float, *, by_work: bool) -> None:
        self.now, self.work_s = 0.0, 0.0
        self.every_s, self.stall_s, self.by_work = every_s, stall_s, by_work
        self.chance = random.Random(3)
        self.limit_s = every_s - stall_s

    def serve(self) -> None:
        """Processes one request."""
        if self.by_work:
            self.work_s += SERVICE_S
            if self.work_s >= self.limit_s:
                # Not in step with the slices, which all do the same work.
                self.work_s = 0.0
                self.limit_s = (self.every_s - self.stall_s) * self.chance.uniform(0.5, 1.5)
                self.now += self.stall_s
        else:
            phase = self.now % self.every_s
            if phase >= self.every_s - self.stall_s:
                self.now += self.every_s - phase
        self.now += SERVICE_S


def measured(server: StallingServer, clock: Callable[[], float], slices: int) -> tuple[float, list[float]]:
    """The rate over all slices, and all latencies; between two slices other subjects have their turn."""
    chance = random.Random(5)
    answered, measured_s, latencies = 0, 0.0, []
    for _ in range(slices):
        server.now += chance.uniform(0.05, 0.35)
        window = Window(0.08, 0.008)
        window.begin()
        queue = [server.now] * CALLERS
        while queue:
            began = queue.pop(0)
            server.serve()
            window.note(began, server.now)
            if not window.closed:
                queue.append(server.now)
        window.end()
        found = window.found(1)
        answered, measured_s = answered + found["answered"], measured_s + found["measured_s"]
        latencies += window.latencies
    assert clock() == server.now
    return answered / measured_s, sorted(latencies)


@pytest.mark.parametrize("by_work", [False, True], ids=["by the clock", "by work, like a garbage collector"])
@pytest.mark.parametrize(("every_s", "stall_s"), [(1.0, 0.1), (1.0, 0.3), (0.1, 0.02), (10.0, 2.0)])
def test_a_stall_has_its_share_of_the_time(
    monkeypatch: pytest.MonkeyPatch, every_s: float, stall_s: float, by_work: bool
) -> None:
    server = StallingServer(every_s, stall_s, by_work=by_work)
    monkeypatch.setattr(time, "perf_counter", lambda: server.now)
    rate, latencies = measured(server, lambda: server.now, 20_000)
    truth = (1 - stall_s / every_s) / SERVICE_S
    assert rate == pytest.approx(truth, rel=0.03)
    # Each stall delays the requests in flight, and no others.
    usual = CALLERS * SERVICE_S
    delayed = sum(latency > 1.5 * usual for latency in latencies) / len(latencies)
    assert delayed == pytest.approx(CALLERS * SERVICE_S / (every_s - stall_s), rel=0.1)
    if delayed > 0.015:
        assert latencies[int(0.99 * len(latencies))] == pytest.approx(stall_s + usual, rel=0.05)


def test_a_client_of_a_server_that_stands_still_has_the_rest_of_the_time() -> None:
    """Real sockets. Slices in which stalls were dropped had a ratio of 1.0; other tests on the same cores disturb some attempts."""
    for _ in range(5):
        ratio, share = client_of_a_stalling_server()
        assert share > 0.2
        if abs(ratio - (1 - share)) < 0.1:
            return
    pytest.fail(f"a ratio of {ratio:.3f}, with stalls for {share:.3f} of the time")


def client_of_a_stalling_server() -> tuple[float, float]:
    """The ratio of its rate to a steady one's, and the share of stalls: two responders in alternating slices, one of which
    stands still for 6 of every 20 ms."""
    load = Job("get", "sync", answer_text="alive\r\n")
    slices: dict[str, list[Slice]] = {"steady": [], "stalling": []}
    with Responder() as steady, Responder("--stall-every", "20ms", "--stall-for", "6ms") as stalling:
        workers = {"steady": Worker(Path(sys.executable)), "stalling": Worker(Path(sys.executable))}
        try:
            for worker, responder in zip(workers.values(), (steady, stalling), strict=True):
                client = CLIENTS["towline-sync"]
                opened = {"adapter": client.adapter, "packages": client.packages, "job": load.plain()}
                worker.call(30, op="open", library=client.library, bases=[responder.base_url], **opened)
            began_ns = time.monotonic_ns()
            for number in range(150):
                for name, worker in workers.items():
                    found = worker.call(30, op="slice", seconds=0.03, discard_s=0.003, count=None)["found"]
                    assert found["failed"] == 0
                    slices[name].append(
                        Slice(name, 0, number, 0, 0.0, found["measured_s"], found["answered"])
                    )
            ended_ns = time.monotonic_ns()
            stalls = [end - begin for begin, end in stalling.injected().stalls if begin >= began_ns]
        finally:
            for worker in workers.values():
                worker.stop()
    share = sum(stalls) / (ended_ns - began_ns)
    ratio = paired(slices["stalling"], slices["steady"], "per_s")
    return math.exp(ratio.by_restart[0]), share


@pytest.mark.parametrize("load", stalls.LOADS)
@pytest.mark.parametrize("stall", ["once for 2 s", "20 ms after many requests"])
def test_one_stop_and_pauses_of_a_garbage_collector(stall: str, load: str) -> None:
    """Real sockets, as in `python -m benches.stalls`, which has narrow bounds and a quiet machine."""
    seeds = itertools.count(1)

    def claim() -> None:
        attempt = next(seeds)
        # A stall after many requests needs that many, also of a busy machine.
        rounds = 40 if stall == "once for 2 s" else 40 * attempt
        found = stalls.measure(stall, load, rounds, seed=attempt)
        if stall == "once for 2 s":
            # Otherwise the stop began between two slices, or in a discarded part.
            assert found.rate_truth < 0.9 or (found.p99_truth_ms or 0) > 1000
        if load != "open":
            # A slow machine needs longer for as many requests.
            assert found.rate_truth < 0.99
            assert found.rate == pytest.approx(found.rate_truth, abs=0.2)
        elif stall == "once for 2 s":
            # The stop is more than half of 3.2 s of slices: its requests wait for up to 2 s.
            assert found.p99_ms == pytest.approx(found.p99_truth_ms, rel=0.1)
            assert found.p99_ms > 1500
        else:
            assert found.p99_ms > 1

    holds_once(claim)
