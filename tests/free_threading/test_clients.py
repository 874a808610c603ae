"""Clients and responses that several threads use."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from typing import Any

import pytest
import towline

from tests.free_threading.threads import SCHEDULES, run_all, schedules


def test_one_client_serves_eight_threads(url: str) -> None:
    with towline.Client(base_url=url) as client:

        def calls(thread: int) -> None:
            for number in range(100):
                mark = f"{thread}-{number}"
                match number % 3:
                    case 0:
                        response = client.get(f"/get/{mark}", params={"q": mark}, headers={"x-number": mark})
                        expected = {"path": f"/get/{mark}", "query": f"q={mark}", "body": "", "x": mark}
                    case 1:
                        response = client.post("/post", content=mark.encode())
                        expected = {"path": "/post", "query": "", "body": mark, "x": ""}
                    case _:
                        response = client.request("PUT", f"{url}/put", json={"mark": mark})
                        expected = {"path": "/put", "query": "", "body": f'{{"mark":"{mark}"}}', "x": ""}
                assert response.json() == expected
                assert response.headers["x-echo"] == expected["path"]

        run_all(*(lambda thread=thread: calls(thread) for thread in range(8)))
        assert client.pool_status()["idle"] <= 8 * 2


def test_arguments_that_another_thread_changes_meanwhile(url: str) -> None:
    """Each request has the arguments of some moment."""
    values = {f"key{number}": str(number) for number in range(20)}
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            values["more"] = "value"
            values.pop("key3", None)
            del values["more"]
            values["key3"] = "3"

    def calls(client: towline.Client) -> None:
        try:
            for _ in range(100):
                client.get("/", params=values, headers=values)
                client.post("/", json=values)
                client.post("/", data=values)
        finally:
            stop.set()

    with towline.Client(base_url=url) as client:
        run_all(change, lambda: calls(client))


def test_a_client_is_closed_while_other_threads_call(url: str) -> None:
    for _ in range(SCHEDULES // 3):
        client = towline.Client(base_url=url)

        def calls(client: towline.Client = client) -> None:
            for _ in range(5):
                try:
                    assert client.get("/").status_code == 200
                except towline.ClientClosed:
                    return

        run_all(calls, calls, client.close)


def test_a_response_is_read_by_four_threads(url: str) -> None:
    with towline.Client() as client:
        for _ in range(SCHEDULES):
            response = client.get(f"{url}/text", params={"a": "b"})

            def read(response: towline.Response = response) -> list[Any]:
                request = response.request
                return [
                    response.text,
                    response.json(),
                    list(response.headers),
                    str(request.url),
                    response.elapsed,
                ]

            first, *others = run_all(read, read, read, read)
            assert all(other == first for other in others)


def test_a_streamed_response_is_read_by_two_threads(url: str) -> None:
    """One reads; the other is refused or reads on."""
    with towline.Client() as client:
        for _ in range(SCHEDULES // 3):
            with client.stream("GET", f"{url}/stream/30") as response:
                reply = response._reply

                def read(reply: Any = reply) -> int:
                    total = 0
                    while True:
                        try:
                            data = reply.read(700)
                        except RuntimeError as error:
                            assert "another thread is reading" in str(error)
                            continue
                        if not data:
                            return total
                        total += len(data)

                assert sum(run_all(read, read)) == 30_000


def test_orders_of_what_a_response_can_do(url: str) -> None:
    with towline.Client() as client:
        response = client.get(f"{url}/x")
        schedules(
            [
                lambda: response.text,
                lambda: response.json(),
                lambda: response.headers,
                lambda: response.request.url,
                lambda: setattr(response, "encoding", "utf-8"),
                lambda: response.timings,
                gc.collect,
            ]
        )


def test_one_async_client_serves_four_loops(url: str) -> None:
    client = towline.AsyncClient(base_url=url)

    async def calls(thread: int) -> None:
        for number in range(10):
            marks = [f"{thread}-{number}-{index}" for index in range(10)]
            responses = await asyncio.gather(*(client.post("/post", content=mark.encode()) for mark in marks))
            assert [response.json()["body"] for response in responses] == marks
            async with client.stream("GET", "/stream/5") as response:
                assert len(await response.aread()) == 5000

    run_all(*(lambda thread=thread: asyncio.run(calls(thread)) for thread in range(4)))
    asyncio.run(client.aclose())
    with pytest.raises(towline.ClientClosed):
        asyncio.run(client.get("/"))


def test_an_async_client_is_closed_while_other_loops_call(url: str) -> None:
    for _ in range(SCHEDULES // 6):
        client = towline.AsyncClient(base_url=url)

        async def calls(client: towline.AsyncClient = client) -> None:
            for _ in range(5):
                try:
                    assert (await client.get("/")).status_code == 200
                except towline.ClientClosed:
                    return

        async def close(client: towline.AsyncClient = client) -> None:
            await client.aclose()

        run_all(lambda: asyncio.run(calls()), lambda: asyncio.run(calls()), lambda: asyncio.run(close()))


def test_responses_of_a_loop_end_in_another_thread(url: str) -> None:
    """Their last reference is dropped there, or the collector runs there."""
    dropped: list[Any] = []
    stop = threading.Event()

    def drop() -> None:
        while not stop.is_set() or dropped:
            if dropped:
                dropped.pop()
                gc.collect()
            time.sleep(0.001)

    async def calls() -> None:
        async with towline.AsyncClient(base_url=url) as client:
            for number in range(100):
                response = await client.send(client.build_request("GET", "/stream/50"), stream=True)
                cycle: list[Any] = [response]
                cycle.append(cycle)
                dropped.append(cycle if number % 2 else response)
                del response, cycle
                assert (await client.get("/")).status_code == 200

    def run() -> None:
        try:
            asyncio.run(calls())
        finally:
            stop.set()

    run_all(run, drop)


def test_a_call_is_made_in_one_thread_and_awaited_in_the_loop_of_another(url: str) -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    client = towline.AsyncClient(base_url=url)
    try:
        for _ in range(SCHEDULES):
            response = asyncio.run_coroutine_threadsafe(client.get("/"), loop).result(20)
            assert response.json()["path"] == "/"
        asyncio.run_coroutine_threadsafe(client.aclose(), loop).result(20)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_a_loop_moves_to_another_thread(url: str) -> None:
    loop = asyncio.new_event_loop()
    client = towline.AsyncClient(base_url=url)

    async def call() -> int:
        return (await client.get("/")).status_code

    assert loop.run_until_complete(call()) == 200
    assert run_all(lambda: loop.run_until_complete(call())) == [200]
    assert loop.run_until_complete(call()) == 200
    loop.run_until_complete(client.aclose())
    loop.close()
