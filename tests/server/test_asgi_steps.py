"""A waiting task whose coroutine the turn steps without it: what the application, asyncio and others see of it."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Generator
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from tests.support.asgi_server import LOOPS, Receive, Scope, Send, serving
from tests.support.waiting import until
from tests.support.websocket_server import open_ws

pytestmark = pytest.mark.parametrize("loop", LOOPS)
variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)


async def accept(receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.accept"})


async def say(send: Send, text: str) -> None:
    await send({"type": "websocket.send", "text": text})


async def texts(receive: Receive) -> AsyncIterator[str]:
    while (message := await receive())["type"] == "websocket.receive":
        yield message["text"]


def this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def test_the_task_and_its_context_stay_the_same(loop: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        task = this_task()
        await accept(receive, send)
        async for text in texts(receive):
            variable.set(variable.get() + 1)
            if text == "sleep":
                await asyncio.sleep(0.001)
            same = this_task() is task and task in asyncio.all_tasks() and not task.done()
            await say(send, f"{text} {variable.get()} {same}")

    with serving(app, loop) as served, open_ws(served) as one, open_ws(served) as two:
        for number, text in enumerate(["a", "b", "sleep", "c", "sleep", "d"], 1):
            for client in (one, two):
                client.send(text)
                assert client.recv() == f"{text} {number} True"


@pytest.mark.parametrize("at", ["before waiting", "while waiting"])
def test_a_task_that_cancels_itself_is_cancelled_where_it_waits(loop: str, at: str) -> None:
    class Cancelling:
        def __init__(self, awaitable: Any) -> None:
            self.awaitable = awaitable

        def __await__(self) -> Generator[Any, Any, Any]:
            for future in self.awaitable.__await__():
                this_task().cancel()
                yield future

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await accept(receive, send)
        async for text in texts(receive):
            if text != "cancel":
                await say(send, text)
                continue
            if at == "before waiting":
                this_task().cancel()
            try:
                await (receive() if at == "before waiting" else Cancelling(receive()))
            except asyncio.CancelledError:
                await say(send, "cancelled")

    with serving(app, loop) as served, open_ws(served) as client:
        for text in ["a", "b", "cancel", "c", "cancel", "d"]:
            client.send(text)
            assert client.recv() == ("cancelled" if text == "cancel" else text)


def test_a_waiting_task_can_be_cancelled_and_loses_no_message(loop: str) -> None:
    tasks: list[asyncio.Task[Any]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        tasks.append(this_task())
        await accept(receive, send)
        while True:
            try:
                async with asyncio.timeout(30):
                    message = await receive()
            except asyncio.CancelledError:
                await say(send, "cancelled")
                continue
            if message["type"] != "websocket.receive":
                return
            await say(send, message["text"])

    with serving(app, loop) as served, open_ws(served) as client:
        for text in ["a", "b", "c"]:
            client.send(text)
            assert client.recv() == text
            served.call(tasks[0].cancel)
            assert client.recv() == "cancelled"
    until(tasks[0].done)
    assert not tasks[0].cancelled()


def test_a_timeout_ends_one_wait_only(loop: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await accept(receive, send)
        async for text in texts(receive):
            try:
                async with asyncio.timeout(0.02):
                    await receive()
            except TimeoutError:
                await say(send, f"{text} timed out")

    with serving(app, loop) as served, open_ws(served) as client:
        for text in ["a", "b"]:
            client.send(text)
            assert client.recv() == f"{text} timed out"


def test_the_wait_can_be_that_of_another_task(loop: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await accept(receive, send)
        while (message := await receive())["type"] == "websocket.receive":
            await say(send, message["text"])
            inner = await asyncio.create_task(receive())
            await say(send, f"inner {inner['text']}")

    with serving(app, loop) as served, open_ws(served) as client:
        for number in range(4):
            client.send(str(number))
            assert client.recv() == (f"inner {number}" if number % 2 else str(number))


@pytest.mark.parametrize(("word", "code"), [("return", 1000), ("raise", 1011)])
def test_the_last_step_ends_the_task(loop: str, word: str, code: int) -> None:
    tasks: list[asyncio.Task[Any]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        tasks.append(this_task())
        await accept(receive, send)
        async for text in texts(receive):
            if text == "return":
                return
            if text == "raise":
                raise ValueError("of the application")
            await say(send, text)

    with serving(app, loop) as served, open_ws(served) as client:
        for text in ["a", "b"]:
            client.send(text)
            assert client.recv() == text
        client.send(word)
        with pytest.raises(ConnectionClosed):
            client.recv()
        assert client.close_code == code
        until(tasks[0].done)
        assert served.call(lambda: served.server.in_flight) == 0
        errors = [error for _, _, error in served.log if error is not None]
        assert [str(error) for error in errors] == (["of the application"] if word == "raise" else [])
