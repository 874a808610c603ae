"""WebSockets used by several threads or tasks at once, cancelled, or idle."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import towline
import trio
from websockets.sync.server import ServerConnection

from tests.support.process import python
from tests.support.websocket_clients import echo, peer

MAX_WAIT = 10.0
LARGE = 200 * 1024


def test_one_thread_sends_while_another_receives() -> None:
    # More is under way than both systems hold: neither may wait for the other.
    with peer(echo, compression=None) as url, towline.Client() as client:
        with client.websocket(url, compression=False) as ws, ThreadPoolExecutor(1) as pool:
            sender = pool.submit(lambda: [ws.send(bytes([number]) * LARGE) for number in range(100)])
            for number in range(100):
                assert ws.recv(timeout=MAX_WAIT) == bytes([number]) * LARGE
            sender.result(MAX_WAIT)


def test_one_task_sends_while_another_receives() -> None:
    async def main(url: str) -> None:
        async with towline.AsyncClient() as client, client.websocket(url, compression=False) as ws:

            async def send() -> None:
                for number in range(100):
                    await ws.send(bytes([number]) * LARGE)

            sender = asyncio.create_task(send())
            for number in range(100):
                assert await ws.recv(timeout=MAX_WAIT) == bytes([number]) * LARGE
            await sender

    with peer(echo, compression=None) as url:
        asyncio.run(main(url))


def test_messages_of_many_tasks_are_not_interleaved() -> None:
    async def main(url: str) -> None:
        async with towline.AsyncClient() as client, client.websocket(url, compression=False) as ws:
            tasks = [asyncio.create_task(ws.send(bytes([number]) * LARGE)) for number in range(50)]
            received = {await ws.recv(timeout=MAX_WAIT) for _ in range(50)}
            await asyncio.gather(*tasks)
            assert received == {bytes([number]) * LARGE for number in range(50)}

    with peer(echo, compression=None) as url:
        asyncio.run(main(url))


def test_a_second_receiver_is_refused() -> None:
    async def main(url: str) -> None:
        async with towline.AsyncClient() as client, client.websocket(url) as ws:
            first = asyncio.create_task(ws.recv())  # type: ignore[var-annotated,arg-type]
            await asyncio.sleep(0)
            with pytest.raises(towline.UsageError, match="receive in one"):
                await ws.recv()
            await ws.send("x")
            assert await first == "x"
            await ws.send("y")
            assert await ws.recv() == "y"

    with peer(echo) as url:
        asyncio.run(main(url))
        with towline.Client() as client, client.websocket(url) as ws, ThreadPoolExecutor(1) as pool:
            first = pool.submit(ws.recv, MAX_WAIT)
            # The second of the two is refused.
            refused = []
            while not refused and not first.done():
                try:
                    ws.recv(timeout=0)
                except towline.ReadTimeout:
                    pass
                except towline.UsageError as error:
                    refused.append(error)
            if refused:
                ws.send("x")
                assert first.result(MAX_WAIT) == "x"
            else:
                assert isinstance(first.exception(), towline.UsageError)


def test_close_ends_a_wait_for_messages() -> None:
    async def main(url: str) -> None:
        async with towline.AsyncClient() as client, client.websocket(url) as ws:
            waiting = asyncio.create_task(ws.recv())  # type: ignore[var-annotated,arg-type]
            await asyncio.sleep(0)
            await ws.close()
            with pytest.raises(towline.WebSocketClosed):
                await waiting

    with peer(echo) as url:
        asyncio.run(main(url))
        with towline.Client() as client, client.websocket(url) as ws, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(ws.recv, MAX_WAIT)
            ws.close()
            assert isinstance(waiting.exception(MAX_WAIT), towline.WebSocketClosed)


def test_cancelled_receivers_leave_the_message() -> None:
    go = threading.Event()

    def handler(ws: ServerConnection) -> None:
        for number in range(20):
            go.wait(MAX_WAIT)
            go.clear()
            ws.send(str(number))

    async def main(url: str) -> None:
        async with towline.AsyncClient() as client, client.websocket(url) as ws:
            for number in range(20):
                task = asyncio.create_task(ws.recv())  # type: ignore[var-annotated,arg-type]
                if number % 2:
                    await asyncio.sleep(0)
                task.cancel()
                go.set()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert await ws.recv(timeout=MAX_WAIT) == str(number)

    async def in_trio(url: str) -> None:
        async with towline.AsyncClient() as client, client.websocket(url) as ws:
            for number in range(20):
                with trio.move_on_after(0.001):
                    await ws.recv()
                go.set()
                assert await ws.recv(timeout=MAX_WAIT) == str(number)

    with peer(handler) as url:
        asyncio.run(main(url))
        trio.run(in_trio, url)


def test_pings_are_answered_while_the_program_does_something_else() -> None:
    pongs = threading.Event()

    def handler(ws: ServerConnection) -> None:
        ws.send("one")
        ws.send("two")
        if ws.ping().wait(MAX_WAIT):
            pongs.set()
        list(ws)

    async def main(url: str) -> None:
        async with towline.AsyncClient() as client, client.websocket(url) as ws:
            assert await ws.recv() == "one"
            assert await ws.recv() == "two"
            # No call receives or sends.
            assert await asyncio.to_thread(pongs.wait, MAX_WAIT)

    with peer(handler) as url:
        asyncio.run(main(url))


def test_an_unreferenced_websocket_leaves_nothing_behind() -> None:
    async def main(url: str) -> None:
        async with towline.AsyncClient() as client:
            ws = await client.websocket(url)
            await ws.send("x")
            assert client.pool_status()["active"] == 1
            del ws
            gc.collect()
            assert client.pool_status()["active"] == 0

    with peer(echo) as url:
        asyncio.run(main(url))


def test_an_interrupt_ends_a_wait_and_a_fork_does_not() -> None:
    script = """
        import os, signal, sys, threading, towline

        def refuse(number, frame):
            raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, refuse)
        with towline.Client() as client, client.websocket(sys.argv[1]) as ws:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            try:
                ws.recv()
            except KeyboardInterrupt:
                pass
            child = os.fork()
            if child == 0:
                try:
                    ws.send("from the child")
                except towline.ReadError:
                    del ws
                    os._exit(0)
                os._exit(1)
            assert os.waitpid(child, 0)[1] == 0
            ws.send("hello")
            assert ws.recv() == "hello"
        print("done")
    """
    with peer(echo) as url:
        completed = python(script, url)
        assert (completed.stdout, completed.returncode) == ("done\n", 0), completed.stderr
