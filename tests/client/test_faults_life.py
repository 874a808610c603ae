"""Long-lived clients: connections that close during use, cancels at every point, forks, loops, threads."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import towline

from tests.support.client_backends import BACKENDS, MIB, rss_bytes
from tests.support.http1_scripts import CHURN, ENDLESS, HostileServer, PathEchoServer, closes_soon, events

OPTIONS: dict[str, Any] = {"trust_env": False, "timeout": towline.Timeout(10, total=60)}
CROWD = int(os.environ.get("TOWLINE_CROWD", "4000"))


@pytest.mark.parametrize("face_name", BACKENDS)
def test_keep_alive_race(face_name: str) -> None:
    """400 requests, each racing with the close of the connection it would reuse: none fails."""
    with HostileServer({"race": closes_soon}) as server:
        backend = BACKENDS[face_name](**OPTIONS)
        try:
            for number in range(400):
                assert backend.get(server.url("race")).content == b"good", number
                time.sleep((number % 10) * 0.0005)
        finally:
            backend.close()


@pytest.mark.parametrize("pool", [1, 10])
def test_cancellation_churn(pool: int) -> None:
    """Thousands of cancels at every await point; then all of 20 requests succeed and no connection is left in use."""

    async def churn() -> None:
        limits = towline.Limits(max_connections_per_host=pool)
        async with towline.AsyncClient(limits=limits, **OPTIONS) as client:
            rng = random.Random(pool)
            for _ in range(20):
                tasks = [asyncio.create_task(one(client, rng.choice(names))) for _ in range(100)]
                for task in tasks:
                    asyncio.get_running_loop().call_later(rng.uniform(0, 0.01), task.cancel)
                await asyncio.gather(*tasks, return_exceptions=True)
            responses = await asyncio.gather(*(client.get(server.url("good")) for _ in range(20)))
            assert [response.content for response in responses] == [b"good"] * 20

    names = ("good", *CHURN)

    async def one(client: Any, name: str) -> None:
        async with client.stream("GET", server.url(name)) as response:
            async for _ in response.aiter_bytes():
                pass

    with HostileServer(CHURN) as server:
        asyncio.run(churn())


def test_a_cancel_after_every_number_of_steps() -> None:
    """The task is cancelled after its n-th step, for every n until it ends by itself."""

    async def one(client: Any) -> bytes:
        response = await client.get(server.url("good"))
        content: bytes = response.content
        return content

    async def cancelled_after(client: Any, steps: int) -> bool:
        task = asyncio.create_task(one(client))
        for _ in range(steps):
            await asyncio.sleep(0)
            if task.done():
                break
        is_done = task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return is_done

    async def every() -> None:
        limits = towline.Limits(max_connections_per_host=1)
        async with towline.AsyncClient(limits=limits, **OPTIONS) as client:
            for steps in range(200):
                is_done = await cancelled_after(client, steps)
                assert (await client.get(server.url("good"))).content == b"good", steps
                if is_done and steps > 20:
                    return

    with HostileServer() as server:
        asyncio.run(every())


@pytest.mark.parametrize("face_name", BACKENDS)
def test_a_fork_with_a_warm_connection(face_name: str) -> None:
    """Parent and children send requests at the same time; each receives its own responses."""

    def good(connection: socket.socket) -> bool:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % 4 + b"good")
        return True

    with HostileServer({"warm": good}) as server:
        backend = BACKENDS[face_name](**OPTIONS)
        assert backend.get(server.url("warm")).content == b"good"
        parents = server.connection_of("warm")
        children = []
        for _ in range(4):
            pid = os.fork()
            if pid == 0:
                os._exit(in_child(backend, server))
            children.append(pid)
        for _ in range(50):
            assert backend.get(server.url("warm")).content == b"good"
        assert [exit_status(pid) for pid in children] == [0] * 4
        # The parent's connection has survived its children's use and their end.
        assert backend.get(server.url("warm")).content == b"good"
        assert server.connection_of("warm") == parents
        assert len({number for number, _ in server.requests}) >= 5
        backend.close()


def in_child(backend: Any, server: HostileServer) -> int:
    """Runs in the forked process: no pytest here, only a status."""
    signal.alarm(20)
    try:
        fresh = BACKENDS[backend.name](**OPTIONS) if backend.name == "async" else backend
        if backend.name == "async":
            fresh.client = backend.client  # the parent's client in a loop of the child's
        return 0 if all(fresh.get(server.url("warm")).content == b"good" for _ in range(50)) else 1
    except BaseException:
        return 2


def exit_status(pid: int) -> int:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -1


def test_one_client_in_three_successive_loops() -> None:
    with HostileServer() as server:
        client = towline.AsyncClient(**OPTIONS)

        async def fetch() -> list[bytes]:
            responses = await asyncio.gather(*(client.get(server.url("good")) for _ in range(5)))
            return [response.content for response in responses]

        for _ in range(3):
            assert asyncio.run(fetch()) == [b"good"] * 5
        asyncio.run(client.aclose())


def in_threads(number: int, work: Callable[[int], None]) -> None:
    errors: list[BaseException] = []

    def worker(index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=worker, args=(index,)) for index in range(number)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join(60)
    assert not errors
    assert not any(thread.is_alive() for thread in workers)


def test_40_threads_share_one_client() -> None:
    with PathEchoServer() as server:
        client = towline.Client(limits=towline.Limits(max_connections_per_host=20), **OPTIONS)

        def work(index: int) -> None:
            for number in range(50):
                name = f"{index}-{number}"
                assert client.get(server.url(name)).content == name.encode()

        in_threads(40, work)
        client.close()
        assert len(server.requests) == 2000
        assert len({number for number, _ in server.requests}) <= 20


def test_40_threads_with_a_loop_each_share_one_client() -> None:
    with PathEchoServer() as server:
        client = towline.AsyncClient(**OPTIONS)

        def work(index: int) -> None:
            async def fetch() -> None:
                names = [f"{index}-{number}" for number in range(20)]
                responses = await asyncio.gather(*(client.get(server.url(name)) for name in names))
                assert [response.content.decode() for response in responses] == names

            asyncio.run(fetch())

        in_threads(40, work)
        assert len(server.requests) == 800


@pytest.fixture
def descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16384), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_thousands_at_once(descriptors: None) -> None:
    """All start before the first response; they wait in order for 100 connections, and none fails."""

    async def crowd() -> None:
        async with towline.AsyncClient(trust_env=False, timeout=towline.Timeout(60)) as client:
            names = [str(number) for number in range(CROWD)]
            responses = await asyncio.gather(*(client.get(server.url(name)) for name in names))
            assert [response.content.decode() for response in responses] == names

    with PathEchoServer() as server:
        asyncio.run(crowd())
        assert len(server.requests) == CROWD
        assert len({number for number, _ in server.requests}) <= 100


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.parametrize("face_name", BACKENDS)
def test_a_slow_reader_holds_a_window(face_name: str, name: str) -> None:
    with HostileServer(ENDLESS) as server:
        backend = BACKENDS[face_name](**OPTIONS, stream_window=65536)
        try:
            assert backend.get(server.url("good")).content == b"good"
            largest = slowly(backend, server.url(name))
            assert largest["growth"] < 4 * MIB
            # The window, and its framing.
            assert largest["buffered"] <= 65536 + 64
        finally:
            backend.close()


@pytest.mark.parametrize("face_name", BACKENDS)
def test_a_slow_reader_of_events_holds_a_window(face_name: str) -> None:
    """500 events of 8 KiB are sent in a second, 10 are read: 4 MiB would accumulate in each of the three."""
    with HostileServer({"events": events(500, 8192)}) as server:
        backend = BACKENDS[face_name](**OPTIONS, stream_window=65536)
        try:
            assert backend.get(server.url("good")).content == b"good"
            received = backend.pieces(server.url("events"), "sse")
            assert len(next(received).data) == 8192
            base, growth, buffered = rss_bytes(), 0, 0
            for _ in range(30):
                backend.rest(0.1)
                assert len(next(received).data) == 8192
                growth = max(growth, rss_bytes() - base)
                buffered = max(buffered, backend.streamed.buffered)
            assert growth < 4 * MIB
            assert buffered <= 65536
            received.close()
        finally:
            backend.close()


def slowly(backend: Any, url: str) -> dict[str, int]:
    """Reads 64 KB twenty times a second for two seconds; returns the largest buffered amount."""
    largest = {"growth": 0, "buffered": 0}
    base: list[int] = []

    def look(response: Any) -> None:
        if not base:
            base.append(rss_bytes())
        largest["growth"] = max(largest["growth"], rss_bytes() - base[0])
        largest["buffered"] = max(largest["buffered"], response.buffered)

    if backend.name == "sync":
        with backend.client.stream("GET", url) as response:
            for _ in range(40):
                response.read(65536)
                look(response)
                time.sleep(0.05)
                look(response)
        return largest

    async def read() -> None:
        async with backend.client.stream("GET", url) as response:
            for _ in range(40):
                await response.aread(65536)
                look(response)
                await asyncio.sleep(0.05)
                look(response)

    work: Awaitable[None] = read()
    backend.loop.run_until_complete(work)
    return largest
