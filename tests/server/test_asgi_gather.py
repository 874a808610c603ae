"""Responses that are sent outside of a turn, while other requests are in flight: they leave together, and none is left behind."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from tests.support.asgi_server import LOOPS, Receive, Scope, Send, respond, serving

pytestmark = pytest.mark.parametrize("loop", LOOPS)


class Requests:
    """Holds each request for `/wait` until one for `/go` comes."""

    def __init__(self) -> None:
        self.go: asyncio.Event | None = None
        self.waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.go = self.go or asyncio.Event()
        if scope["path"] == "/go":
            self.go.set()
            await respond(send, b"go")
            return
        self.waiting += 1
        await self.go.wait()
        # As Django and Quart do it.
        await asyncio.create_task(self.answer(scope["path"], send))

    async def answer(self, path: str, send: Send) -> None:
        await respond(send, path.encode(), headers=[(b"content-length", str(len(path)).encode())])
        if path == "/compute":
            time.sleep(0.005)


def begin(port: int, path: str) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=10)
    client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    return client


def body(client: socket.socket) -> bytes:
    with client, client.makefile("rb") as stream:
        return stream.read().rpartition(b"\r\n\r\n")[2]


def wait_until_waiting(app: Requests, count: int) -> None:
    deadline = time.monotonic() + 10
    while app.waiting < count:
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 200])
def test_every_response_arrives(loop: str, count: int) -> None:
    app = Requests()
    with serving(app, loop) as server:
        clients = [begin(server.port, f"/{number}") for number in range(count)]
        wait_until_waiting(app, count)
        begin(server.port, "/go").close()
        assert [body(client) for client in clients] == [f"/{number}".encode() for number in range(count)]


def test_a_response_arrives_although_another_request_goes_on(loop: str) -> None:
    app = Requests()

    async def one_goes_on(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/on":
            app.waiting += 1
            await receive()
            await receive()
        else:
            await app(scope, receive, send)

    with serving(one_goes_on, loop) as server:
        other = begin(server.port, "/on")
        first, second = begin(server.port, "/compute"), begin(server.port, "/second")
        wait_until_waiting(app, 3)
        begin(server.port, "/go").close()
        assert (body(first), body(second)) == (b"/compute", b"/second")
        other.close()


def test_clients_that_leave_before_the_flush_lose_nothing_for_others(loop: str) -> None:
    app = Requests()
    with serving(app, loop) as server:
        clients = [begin(server.port, f"/{number}") for number in range(20)]
        wait_until_waiting(app, 20)
        for client in clients[::2]:
            client.close()
        begin(server.port, "/go").close()
        assert [body(client) for client in clients[1::2]] == [
            f"/{number}".encode() for number in range(1, 20, 2)
        ]
