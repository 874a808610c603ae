"""The awaitable of a call: everything that a program does with a coroutine, and thousands of cancels."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import random
import sys
import warnings
from typing import Any

import pytest
import towline
from towline import AsyncClient

from tests.support.asyncio_client import BACKENDS, Upstream, run, sleep
from tests.support.asyncio_client import upstream as upstream

LOOPS = ["asyncio", "uvloop"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_plain_call(backend: str, upstream: Upstream) -> None:
    async def main() -> None:
        async with AsyncClient() as client:
            for _ in range(3):
                response = await client.get(upstream.url())
                assert (response.status_code, response.content, response.text) == (200, b"hello", "hello")
                assert response.headers["x-case"] == "Kept"
                assert response.elapsed.total_seconds() > 0
            posted = await client.post(upstream.url("/echo"), json={"a": ["é", 1]})
            assert posted.json() == {"a": ["é", 1]}
            assert (await client.head(upstream.url())).content == b""
            assert (await client.get(upstream.url("/gzip"))).content == b"zipped " * 1000
            assert (await client.get(upstream.url("/chunked?n=12"))).content.startswith(b"piece0piece1")
            for size in (0, 1, 65536, 300_000, 3_000_000):
                assert len((await client.get(upstream.url(f"/bytes?n={size}"))).content) == size
        assert upstream.connections == 1

    run(backend, main)


@pytest.mark.parametrize("backend", LOOPS)
def test_a_call_is_accepted_wherever_a_coroutine_is(backend: str, upstream: Upstream) -> None:
    async def main() -> None:
        async with AsyncClient() as client:
            url = upstream.url()
            assert (await asyncio.create_task(client.get(url))).text == "hello"
            assert (await asyncio.ensure_future(client.get(url))).text == "hello"
            assert (await asyncio.wait_for(client.get(url), 5)).text == "hello"
            assert (await asyncio.shield(client.get(url))).text == "hello"
            assert [r.text for r in await asyncio.gather(*(client.get(url) for _ in range(50)))] == [
                "hello"
            ] * 50
            done, _ = await asyncio.wait([asyncio.create_task(client.get(url)) for _ in range(5)])
            assert {task.result().text for task in done} == {"hello"}
            for first in asyncio.as_completed([client.get(url), client.get(url)]):
                assert (await first).text == "hello"
            if sys.version_info >= (3, 11):
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(client.get(url)) for _ in range(5)]
                assert {task.result().text for task in tasks} == {"hello"}

    run(backend, main)


@pytest.mark.parametrize("backend", LOOPS)
def test_a_task_keeps_its_context(backend: str, upstream: Upstream) -> None:
    name: contextvars.ContextVar[int] = contextvars.ContextVar("name")

    async def one(client: AsyncClient, number: int) -> None:
        name.set(number)
        for _ in range(5):
            await client.get(upstream.url())
            assert name.get() == number
            task = asyncio.current_task()
            assert task is not None
            assert task.get_name() == str(number)

    async def main() -> None:
        async with AsyncClient() as client:
            await asyncio.gather(*(asyncio.create_task(one(client, n), name=str(n)) for n in range(20)))
            with pytest.raises(LookupError):
                name.get()

    run(backend, main)


@pytest.mark.parametrize("backend", LOOPS)
def test_a_timeout_of_wait_for_frees_the_connection(backend: str, upstream: Upstream) -> None:
    async def main() -> None:
        limits = towline.Limits(max_connections=1)
        async with AsyncClient(limits=limits) as client:
            for _ in range(3):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(client.get(upstream.url("/hang")), 0.05)
                assert (await client.get(upstream.url())).text == "hello"
            task = asyncio.create_task(client.get(upstream.url("/hang")))
            await asyncio.sleep(0.02)
            task.cancel("enough")
            with pytest.raises(asyncio.CancelledError):
                await task
            assert task.cancelled()
            assert (await client.get(upstream.url())).text == "hello"

    run(backend, main)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_unawaited_call_is_cancelled_silently(backend: str, upstream: Upstream) -> None:
    async def main() -> None:
        async with AsyncClient(limits=towline.Limits(max_connections=1)) as client:
            client.get(upstream.url("/hang"))
            client.get(upstream.url("/hang"), params={"not": "plain"})
            gc.collect()
            assert (await client.get(upstream.url())).text == "hello"

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(backend, main)


@pytest.mark.parametrize("arguments", [{}, {"auth": ("user", "password")}], ids=["fast", "in Python"])
def test_a_call_is_awaited_once(upstream: Upstream, arguments: dict[str, Any]) -> None:
    async def main() -> None:
        async with AsyncClient() as client:
            call = client.get(upstream.url(), **arguments)
            await call
            with pytest.raises(RuntimeError):
                await call
            call = client.get(upstream.url("/delay?ms=50"), **arguments)
            both = await asyncio.gather(_await(call), _await(call), return_exceptions=True)
            assert sum(isinstance(one, RuntimeError) for one in both) == 1
            assert sum(isinstance(one, towline.Response) for one in both) == 1

    run("asyncio", main)


async def _await(call: Any) -> Any:
    return await call


def test_system_exit_in_a_task_leaves_the_loop_and_wakes_other_tasks(upstream: Upstream) -> None:
    """SystemExit passes through the turn; the other tasks of that turn are woken all the same."""
    finished = []

    async def exit_task(client: AsyncClient) -> None:
        await client.get(upstream.url())
        raise SystemExit(3)

    async def finish(client: AsyncClient, number: int) -> None:
        await client.get(upstream.url())
        finished.append(number)

    loop = asyncio.new_event_loop()
    client = AsyncClient()
    tasks = [loop.create_task(exit_task(client)), *(loop.create_task(finish(client, n)) for n in range(10))]
    with pytest.raises(SystemExit):
        loop.run_until_complete(asyncio.gather(*tasks))
    loop.run_until_complete(asyncio.wait_for(asyncio.gather(*tasks[1:]), 5))
    assert sorted(finished) == list(range(10))
    loop.run_until_complete(client.aclose())
    loop.close()


@pytest.mark.parametrize("backend", LOOPS)
def test_thousands_of_cancels_at_every_await(backend: str, upstream: Upstream) -> None:
    """Calls are cancelled at any moment, in any state; then 20 of 20 succeed."""
    rng = random.Random(1)
    targets = ["/hello", "/delay?ms=5", "/hang", "/bytes?n=200000", "/chunked?n=3"]

    async def stream(client: AsyncClient) -> None:
        async with client.stream("GET", upstream.url(rng.choice(targets))) as response:
            async for _ in response.aiter_bytes():
                pass

    async def upload(client: AsyncClient) -> None:
        async def pieces() -> Any:
            for _ in range(5):
                yield b"x" * 10_000
                await asyncio.sleep(rng.random() / 500)

        await client.post(upstream.url("/echo"), content=pieces())

    async def plain(client: AsyncClient) -> None:
        await client.get(upstream.url(rng.choice(targets)))

    async def main() -> None:
        limits = towline.Limits(max_connections=20)
        async with AsyncClient(limits=limits) as client:
            for _ in range(40):
                coroutines = [rng.choice([plain, plain, stream, upload])(client) for _ in range(50)]
                tasks = [asyncio.create_task(one) for one in coroutines]
                for task in tasks:
                    asyncio.get_running_loop().call_later(rng.random() / 50, task.cancel)
                outcomes = await asyncio.gather(*tasks, return_exceptions=True)
                bad = [o for o in outcomes if o is not None and not isinstance(o, asyncio.CancelledError)]
                assert not bad, bad
            calls = [client.get(upstream.url(), timeout=5) for _ in range(20)]
            assert [r.text for r in await asyncio.gather(*calls)] == ["hello"] * 20
            await asyncio.sleep(0.1)
            status = client.pool_status()
            assert (status["active"], status["waiting"]) == (0, 0), status
        assert upstream.connections < 4000

    run(backend, main)


def test_cancels_in_trio(upstream: Upstream) -> None:
    import trio

    rng = random.Random(2)

    async def one(client: AsyncClient) -> None:
        with trio.move_on_after(rng.random() / 50):
            target = rng.choice(["/hello", "/delay?ms=5", "/hang"])
            if rng.random() < 0.5:
                await client.get(upstream.url(target))
            else:
                async with client.stream("GET", upstream.url(target)) as response:
                    await response.aread()

    async def main() -> None:
        async with AsyncClient(limits=towline.Limits(max_connections=20)) as client:
            for _ in range(20):
                async with trio.open_nursery() as nursery:
                    for _ in range(50):
                        nursery.start_soon(one, client)
            responses = []

            async def get() -> None:
                responses.append((await client.get(upstream.url(), timeout=5)).text)

            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(get)
            assert responses == ["hello"] * 20

    trio.run(main)


@pytest.mark.parametrize("backend", LOOPS)
def test_four_thousand_at_once(backend: str, upstream: Upstream) -> None:
    async def main() -> None:
        async with AsyncClient() as client:
            calls = [client.get(upstream.url()) for _ in range(4000)]
            assert {r.text for r in await asyncio.gather(*calls)} == {"hello"}
        assert upstream.connections <= 100

    run(backend, main)


def test_errors_are_raised_where_the_call_is_awaited(upstream: Upstream) -> None:
    async def main() -> None:
        async with AsyncClient() as client:
            call = client.get(upstream.url("/gone"))
            await sleep(0.05)
            with pytest.raises(towline.ServerDisconnected) as caught:
                await call
            assert caught.value.phase == "head"
            assert caught.value.bytes_sent > 0
            with contextlib.suppress(towline.TransportError):
                await asyncio.gather(client.get(upstream.url("/gone")), client.get(upstream.url("/gone")))
            assert (await client.get(upstream.url())).text == "hello"

    run("asyncio", main)


def test_without_a_loop_is_a_clear_error() -> None:
    client = AsyncClient()
    call = client.get("http://127.0.0.1:1/")
    with pytest.raises(RuntimeError, match="no running event loop"):
        call.send(None)
