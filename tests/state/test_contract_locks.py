"""Locks, semaphores, limits and once-only operations: the same on every store, blocking and on an event loop.

Processes are forked with a blocking store, tasks are those of one event loop.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import towline.state
from towline.errors import LockLost, LockTimeout, OnceInProgress, UsageError
from towline.state import State

from tests.support.process import eventually
from tests.support.state_front_ends import Blocking

from .conftest import Opened
from .test_processes import in_child, statuses


@pytest.fixture
def forked(url: str) -> Iterator[State[Any]]:
    """A blocking store for processes that are forked."""
    with towline.state.open(url) as opened:
        yield opened


def test_one_holder_at_a_time(opened: Opened) -> None:
    states = [opened() for _ in range(4)]
    inside, most, rounds = 0, 0, 0

    def work(state: Any) -> None:
        nonlocal inside, most, rounds
        for _ in range(10):
            with state.lock("job"):
                inside += 1
                most = max(most, inside)
                rounds += 1
                time.sleep(0.002)
                inside -= 1

    threads = [threading.Thread(target=work, args=(each,)) for each in states]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, rounds) == (1, 40)


def test_processes_exclude_each_other(forked: State[Any]) -> None:
    def work() -> None:
        for _ in range(100):
            with forked.lock("job"):
                count = forked.get("count", 0)
                forked.set("count", count + 1)

    assert statuses([in_child(work) for _ in range(3)]) == [0] * 3
    assert forked.get("count") == 300


def test_the_lock_of_a_killed_process(forked: State[Any]) -> None:
    def hold() -> None:
        forked.lock("job", lease=0.5).acquire()
        forked.set("held", True)
        time.sleep(60)

    pid = in_child(hold)
    eventually(lambda: forked.get("held"), "lock of the other process")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with forked.lock("job", timeout=20):
        pass


def test_a_lock_has_a_name_and_is_no_value(state: Any) -> None:
    with state.lock("job"):
        with pytest.raises(LockTimeout, match=r"'job' was not free within 0.02 s"):
            state.lock("job", timeout=0.02).acquire()
        with state.lock("other", timeout=0):
            pass
        assert list(state.keys()) == []
    with state.lock("job", timeout=0):
        pass


def test_a_lock_is_refused_released_and_lost(state: Any) -> None:
    first = state.lock("job", lease=60)
    first.acquire()
    started = time.monotonic()
    with pytest.raises(LockTimeout, match="'job' was not free within"):
        state.lock("job", timeout=0.1).acquire()
    assert time.monotonic() - started >= 0.1
    first.extend()
    first.release()
    with pytest.raises(LockLost):
        first.release()
    with state.lock("job", timeout=0):
        pass


def test_a_lease_ends(state: Any) -> None:
    dead = state.lock("job", lease=0.2)
    dead.acquire()
    with state.lock("job", timeout=20) as following:
        with pytest.raises(LockLost):
            dead.extend()
        with pytest.raises(LockLost):
            dead.release()
        following.extend(30)


def test_a_semaphore_has_so_many_permits(state: Any) -> None:
    held = [state.semaphore("db", 3, timeout=0) for _ in range(3)]
    for each in held:
        each.acquire()
    with pytest.raises(LockTimeout):
        state.semaphore("db", 3, timeout=0).acquire()
    held[1].release()
    with state.semaphore("db", 3, timeout=0):
        pass
    with pytest.raises(UsageError, match="1 to 1024 permits"):
        state.semaphore("db", 0)


def test_tasks_share_a_semaphore(url: str) -> None:
    async def main() -> None:
        async with towline.state.open_async(url) as state:
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


def test_a_token_bucket_allows_a_burst_and_fills_again(state: Any) -> None:
    decisions = [state.token_bucket("api", 5, 0.001) for _ in range(7)]
    assert [bool(each) for each in decisions] == [True] * 5 + [False] * 2
    assert [int(each.remaining + 1e-6) for each in decisions[:5]] == [4, 3, 2, 1, 0]
    assert all(each.retry_after == 0 for each in decisions[:5])
    assert 900 < decisions[5].retry_after <= 1000
    assert not state.token_bucket("api", 5, 0.001)

    assert state.token_bucket("fast", 1, 10)
    refused = state.token_bucket("fast", 1, 10)
    if not refused:
        assert 0 < refused.retry_after <= 0.1
        time.sleep(refused.retry_after + 0.005)
        assert state.token_bucket("fast", 1, 10)


def test_a_token_bucket_has_a_cost(state: Any) -> None:
    assert state.token_bucket("api", 10, 0.001, cost=8)
    assert not state.token_bucket("api", 10, 0.001, cost=3)
    assert state.token_bucket("api", 10, 0.001, cost=2)
    impossible = state.token_bucket("api", 10, 0.001, cost=11)
    assert not impossible
    assert impossible.retry_after == math.inf
    for capacity, per_second, cost in ((0, 1, 1), (1, 0, 1), (1, 1, -1)):
        with pytest.raises(UsageError, match="a bucket has"):
            state.token_bucket("impossible", capacity, per_second, cost)


def test_a_sliding_window_allows_so_many(state: Any) -> None:
    decisions = [state.sliding_window("login", 3, 1000) for _ in range(5)]
    assert [bool(each) for each in decisions] == [True, True, True, False, False]
    assert [round(each.remaining) for each in decisions] == [2, 1, 0, 0, 0]
    assert all(0 < each.retry_after <= 2000 for each in decisions[3:])
    impossible = state.sliding_window("other", 3, 1000, cost=4)
    assert not impossible
    assert impossible.retry_after == math.inf
    assert state.sliding_window("other", 3, 1000, cost=3)
    assert not state.sliding_window("other", 3, 1000, cost=1)


def test_a_sliding_window_slides(state: Any) -> None:
    """In two windows' time after the first burst all of it is allowed again, and after retry_after one is."""
    while not all(state.sliding_window("a", 4, 0.5) for _ in range(4)):
        time.sleep(1.1)
    refused = state.sliding_window("a", 4, 0.5)
    if not refused:
        time.sleep(refused.retry_after + 0.01)
        assert state.sliding_window("a", 4, 0.5)
    time.sleep(1.1)
    assert state.sliding_window("a", 4, 0.5, cost=4)


