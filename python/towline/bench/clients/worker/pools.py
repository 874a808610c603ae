"""Connection pools of the libraries by themselves: the step that gives a connection to a request, without the
request.

All connections are real, open and idle, made beforehand by GETs of the library. `assign` and `acquire` return the
seconds of that step alone; restoring the initial state of the pool is not timed.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any, Protocol

from .adapters.base import Adapter, AsyncAdapter, SyncAdapter
from .calls import compare
from .job import Job
from .window import Window

ACQUIRES = 100
"""Steps in one sample: a single one is too short for the clock."""
FILL_MS, FILL_MS_EACH = 50, 8
"""Slow enough that all requests of one origin are in flight together, each on its own connection: starting fifty
threads takes time on a busy machine."""
FILL_BYTES = b"x" * 2000


class Steps(Protocol):
    """A pool full of idle connections."""

    def assign(self) -> float:
        """Seconds in which every request of the job gets a connection."""

    def acquire(self) -> float:
        """Seconds in which one connection is acquired and released."""


def steps_for(adapter: Adapter, job: Job, bases: Sequence[str], library: str) -> Steps:
    """The filled pool of an open adapter. Raises ValueError for a library whose pool cannot be driven directly."""
    if library not in STEPS:
        raise ValueError(f"the pool of {library} cannot be driven by itself; those of {', '.join(STEPS)} can")
    return STEPS[library](adapter, job, bases)


def share_of(job: Job, origin: int) -> int:
    """Number of connections to one origin: connection n belongs to origin n modulo origins."""
    connections, origins = job.parameters["connections"], job.parameters["origins"]
    return connections // origins + (origin < connections % origins)


def fill_path(share: int) -> str:
    return f"/req?ms={max(FILL_MS, FILL_MS_EACH * share)}"


async def fill_async(adapter: AsyncAdapter, job: Job, bases: Sequence[str]) -> None:
    if hasattr(adapter, "add_idle_connection"):
        for n in range(job.parameters["connections"]):
            await adapter.add_idle_connection(bases[n % len(bases)])
        return
    for origin, adapter.base in enumerate(bases):
        share = share_of(job, origin)
        calls = [adapter.get(fill_path(share)) for _ in range(share)]
        for response in await asyncio.gather(*calls):
            compare(response, FILL_BYTES)


def fill_sync(adapter: SyncAdapter, job: Job, bases: Sequence[str]) -> None:
    if hasattr(adapter, "add_idle_connection"):
        for n in range(job.parameters["connections"]):
            adapter.add_idle_connection(bases[n % len(bases)])
        return
    for origin, adapter.base in enumerate(bases):
        if share := share_of(job, origin):
            with ThreadPoolExecutor(share) as threads:
                for future in [threads.submit(adapter.get, fill_path(share)) for _ in range(share)]:
                    compare(future.result(), FILL_BYTES)


def sample(steps: Steps, job: Job, seconds: float, discard_s: float) -> Window:
    """Repeats the step for a time. The time of the slice is that of the steps alone."""
    step = steps.assign if job.kind == "pool_assignment" else steps.acquire
    window = Window(None, 0.0)
    window.begin()
    began = time.perf_counter()
    while (now := time.perf_counter() - began) < seconds or not window.latencies:
        took = step()
        if now >= discard_s:
            window.latencies.append(took)
            window.answered += 1
    window.end()
    window.cpu_s = 0.0  # most of it is spent between the steps
    window.opened_at = window.closed_at - sum(window.latencies)
    return window


def allow_descriptors() -> None:
    """Raises the soft limit, which is usually too low for a thousand connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class HttpcoreSteps:
    """httpcore and httpcorexyz: all queued requests are assigned in one call."""

    def __init__(self, adapter: Any, job: Job, bases: Sequence[str]) -> None:
        self.pool = adapter.client
        part, prefix = ("_async", "Async") if job.backend == "async" else ("_sync", "")
        module = import_module(f"{adapter.library}.{part}.connection_pool")
        request = import_module(adapter.library).Request
        wanted = [request("GET", bases[n % len(bases)] + "/") for n in range(job.parameters["requests"])]
        make: Callable[[Any], Any] = getattr(module, f"{prefix}PoolRequest")
        self.make: Callable[[], list[Any]] = lambda: [make(one) for one in wanted]
        self.connections = len(self.pool.connections)

    def assign(self) -> float:
        pool, queued = self.pool, self.make()
        began = time.perf_counter()
        with pool._optional_thread_lock:
            pool._requests.extend(queued)
            closing = pool._assign_requests_to_connections()
        took = time.perf_counter() - began
        pool._requests.clear()
        if closing or len(pool.connections) != self.connections or any(one.is_queued() for one in queued):
            raise ValueError("the pool did not serve the requests from its idle connections")
        return took

    def acquire(self) -> float:
        pool, queued = self.pool, [self.make()[0] for _ in range(ACQUIRES)]
        began = time.perf_counter()
        for one in queued:
            with pool._optional_thread_lock:
                pool._requests.append(one)
                pool._assign_requests_to_connections()
            with pool._optional_thread_lock:
                pool._requests.remove(one)
                pool._assign_requests_to_connections()
        return (time.perf_counter() - began) / ACQUIRES


