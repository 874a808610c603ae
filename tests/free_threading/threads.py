"""Threads that begin together and take turns by chance.

On a free-threaded interpreter they run at once; with the GIL it changes hands every 10 microseconds, which tests less.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.nightly import IS_NIGHT

SCHEDULES = 2000 if IS_NIGHT else 60
"""Runs of a test of one shared structure, each with its own order of the operations."""


def run_all(*functions: Callable[[], Any], timeout: float = 60) -> list[Any]:
    """Runs each function in a thread of its own, and returns their results. Raises the first exception."""
    barrier = threading.Barrier(len(functions))
    results: list[Any] = [None] * len(functions)
    failures: list[BaseException] = []

    def run(index: int, function: Callable[[], Any]) -> None:
        try:
            barrier.wait(timeout)
            results[index] = function()
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=run, args=(index, function), daemon=True)
        for index, function in enumerate(functions)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
        assert not thread.is_alive(), "a thread hangs"
    if failures:
        raise failures[0]
    return results


def schedules(operations: list[Callable[[], Any]], check: Callable[[], None] = lambda: None) -> None:
    """Calls `operations` in two threads at once, in many orders."""
    for seed in range(SCHEDULES):
        chance = random.Random(seed)
        orders = [chance.sample(operations, len(operations)) for _ in range(2)]
        run_all(*(lambda order=order: [operation() for operation in order] for order in orders))
        check()


@contextmanager
def short_turns() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
