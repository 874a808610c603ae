"""A call of `AsyncClient` is used as a coroutine: before the loop runs, from another thread, and forgotten."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import towline
from towline import AsyncClient, Client

from tests.support.asyncio_client import BACKENDS, Upstream, run
from tests.support.asyncio_client import upstream as upstream


def new_loop(name: str) -> asyncio.AbstractEventLoop:
    if name == "uvloop":
        import uvloop

        made: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        return made
    return asyncio.new_event_loop()


# A call on the fast path, one that needs Python, and one that retries.
CALLS: list[Callable[[AsyncClient, str], Any]] = [
    lambda client, url: client.get(url),
    lambda client, url: client.post(url, json={}, auth=("user", "password")),
    lambda client, url: client.request("GET", url, retries=1),
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_run(backend: str, call: Any, upstream: Upstream) -> None:
    client = AsyncClient()
    if backend == "trio":
        assert run(backend, call, client, upstream.url()).status_code == 200
    else:
        loop = new_loop(backend)
        assert loop.run_until_complete(call(client, upstream.url())).status_code == 200
        task = loop.create_task(call(client, upstream.url()))
        assert loop.run_until_complete(task).status_code == 200
        both = asyncio.gather(*(loop.create_task(call(client, upstream.url())) for _ in range(2)))
        assert [response.status_code for response in loop.run_until_complete(both)] == [200, 200]
        loop.run_until_complete(client.aclose())
        loop.close()


@pytest.mark.parametrize("call", CALLS)
def test_asyncio_run(call: Any, upstream: Upstream) -> None:
    client = AsyncClient()
    assert asyncio.run(call(client, upstream.url())).status_code == 200
    asyncio.run(client.aclose())


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("backend", ["asyncio", "uvloop"])
def test_from_another_thread(backend: str, call: Any, upstream: Upstream) -> None:
    loop = new_loop(backend)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    client = AsyncClient()
    try:
        made = call(client, upstream.url())
        assert asyncio.run_coroutine_threadsafe(made, loop).result(10).status_code == 200
        asyncio.run_coroutine_threadsafe(client.aclose(), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_a_call_without_a_loop_cannot_be_stepped(upstream: Upstream) -> None:
    client = AsyncClient()
    with pytest.raises(RuntimeError, match="no running event loop"):
        client.get(upstream.url()).send(None)


@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_forgotten_await_warns(backend: str, is_running: bool, upstream: Upstream) -> None:
    client = AsyncClient()

    def forget() -> None:
        client.get(upstream.url())
        client.post(upstream.url(), auth=("user", "password"))
        client.request("PROPFIND", upstream.url())

    async def main() -> None:
        forget()
        response = await client.get(upstream.url())
        closed = client.get(upstream.url())
        closed.close()
        del closed, response
        gc.collect()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if is_running:
            run(backend, main)
        else:
            forget()
        gc.collect()
    texts = [str(one.message) for one in caught if one.category is RuntimeWarning]
    assert texts == [
        f"coroutine 'AsyncClient.{name}' was never awaited" for name in ("get", "post", "request")
    ]
    assert {one.filename for one in caught if one.category is RuntimeWarning} == {__file__}


def make_and_drop(kind: Any) -> None:
    kind()
    gc.collect()


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_an_unclosed_client_warns(kind: Any) -> None:
    with pytest.warns(ResourceWarning, match=f"unclosed <towline.{kind.__name__}"):
        make_and_drop(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Client() as client:
            assert not client.is_closed

        async def main() -> None:
            async with AsyncClient() as client:
                assert not client.is_closed

        asyncio.run(main())
        with pytest.raises(towline.ConfigError):
            kind(timeout="never")
        gc.collect()
