"""One client and one of the long-life behaviours: `python -m tests.client.peers_lifecycle_child SUBJECT BEHAVIOUR URL`.

Prints the results as JSON. The parent kills it at a timeout. Of Towline, only the adapters of the benchmark are
imported: some clients have an environment of their own.
"""

from __future__ import annotations

import asyncio
import collections
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from towline.bench.clients.subjects import CLIENTS
from towline.bench.clients.worker.job import Job, Work
from towline.bench.clients.worker.slow import async_slow, sync_slow

from .peers_adapters import adapter_of
from .peers_tls import failure_of

POOL = 100  # 20 for the threads, 10 for the cancels
RACES = 400
CROWD = 4000


class Tally:
    """Counts of correct and wrong responses, and of errors."""

    def __init__(self) -> None:
        self.correct = self.wrong = 0
        self.errors: collections.Counter[str] = collections.Counter()

    def note(self, response: Any, expected: bytes) -> None:
        if isinstance(response, BaseException):
            self.errors[type(response).__name__] += 1
        elif bytes(response[1]) == expected:
            self.correct += 1
        else:
            self.wrong += 1

    def found(self) -> dict[str, Any]:
        return {"answered": self.correct, "wrong": self.wrong, "errors": dict(self.errors)}


class Backend:
    """Both backends behind blocking calls; the asynchronous one keeps its loop."""

    def __init__(self, subject: str, base: str, pool: int = POOL) -> None:
        self.is_async = CLIENTS[subject].backend == "async"
        self.loop = asyncio.new_event_loop() if self.is_async else None
        if self.loop is not None:
            asyncio.set_event_loop(self.loop)
        self.adapter = adapter_of(subject)(base, pool)
        self.result(self.adapter.open())

    def result(self, value: Any) -> Any:
        return self.loop.run_until_complete(value) if self.loop is not None else value

    def attempt(self, call: Callable[[], Any]) -> Any:
        """Returns the response or the error. A coroutine is created within the loop, as in user code."""

        async def inside() -> Any:
            return await call()

        try:
            return self.result(inside() if self.is_async else call())
        except Exception as error:
            return error

    def rest(self, seconds: float) -> None:
        if self.loop is None:
            time.sleep(seconds)
        else:
            self.loop.run_until_complete(asyncio.sleep(seconds))


def race(backend: Backend, call: Callable[[str], Any]) -> dict[str, Any]:
    """Each request races with the close of the connection that it would reuse."""
    tally = Tally()
    for number in range(RACES):
        tally.note(backend.attempt(lambda number=number: call(f"/{number}")), b"good")
        backend.rest((number % 10) * 0.0005)
    return tally.found()


def race_get(backend: Backend) -> dict[str, Any]:
    return race(backend, backend.adapter.get)


def race_post(backend: Backend) -> dict[str, Any]:
    return race(backend, lambda path: backend.adapter.upload(path, b"once"))


def churn(backend: Backend) -> dict[str, Any]:
    """2,000 cancels at any point; then 20 requests, for which there is plenty of time."""
    rng = random.Random(1)

    async def main() -> dict[str, Any]:
        for _ in range(20):
            paths = [rng.choice(("/good", "/held", "/slow_body")) for _ in range(100)]
            tasks = [asyncio.ensure_future(backend.adapter.get(path)) for path in paths]
            for task in tasks:
                asyncio.get_running_loop().call_later(rng.uniform(0, 0.01), task.cancel)
            await asyncio.gather(*tasks, return_exceptions=True)
        waits = (asyncio.wait_for(backend.adapter.get("/good"), 10) for _ in range(20))
        tally = Tally()
        for response in await asyncio.gather(*waits, return_exceptions=True):
            tally.note(response, b"good")
        return tally.found()

    return dict(backend.result(main()))


def fork(backend: Backend) -> dict[str, Any]:
    """Four children and their parent send requests at once, all with the client that the parent has used."""
    backend.attempt(lambda: backend.adapter.get("/warm"))
    children = []
    for number in range(4):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            signal.alarm(10)  # a child that hangs is a finding
            if backend.is_async:
                backend.loop = asyncio.new_event_loop()
                asyncio.set_event_loop(backend.loop)
            os.write(write, json.dumps(request_all(backend, f"child{number}")).encode())
            os._exit(0)
        os.close(write)
        children.append((pid, read))
    own_result = request_all(backend, "parent")
    found: dict[str, Any] = {"parent": own_result, "children": []}
    for pid, read in children:
        report = os.read(read, 65536)
        os.waitpid(pid, 0)
        found["children"].append(json.loads(report) if report else {"hung": True})
    return found