class AiohttpSteps:
    """aiohttp's connector: a request takes its connection with `_get`, which never waits for an idle one."""

    def __init__(self, adapter: Any, job: Job, _bases: Sequence[str]) -> None:
        self.connector = adapter.session.connector
        self.connector._keepalive_timeout = 3600.0  # connections of other libraries do not expire either
        keys = list(self.connector._conns)
        self.keys = [keys[n % len(keys)] for n in range(job.parameters["requests"])]

    def assign(self) -> float:
        connector = self.connector
        began = time.perf_counter()
        taken = [run_once(connector._get(key, [])) for key in self.keys]
        took = time.perf_counter() - began
        for one in taken:
            one.release()
        return took

    def acquire(self) -> float:
        connector, key = self.connector, self.keys[0]
        began = time.perf_counter()
        for _ in range(ACQUIRES):
            run_once(connector._get(key, [])).release()
        return (time.perf_counter() - began) / ACQUIRES


def run_once(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        if done.value is None:
            raise ValueError("the connector had no idle connection for the request") from None
        return done.value
    raise ValueError("the connector waits although it has connections")


class Urllib3Steps:
    """urllib3's manager: looks up the origin's pool, and takes a connection from its queue."""

    def __init__(self, adapter: Any, job: Job, bases: Sequence[str]) -> None:
        self.manager = adapter.client
        places = [base.removeprefix("http://").rsplit(":", 1) for base in bases]
        wanted = [places[n % len(places)] for n in range(job.parameters["requests"])]
        self.places = [(host, int(port)) for host, port in wanted]

    def assign(self) -> float:
        found, taken = self.manager.connection_from_host, []
        began = time.perf_counter()
        for host, port in self.places:
            pool = found(host, port, "http")
            taken.append((pool, pool._get_conn()))
        took = time.perf_counter() - began
        for pool, connection in taken:
            if connection.sock is None:
                raise ValueError("the pool did not serve the request from its idle connections")
            pool._put_conn(connection)
        return took

    def acquire(self) -> float:
        found, (host, port) = self.manager.connection_from_host, self.places[0]
        began = time.perf_counter()
        for _ in range(ACQUIRES):
            pool = found(host, port, "http")
            pool._put_conn(pool._get_conn())
        return (time.perf_counter() - began) / ACQUIRES


class TowlineSteps:
    """Towline: the pool of the engine, driven in Rust."""

    def __init__(self, _adapter: Any, job: Job, _bases: Sequence[str]) -> None:
        pool_bench = import_module("towline._native").PoolBench
        self.pool_bench = pool_bench(job.parameters["connections"], job.parameters["origins"])
        self.requests = job.parameters["requests"]

    def assign(self) -> float:
        seconds: float = self.pool_bench.assign(self.requests)
        return seconds

    def acquire(self) -> float:
        seconds: float = self.pool_bench.acquire(ACQUIRES)
        return seconds


STEPS: dict[str, Callable[[Any, Job, Sequence[str]], Steps]] = {
    "towline": TowlineSteps,
    "httpcore": HttpcoreSteps,
    "httpcorexyz": HttpcoreSteps,
    "aiohttp": AiohttpSteps,
    "urllib3": Urllib3Steps,
}
