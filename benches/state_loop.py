"""Time for which asynchronous calls of `towline.state` hold the event loop: `python -m benches.state_loop [--seconds 150]
[--no-save]`.

The goal is 0.2 ms: calls above a size are made by a thread. Each call is timed step by step, from the loop's
call of the coroutine until it suspends or ends. While a thread works the loop must go on, so the longest pause between two
callbacks of the loop is measured as well: a thread that keeps the GIL would hold the loop though no step is long.

Everything is measured alone and beside two processes that write all the time. The process of the loop has a core of its
own, the writers have the others. `nothing` is an empty coroutine: what is above it in the tail is the machine's.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import towline.state

from benches import report

BOUND_US = 200.0
WRITERS = 2
KEYS, FEW_KEYS = 200, 8
"""Keys with values of a size: fewer of those above 256 KiB."""
SIZES = {"100 B": 100, "4 KiB": 4 << 10, "64 KiB": 64 << 10, "256 KiB": 256 << 10, "1 MiB": 1 << 20}
LARGEST = ("8 MiB", 8 << 20)
STORE_BYTES = 256 << 20
MOST_CALLS = 20_000
clock = time.perf_counter_ns

State = towline.state.AsyncState[bytes]
Call = Callable[[int], Coroutine[Any, Any, Any]]


class Timed:
    """A coroutine whose steps are timed. As an awaitable of a task it passes on what the coroutine waits for."""

    def __init__(self, inner: Coroutine[Any, Any, Any]) -> None:
        self._inner = inner
        self.steps: list[int] = []

    def __await__(self) -> Generator[Any, Any, None]:
        while True:
            start = clock()
            try:
                waited_for = self._inner.send(None)
            except StopIteration:
                self.steps.append(clock() - start)
                return
            self.steps.append(clock() - start)
            yield waited_for


class Ticker:
    """A callback of the loop that comes again and again: its longest pause is the longest hold of the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._last = 0
        self.longest = 0
        self._running = True

    def start(self) -> None:
        self._last = clock()
        self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        now = clock()
        self.longest = max(self.longest, now - self._last)
        self._last = now
        if self._running:
            self._loop.call_soon(self._tick)

    def stop(self) -> None:
        self._running = False


async def nothing() -> None:
    pass


def keys_of(size: int) -> int:
    return KEYS if size <= 256 << 10 else FEW_KEYS


