"""Locks, semaphores, rate limits and once-only operations."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import towline.state
from towline.errors import LockLost, LockTimeout, OnceInProgress, UsageError
from towline.state import State

from .test_processes import in_child, statuses


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State[Any]]:
    with towline.state.open(str(tmp_path / "store")) as opened:
        yield opened


def test_one_holder_at_a_time(state: State[Any]) -> None:
    with state.lock("job"):
        with pytest.raises(LockTimeout, match=r"'job' was not free within 0.02 s"):
            state.lock("job", timeout=0.02).acquire()
        with state.lock("other", timeout=0):
            pass
    with state.lock("job", timeout=0):
        pass
    assert list(state.keys()) == [], "locks are no values"


def test_processes_exclude_each_other(state: State[Any]) -> None:
    def work() -> None:
        for _ in range(100):
            with state.lock("job"):
                count = state.get("count", 0)
                state.set("count", count + 1)

    assert statuses([in_child(work) for _ in range(3)]) == [0] * 3
    assert state.get("count") == 300


def test_a_lease_ends(state: State[Any]) -> None:
    lock = state.lock("job", lease=0.03)
    lock.acquire()
    with state.lock("job", timeout=20) as second:
        with pytest.raises(LockLost):
            lock.release()
        with pytest.raises(LockLost):
            lock.extend()
        second.extend(60)


def test_the_lock_of_a_killed_process(state: State[Any]) -> None:
    def hold() -> None:
        state.lock("job", lease=0.5).acquire()
        state.set("held", True)
        time.sleep(60)

    pid = in_child(hold)
    while not state.get("held"):
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with state.lock("job", timeout=20):
        pass


def test_semaphore(state: State[Any]) -> None:
    permits = [state.semaphore("db", 3, timeout=0) for _ in range(3)]
    for permit in permits:
        permit.acquire()
    with pytest.raises(LockTimeout):
        state.semaphore("db", 3, timeout=0).acquire()
    permits[1].release()
    with state.semaphore("db", 3, timeout=0):
        pass
    with pytest.raises(UsageError, match="1 to 1024 permits"):
        state.semaphore("db", 0)


def test_async_lock(tmp_path: Path) -> None:
    async def main() -> None:
        async with towline.state.open_async(str(tmp_path / "store")) as state:
            running = most = 0

            async def work() -> None:
                nonlocal running, most
                async with state.semaphore("two", 2):
                    running += 1
                    most = max(most, running)
                    await asyncio.sleep(0.002)
                    running -= 1

            await asyncio.gather(*(work() for _ in range(20)))
            assert most == 2

    asyncio.run(main())


def test_token_bucket(state: State[Any]) -> None:
    decisions = [state.token_bucket("api", capacity=5, per_second=0.1) for _ in range(6)]
    assert [bool(decision) for decision in decisions] == [True] * 5 + [False]
    assert [int(decision.remaining) for decision in decisions] == [4, 3, 2, 1, 0, 0]
    assert 9 < decisions[5].retry_after <= 10
    assert state.token_bucket("other", capacity=1, per_second=100)
    assert not state.token_bucket("other", capacity=1, per_second=100)
    time.sleep(0.02)
    assert state.token_bucket("other", capacity=1, per_second=100)
    with pytest.raises(UsageError):
        state.token_bucket("bad", capacity=1, per_second=0)


def test_sliding_window(state: State[Any]) -> None:
    decisions = [state.sliding_window("api", limit=3, seconds=3600) for _ in range(4)]
    assert [bool(decision) for decision in decisions] == [True, True, True, False]
    assert [decision.remaining for decision in decisions] == [2, 1, 0, 0]
    assert 0 < decisions[3].retry_after <= 7200
    assert state.sliding_window("other", limit=10, seconds=60, cost=10)
    assert not state.sliding_window("other", limit=10, seconds=60, cost=1)


def test_limits_hold_between_processes(state: State[Any]) -> None:
    def work() -> None:
        allowed = sum(map(bool, (state.sliding_window("api", 100, 3600) for _ in range(100))))
        state.increment("allowed", allowed)

    assert statuses([in_child(work) for _ in range(3)]) == [0] * 3
    assert state.get("allowed") == 100


def test_once(state: State[Any]) -> None:
    assert state.once("order-17", ttl=0.05)
    assert not state.once("order-17", ttl=0.05)
    time.sleep(0.06)
    assert state.once("order-17")


def test_run_once(state: State[Any]) -> None:
    calls: list[int] = []

    def charge() -> dict[str, int]:
        calls.append(1)
        return {"paid": 5}

    assert state.run_once("order", charge) == state.run_once("order", charge) == {"paid": 5}
    assert len(calls) == 1
    with pytest.raises(ZeroDivisionError):
        state.run_once("failing", lambda: 1 / 0)
    assert state.run_once("failing", lambda: 2) == 2

    started, go_on = threading.Event(), threading.Event()

    def slow() -> int:
        started.set()
        assert go_on.wait(20)
        return 3

    thread = threading.Thread(target=lambda: state.run_once("slow", slow))
    thread.start()
    assert started.wait(20)
    with pytest.raises(OnceInProgress):
        state.run_once("slow", slow)
    go_on.set()
    thread.join(20)
    assert state.run_once("slow", slow) == 3


def test_run_once_async(tmp_path: Path) -> None:
    async def main() -> None:
        async with towline.state.open_async(str(tmp_path / "store")) as state:
            calls = 0

            async def charge() -> str:
                nonlocal calls
                calls += 1
                await asyncio.sleep(0.01)
                return "paid"

            results = await asyncio.gather(
                *(state.run_once("order", charge) for _ in range(5)), return_exceptions=True
            )
            assert results.count("paid") == 1
            assert sum(isinstance(result, OnceInProgress) for result in results) == 4
            assert await state.run_once("order", charge) == "paid"
            assert calls == 1

    asyncio.run(main())