def test_limits_hold_between_processes(forked: State[Any]) -> None:
    def work() -> None:
        allowed = sum(map(bool, (forked.sliding_window("api", 100, 3600) for _ in range(100))))
        forked.increment("allowed", allowed)

    assert statuses([in_child(work) for _ in range(3)]) == [0] * 3
    assert forked.get("allowed") == 100


def test_limits_have_names(state: Any) -> None:
    assert state.sliding_window("a", 1, 1000)
    assert state.sliding_window("b", 1, 1000)
    assert state.namespace("n").sliding_window("a", 1, 1000)
    assert not state.sliding_window("a", 1, 1000)


def test_once_is_true_for_one_of_many(opened: Opened) -> None:
    states = [opened() for _ in range(4)]
    results: list[bool] = []
    threads = [threading.Thread(target=lambda s=each: results.append(s.once("payment-1"))) for each in states]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False, False, False, True]
    assert states[0].once("short", ttl=0.5)
    assert not states[0].once("short", ttl=0.5)
    eventually(lambda: states[0].once("short"), "end of the once-only key")


def test_run_once_stores_its_result(state: Any) -> None:
    calls = []

    def work() -> Any:
        calls.append(1)
        return {"id": 7}

    assert run_once(state, "order", work) == {"id": 7}
    assert run_once(state, "order", work) == {"id": 7}
    assert len(calls) == 1

    def failing() -> Any:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        run_once(state, "fails", failing)
    assert run_once(state, "fails", work) == {"id": 7}


def test_run_once_is_refused_while_it_runs(state: Any) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def slow() -> Any:
        entered.set()
        go_on.wait(20)
        return 1

    runner = threading.Thread(target=lambda: run_once(state, "slow", slow))
    runner.start()
    assert entered.wait(20)
    with pytest.raises(OnceInProgress):
        run_once(state, "slow", slow)
    go_on.set()
    runner.join()
    assert run_once(state, "slow", slow) == 1


def test_run_once_for_tasks_of_one_loop(url: str) -> None:
    async def main() -> None:
        async with towline.state.open_async(url) as state:
            calls = 0

            async def charge() -> str:
                nonlocal calls
                calls += 1
                await asyncio.sleep(0.2)
                return "paid"

            results = await asyncio.gather(
                *(state.run_once("order", charge) for _ in range(5)), return_exceptions=True
            )
            assert results.count("paid") == 1
            assert sum(isinstance(result, OnceInProgress) for result in results) == 4
            assert await state.run_once("order", charge) == "paid"
            assert calls == 1

    asyncio.run(main())


def run_once(state: Any, name: str, function: Any) -> Any:
    if not isinstance(state, Blocking):
        return state.run_once(name, function)

    async def in_thread() -> Any:
        # A plain function may block, and the loop must not.
        return await asyncio.to_thread(function)

    return state.run_once(name, in_thread)