def request_all(backend: Backend, prefix: str) -> dict[str, Any]:
    tally = Tally()
    for number in range(50):
        path = f"{prefix}-{number}"
        tally.note(backend.attempt(lambda path=path: backend.adapter.get(f"/{path}")), path.encode())
    return tally.found()


def loops(subject: str, base: str) -> dict[str, Any]:
    """Three `asyncio.run` with one client, made in the first."""
    adapter = adapter_of(subject)(base, POOL)
    tally = Tally()

    async def fetch(first: bool) -> None:
        if first:
            await adapter.open()
        calls = [adapter.get("/good") for _ in range(5)]
        for response in await asyncio.gather(*calls, return_exceptions=True):
            tally.note(response, b"good")

    for number in range(3):
        asyncio.run(fetch(number == 0))
    return tally.found()


def threads(backend: Backend) -> dict[str, Any]:
    """40 threads, 50 requests each."""
    tallies = [Tally() for _ in range(40)]

    def worker(index: int) -> None:
        for number in range(50):
            path = f"{index}-{number}"
            tallies[index].note(
                backend.attempt(lambda path=path: backend.adapter.get(f"/{path}")), path.encode()
            )

    workers = [threading.Thread(target=worker, args=(index,)) for index in range(40)]
    for one in workers:
        one.start()
    for one in workers:
        one.join()
    total = Tally()
    for tally in tallies:
        total.correct += tally.correct
        total.wrong += tally.wrong
        total.errors += tally.errors
    return total.found()


def crowd(backend: Backend) -> dict[str, Any]:
    async def main() -> dict[str, Any]:
        tally, started = Tally(), time.monotonic()
        calls = [backend.adapter.get(f"/{number}") for number in range(CROWD)]
        for number, response in enumerate(await asyncio.gather(*calls, return_exceptions=True)):
            tally.note(response, str(number).encode())
        return {**tally.found(), "seconds": round(time.monotonic() - started, 1)}

    return dict(backend.result(main()))


def slow(backend: Backend, path: str) -> dict[str, Any]:
    work: Work = "slow_events" if path == "events" else "slow_pieces"
    job = Job(work, "async" if backend.is_async else "sync", path=f"/{path}")
    if backend.is_async:
        found = backend.result(async_slow(backend.adapter, job, 4.0))
    else:
        found = sync_slow(backend.adapter, job, 4.0)
    extra = found["extra"]
    return {
        "growth_mib": round(extra["rss_growth_bytes"] / (1 << 20), 2),
        "buffered_bytes": extra.get("buffered_bytes"),
        "taken_bytes": extra["taken_bytes"],
        "seconds": round(found["measured_s"], 2),
        "stopped": bool(extra["stopped_for_growth"]),
    }


def main(subject: str, behaviour: str, base: str) -> dict[str, Any]:
    try:
        adapter_of(subject)
    except (ImportError, AttributeError) as error:
        return {"missing": str(error)}
    if behaviour.startswith("tls_"):
        return failure_of(subject, base, behaviour)
    if behaviour == "loops":
        return loops(subject, base)
    backend = Backend(
        subject, base, pool=20 if behaviour == "threads" else 10 if behaviour == "churn" else POOL
    )
    if behaviour.startswith("slow_"):
        return slow(backend, behaviour.removeprefix("slow_"))
    return dict(BEHAVIOURS[behaviour](backend))


BEHAVIOURS: dict[str, Callable[[Backend], dict[str, Any]]] = {
    "race_get": race_get,
    "race_post": race_post,
    "churn": churn,
    "fork": fork,
    "threads": threads,
    "crowd": crowd,
}


if __name__ == "__main__":
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of a library must not mix with the result
    try:
        report = main(*sys.argv[1:4])
    except BaseException as error:
        report = {"failed": f"{type(error).__name__}: {error}"[:300]}
    print(json.dumps(report), file=output, flush=True)
    os._exit(0)  # threads of the client do not delay the exit
