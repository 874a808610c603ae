"""One client in successive loops, in several at once, in a child of fork, and at the interpreter's end."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import textwrap
import threading

import pytest
import towline
from towline import AsyncClient

from tests.support.asyncio_client import BACKENDS, Upstream, run
from tests.support.asyncio_client import upstream as upstream


@pytest.mark.parametrize("backend", BACKENDS)
def test_three_successive_runs(backend: str, upstream: Upstream) -> None:
    client = AsyncClient()

    async def main() -> None:
        for _ in range(3):
            assert (await client.get(upstream.url())).text == "hello"

    for _ in range(3):
        run(backend, main)
    assert upstream.connections == 3

    async def close() -> None:
        await client.aclose()
        with pytest.raises(towline.ClientClosed):
            await client.get(upstream.url())

    run(backend, close)


def test_runs_of_different_loops(upstream: Upstream) -> None:
    client = AsyncClient()

    async def main() -> None:
        assert (await client.get(upstream.url())).text == "hello"

    for backend in [*BACKENDS, *BACKENDS]:
        run(backend, main)


def test_the_loops_of_several_threads(upstream: Upstream) -> None:
    client = AsyncClient()
    failures: list[BaseException] = []

    async def main() -> None:
        for _ in range(20):
            responses = await asyncio.gather(*(client.get(upstream.url()) for _ in range(5)))
            assert {r.text for r in responses} == {"hello"}

    def thread(backend: str) -> None:
        try:
            run(backend, main)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=thread, args=(("asyncio", "uvloop")[n % 2],)) for n in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not failures


def test_connections_of_a_closed_loop_are_closed(upstream: Upstream) -> None:
    client = AsyncClient()

    async def main() -> None:
        await client.get(upstream.url())

    for _ in range(5):
        asyncio.run(main())
    client.pool_status()  # any use of the client cleans up after closed loops
    _until(lambda: upstream.open == 0)


def test_an_unreferenced_client_closes_its_connections(upstream: Upstream) -> None:
    async def main() -> None:
        client = AsyncClient()
        await client.get(upstream.url())
        last = client.get(upstream.url("/delay?ms=50"))
        del client
        gc.collect()
        assert (await last).text == "late"
        del last
        gc.collect()
        # In this loop, which runs nothing else.
        for _ in range(200):
            if upstream.open == 0:
                break
            await asyncio.sleep(0.1)
        assert upstream.open == 0

    asyncio.run(main())


@pytest.mark.parametrize("backend", BACKENDS)
def test_aclose_lets_calls_end(backend: str, upstream: Upstream) -> None:
    async def main() -> None:
        client = AsyncClient()
        await client.get(upstream.url())
        call = client.get(upstream.url("/delay?ms=100"))
        await client.aclose()
        assert (await call).text == "late"

    run(backend, main)
    _until(lambda: upstream.open == 0)


def test_a_child_of_fork_uses_connections_of_its_own(upstream: Upstream) -> None:
    """Warm connection, fork, both call: neither gets the other's response, and the parent's connection stays in use."""
    client = AsyncClient()
    program = textwrap.dedent(f"""
        import asyncio, os, sys, towline
        client = towline.AsyncClient()
        async def many(body):
            for _ in range(20):
                r = await client.post("{upstream.url("/echo")}", content=body)
                assert r.content == body, r.content
            return r
        loop = asyncio.new_event_loop()
        loop.run_until_complete(many(b"warm"))
        child = os.fork()
        if child == 0:
            try:
                asyncio.run(many(b"child"))
                os._exit(0)
            except BaseException as error:
                print(repr(error), file=sys.stderr)
                os._exit(1)
        r = loop.run_until_complete(many(b"parent"))
        assert r.reused
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        r = loop.run_until_complete(many(b"parent"))
        assert r.reused
        loop.run_until_complete(client.aclose())
        loop.close()
    """)
    completed = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program], capture_output=True, timeout=60, check=False
    )
    assert (completed.returncode, completed.stderr) == (0, b""), completed.stderr.decode()
    assert upstream.connections == 2
    del client


@pytest.mark.parametrize("close", ["await client.aclose()", "pass", "client.get(URL)", "sys.exit(0)"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_exit_prints_nothing_but_a_forgotten_await(backend: str, close: str, upstream: Upstream) -> None:
    runner = {"asyncio": "asyncio.run(main())", "uvloop": "uvloop.run(main())", "trio": "trio.run(main)"}[
        backend
    ]
    program = textwrap.dedent(f"""
        import asyncio, sys, towline
        import {backend}
        URL = "{upstream.url()}"
        client = towline.AsyncClient()
        async def main():
            await client.get(URL)
            {close}
        {runner}
    """)
    completed = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        timeout=60,
        check=False,
        # A client that is not closed gives a ResourceWarning, which is ignored by default.
        env={**os.environ, "PYTHONWARNINGS": "error" if "aclose" in close else ""},
    )
    assert (completed.returncode, completed.stdout) == (0, b"")
    warning = b"coroutine 'AsyncClient.get' was never awaited" * (close == "client.get(URL)")
    assert warning in completed.stderr
    assert b"Traceback" not in completed.stderr
    assert bool(completed.stderr) == bool(warning)


def _until(condition: object) -> None:
    import time

    deadline = time.monotonic() + 20
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)
