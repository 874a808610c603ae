"""Servers in threads of one process, and their objects in threads other than their own."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sysconfig
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import towline

from tests.free_threading.threads import run_all, short_turns
from tests.support.asgi_server import respond, serving
from tests.support.wsgi_server import serving as serving_wsgi

IS_FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


@contextmanager
def two_loops(app: Any) -> Iterator[str]:
    """Two servers on one listening socket, each in a thread of its own."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        port = listener.getsockname()[1]
        # Each takes a descriptor of its own.
        configs = [
            towline.ServerConfig(app=app, bind=[f"fd://{os.dup(listener.fileno())}"], lifespan="off")
            for _ in range(2)
        ]
        servers = [towline.Server(config) for config in configs]
        threads = [threading.Thread(target=asyncio.run, args=(server.serve(),)) for server in servers]
        for thread in threads:
            thread.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            for server in servers:
                server.stop()
            for thread in threads:
                thread.join(20)
            assert not any(thread.is_alive() for thread in threads)


def test_two_loops_serve_one_socket() -> None:
    seen: set[int] = set()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.add(threading.get_ident())
        message = await receive()
        if scope["path"] == "/later":
            await asyncio.sleep(0.001)
        body = {"thread": threading.get_ident(), "path": scope["path"], "length": len(message["body"])}
        await respond(send, json.dumps(body).encode(), headers=[(b"x-path", scope["raw_path"])])

    def calls(number: int) -> None:
        for turn in range(40):
            # A connection of its own: the kernel gives it to one of the loops.
            with towline.Client(base_url=url) as client:
                for path in ("/now", "/later", f"/{number}/{turn}"):
                    response = client.post(path, content=b"x" * turn)
                    found = response.json()
                    assert (found["path"], found["length"]) == (path, turn)
                    assert response.headers["x-path"] == path

    with short_turns(), two_loops(app) as url:
        run_all(*(lambda number=number: calls(number) for number in range(8)))
    assert len(seen) == 2


@pytest.mark.skipif(not IS_FREE_THREADED, reason="with the GIL nothing is checked")
def test_send_and_receive_belong_to_the_thread_of_the_loop() -> None:
    raised: list[str] = []

    def call(function: Callable[[], Any]) -> None:
        try:
            function()
        except RuntimeError as error:
            raised.append(str(error))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        start = {"type": "http.response.start", "status": 418, "headers": []}
        awaitable = receive()
        await asyncio.to_thread(call, lambda: send(start))
        await asyncio.to_thread(call, lambda: awaitable.send(None))
        assert (await awaitable)["body"] == b"body"
        await respond(send, b"fine")

    with serving(app) as server:
        assert server.get("/", "POST", body=b"body")[::2] == (200, b"fine")
    assert len(raised) == 2
    assert all("event loop of another thread" in text for text in raised)


def test_a_task_is_looked_at_from_another_thread() -> None:
    """As monitors do."""
    loops: list[asyncio.AbstractEventLoop] = []
    stop = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0.002)
        await respond(send)

    def look() -> int:
        found = 0
        while not stop.is_set():
            for loop in loops[-1:]:
                for task in asyncio.all_tasks(loop):
                    found += len(task.get_stack(limit=2)) + len(repr(task.get_coro().__qualname__))
        return found

    def calls() -> None:
        try:
            with towline.Client() as client:
                for _ in range(100):
                    assert client.get(f"http://127.0.0.1:{server.port}/").status_code == 200
        finally:
            stop.set()

    with short_turns(), serving(app) as server:
        run_all(calls, look)
    assert not [text for text in server.errors() if "panic" in text.lower()]


def test_the_message_changes_while_it_is_sent() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        message: dict[str, Any] = {"type": "http.response.start", "status": 200, "headers": []}
        stop = threading.Event()

        def change() -> None:
            while not stop.is_set():
                for number in range(20):
                    message[f"extra{number}"] = number
                for number in range(20):
                    del message[f"extra{number}"]

        thread = threading.Thread(target=change)
        thread.start()
        await asyncio.sleep(0)
        await send(message)
        stop.set()
        await asyncio.to_thread(thread.join)
        await send({"type": "http.response.body", "body": b"ok"})

    with short_turns(), serving(app) as server:
        for _ in range(100):
            assert server.get()[0] == 200


def test_wsgi_views_in_eight_threads_with_bodies_read_elsewhere() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        parts: list[bytes] = []

        def read() -> None:
            while part := environ["wsgi.input"].read(10_000):
                parts.append(part)

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        start_response("200 OK", [("content-type", "text/plain"), ("x-path", environ["PATH_INFO"])])
        return [b"%d" % sum(map(len, parts)), b" ", environ["PATH_INFO"].encode()]

    def calls(number: int) -> None:
        with towline.Client(base_url=f"http://127.0.0.1:{server.port}") as client:
            for turn in range(15):
                response = client.post(f"/{number}/{turn}", content=b"x" * 90_000)
                assert response.text == f"90000 /{number}/{turn}"
                assert response.headers["x-path"] == f"/{number}/{turn}"

    with short_turns(), serving_wsgi(app, threads=8) as server:
        run_all(*(lambda number=number: calls(number) for number in range(8)))


def test_callables_that_a_wsgi_application_has_kept() -> None:
    """Another thread has them while the next requests run: they are not used again."""
    kept: list[Any] = []

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        if len(kept) < 50:
            kept.append((start_response, environ["wsgi.early_hints"]))
        start_response("200 OK", [])
        return [environ["PATH_INFO"].encode()]

    def misuse() -> int:
        refused = 0
        for _ in range(300):
            for start_response, _ in kept[:]:
                try:
                    start_response("500 Wrong", [])
                except Exception:
                    refused += 1
        return refused

    def calls(number: int) -> None:
        with towline.Client(base_url=f"http://127.0.0.1:{server.port}") as client:
            for turn in range(60):
                assert client.get(f"/{number}/{turn}").text == f"/{number}/{turn}"

    with short_turns(), serving_wsgi(app, threads=4) as server:
        run_all(misuse, *(lambda number=number: calls(number) for number in range(4)))