def calls(state: State, size: int) -> dict[str, Call]:
    """The operations for values of a size, each by the number of the call."""
    value = os.urandom(min(size, 1 << 16)) * max(1, size >> 16)
    few, keys = max(1, min(100, (1 << 20) // size)), keys_of(size)

    def names(number: int) -> list[str]:
        return [f"{size}:{(number + each) % keys}" for each in range(few)]

    async def page(number: int) -> None:
        await state._backend.scan(f"{size}:".encode(), None, 128, True)

    found: dict[str, Call] = {
        "get": lambda number: state.get(f"{size}:{number % keys}"),
        "set": lambda number: state.set(f"{size}:{number % keys}", value),
        f"get_many of {few}": lambda number: state.get_many(names(number)),
        f"set_many of {few}": lambda number: state.set_many(dict.fromkeys(names(number), value)),
        "page of a scan": page,
    }
    if size < LARGEST[1]:
        found["publish"] = lambda number: state.publish("news", value)
    if size == SIZES["100 B"]:
        found |= {
            "nothing": lambda number: nothing(),
            "increment": lambda number: state.increment("count"),
            "compare_and_set": lambda number: state.compare_and_set("cas", None, b"x"),
            "delete": lambda number: state.delete(f"gone:{number}"),
            "expire": lambda number: state.expire(f"{size}:{number % keys}", 1000.0),
            "token_bucket": lambda number: state.token_bucket("bucket", 1e9, 1e6),
            "sliding_window": lambda number: state.sliding_window("window", 10**9, 60.0),
            "once": lambda number: state.once(f"once:{number}", ttl=1.0),
        }
    return found


async def measure(call: Call, seconds: float) -> dict[str, Any]:
    """Steps of calls in microseconds, sorted, and the longest pauses of the loop in calls that were made by a thread."""
    steps: list[int] = []
    pauses: list[int] = []
    in_thread = 0
    deadline = time.monotonic() + seconds
    number = 0
    while number < MOST_CALLS and time.monotonic() < deadline:
        # In a task of its own the first step would be part of another callback.
        timed = Timed(call(number))
        ticker = Ticker()
        ticker.start()
        await timed
        ticker.stop()
        number += 1
        steps.append(max(timed.steps))
        if len(timed.steps) > 1:
            in_thread += 1
            pauses.append(ticker.longest)
        await asyncio.sleep(0)  # the last callback of the ticker
    return {"calls": number, "in_thread": in_thread, "steps": summary(steps), "pauses": summary(pauses)}


def summary(times_ns: list[int]) -> dict[str, float] | None:
    """Percentiles in microseconds."""
    if not times_ns:
        return None
    times_ns.sort()

    def at(share: float) -> float:
        return round(times_ns[min(len(times_ns) - 1, int(len(times_ns) * share))] / 1000, 1)

    longer = sum(each > BOUND_US * 1000 for each in times_ns)
    return {
        "p50": at(0.5),
        "p99": at(0.99),
        "p99.9": at(0.999),
        "max": round(times_ns[-1] / 1000, 1),
        "above_bound": longer / len(times_ns),
    }


def write_all_the_time(path: str, cores: set[int], stop: Any) -> None:
    os.sched_setaffinity(0, cores)
    with towline.state.open(path, codec="bytes") as state:
        number = 0
        while not stop.is_set():
            for _ in range(50):
                number += 1
                state.set(f"writer:{number % 1000}", bytes(100))


async def all_rows(path: str, seconds: float) -> list[dict[str, Any]]:
    """One row for each operation and size; each has its part of the time."""
    rows = []
    async with towline.state.open_async(path, codec="bytes") as state:
        sizes = dict([*SIZES.items(), LARGEST])
        plan = [
            (name, call, label) for label, size in sizes.items() for name, call in calls(state, size).items()
        ]
        for size in sizes.values():
            for number in range(keys_of(size)):
                await state.set(f"{size}:{number}", bytes(size))
        for name, call, label in plan:
            await measure(call, min(0.05, seconds / len(plan) / 10))
            gc.collect()
            gc.disable()  # collections belong to the program, not to the store
            found = await measure(call, seconds / len(plan))
            gc.enable()
            rows.append({"operation": name, "size": label, **found})
    return rows


def run(seconds: float) -> dict[str, list[dict[str, Any]]]:
    cores = sorted(os.sched_getaffinity(0))
    others = set(cores[:-1]) or set(cores)
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    found = {}
    fork = multiprocessing.get_context("fork")
    for name, count in (("alone", 0), (f"beside {WRITERS} writers", WRITERS)):
        with tempfile.TemporaryDirectory(dir=base) as folder:
            path = f"{folder}/store"
            towline.state.open(path, size=STORE_BYTES, when_full="evict").close()
            stop = fork.Event()
            writers = [
                fork.Process(target=write_all_the_time, args=(path, others, stop)) for _ in range(count)
            ]
            for writer in writers:
                writer.start()
            os.sched_setaffinity(0, {cores[-1]})
            try:
                found[name] = asyncio.run(all_rows(path, seconds / 2))
            finally:
                os.sched_setaffinity(0, set(cores))
                stop.set()
                for writer in writers:
                    writer.join()
    return found


def page(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    parts = [
        "Microseconds for which one call holds the event loop: the longest step of each call; where a thread made it, the",
        "longest pause of the loop meanwhile as well. The bound is 200. The process has one core, so that a pause contains the",
        "time of the thread on it.",
        "",
    ]
    for name, rows in found.items():
        head = [
            "call",
            "values",
            "calls",
            "in a thread",
            "p50",
            "p99",
            "p99.9",
            "max",
            "> 200 us",
            "pause p50",
            "p99",
            "max",
        ]
        lines = []
        for row in rows:
            steps, pauses = row["steps"], row["pauses"]
            lines.append(
                [
                    row["operation"],
                    row["size"],
                    f"{row['calls']:,}",
                    f"{row['in_thread'] / row['calls']:.1%}",
                    *(f"{steps[key]:,.1f}" for key in ("p50", "p99", "p99.9", "max")),
                    f"{steps['above_bound']:.2%}",
                    *(f"{pauses[key]:,.0f}" if pauses else "" for key in ("p50", "p99", "max")),
                ]
            )
        parts += [f"## {name.capitalize()}\n", report.table(head, lines)]
    return parts


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benches.state_loop",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=150.0, help="of measuring, in all")
    parser.add_argument("--no-save", dest="save", action="store_false", help="leave benches/results/ alone")
    options = parser.parse_args(arguments)
    found = run(options.seconds)
    parts = page(found)
    print("\n".join(parts))
    if options.save:
        title = "Time for which towline.state holds an event loop"
        report.save_page("state_loop", title, {"rows": found}, parts, ("towline",))
    return 0


if __name__ == "__main__":
    sys.exit(main())
