"""`receive()` of an application: the body on demand, and the client's disconnect."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from typing import Any

import pytest
from towline.errors import ClientDisconnected

from tests.support.asgi_server import LOOPS, Receive, Scope, Send, read_body, respond, serving
from tests.support.sockets import read_all
from tests.support.waiting import until

pytestmark = pytest.mark.parametrize("loop", LOOPS)


def post(data: bytes, *fields: bytes) -> bytes:
    lines = [b"POST / HTTP/1.1", b"Host: a", b"Connection: close", b"Content-Length: %d" % len(data), *fields]
    return b"\r\n".join(lines) + b"\r\n\r\n" + data


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    await respond(send, await read_body(receive))


@pytest.mark.parametrize("size", [0, 1, 65536, 65537, 2_000_000])
def test_echo(loop: str, size: int) -> None:
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    with serving(echo, loop) as served:
        assert served.get(method="POST", body=data)[2] == data
        parts = [data[at : at + 70_000] for at in range(0, size, 70_000)]
        assert served.get(method="POST", body=iter(parts), encode_chunked=True)[2] == data


def test_messages_are_bounded(loop: str) -> None:
    sizes: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        more = True
        while more:
            message = await receive()
            sizes.append(len(message["body"]))
            more = message["more_body"]
        await respond(send)

    with serving(app, loop) as served:
        assert served.get(method="POST", body=b"x" * 1_000_000)[0] == 200
    assert max(sizes) <= 65536
    assert sum(sizes) == 1_000_000


def test_a_request_without_body_gives_one_empty_message(loop: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert await receive() == {"type": "http.request", "body": b"", "more_body": False}
        await respond(send)
        assert await receive() == {"type": "http.disconnect"}
        assert await receive() == {"type": "http.disconnect"}

    with serving(app, loop) as served:
        assert served.get()[0] == 200
        assert served.log == []


def test_continue_is_sent_when_the_application_receives(loop: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/":
            await read_body(receive)
        await respond(send)

    wire = post(b"body", b"Expect: 100-continue")
    head, body = wire[:-4], wire[-4:]
    with serving(app, loop) as served, served.connect() as conn:
        conn.sendall(head)
        assert conn.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        conn.sendall(body)
        assert read_all(conn).startswith(b"HTTP/1.1 200")
    with serving(app, loop) as served, served.connect() as conn:
        conn.sendall(head.replace(b"POST /", b"POST /unread"))
        assert conn.recv(100).startswith(b"HTTP/1.1 200")


def test_the_body_is_not_read_before_the_application_receives(loop: str) -> None:
    go = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await go.wait()
        await respond(send, b"%d" % len(await read_body(receive)))

    data = b"x" * 30_000_000
    with serving(app, loop) as served, served.connect() as conn:
        conn.sendall(post(data)[: -len(data)])
        conn.setblocking(False)
        sent = 0
        for _ in range(30):
            try:
                sent += conn.send(data[sent:])
            except BlockingIOError:
                time.sleep(0.01)
        # Bytes that the kernel's buffers hold, and one window of ours.
        assert sent < 15_000_000
        conn.setblocking(True)
        served.call(go.set)
        conn.sendall(data[sent:])
        assert read_all(conn).endswith(b"\r\n\r\n30000000")


def test_a_slow_reader_holds_the_sender_back(loop: str) -> None:
    sent: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200})
        for _ in range(1000):
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            sent.append(65536)
        await send({"type": "http.response.body"})

    with serving(app, loop) as served, served.connect() as conn:
        conn.sendall(b"GET / HTTP/1.0\r\nHost: a\r\n\r\n")
        time.sleep(0.4)
        before = sum(sent)
        assert before < 20_000_000
        reply = read_all(conn)
        assert len(reply.partition(b"\r\n\r\n")[2]) == 65_536_000


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_disconnect_wakes_receive_at_once(loop: str, how: str) -> None:
    called, woken = threading.Event(), threading.Event()
    messages: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        called.set()
        messages.append(await receive())
        woken.set()

    with serving(app, loop) as served:
        conn = served.connect()
        conn.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert called.wait(10)
        if how == "reset":
            conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        conn.close()
        assert woken.wait(10)
    assert messages == [{"type": "http.disconnect"}]
    assert served.log == [] or how == "close"


def test_sending_after_a_disconnect_raises(loop: str) -> None:
    raised: list[BaseException] = []
    over = threading.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200})
            while True:
                await send({"type": "http.response.body", "body": b"x" * 1000, "more_body": True})
                await asyncio.sleep(0.005)
        except OSError as error:
            raised.append(error)
            raise
        finally:
            over.set()

    with serving(app, loop) as served:
        conn = served.connect()
        conn.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        conn.recv(1000)
        conn.close()
        assert over.wait(10)
        served.call(lambda: None)
        assert served.log == []
    assert isinstance(raised[0], ClientDisconnected)


def test_a_half_closed_client_gets_its_answer(loop: str) -> None:
    messages: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        messages.append(await receive())
        await respond(send, b"late")

    with serving(app, loop) as served, served.connect() as conn:
        conn.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        conn.shutdown(socket.SHUT_WR)
        assert read_all(conn).endswith(b"late")
    assert messages == [{"type": "http.disconnect"}]


def test_a_truncated_body_is_a_disconnect(loop: str) -> None:
    messages: list[Any] = []
    over = threading.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            messages.append(message)
            if message["type"] != "http.request" or not message["more_body"]:
                break
        over.set()

    with serving(app, loop) as served:
        with served.connect() as conn:
            conn.sendall(post(b"x" * 100)[:-50])
            time.sleep(0.1)
        assert over.wait(10)
    assert messages[-1] == {"type": "http.disconnect"}
    assert all(message.get("more_body", True) for message in messages)


def test_waiting_for_a_disconnect_beside_the_response(loop: str) -> None:
    """As frameworks do: a task awaits `receive()`, and is cancelled or left when the response is complete."""
    ends: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        listening = asyncio.ensure_future(receive())  # type: ignore[arg-type]
        await asyncio.sleep(0.001)
        await respond(send)
        ends.append(await listening)

    with serving(app, loop) as served:
        assert served.get()[0] == 200
        assert served.get()[0] == 200
    assert ends == [{"type": "http.disconnect"}] * 2


def test_a_wait_that_is_cancelled_loses_nothing(loop: str) -> None:
    given_up = threading.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for _ in range(20):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(receive(), 0.001)
        given_up.set()
        await respond(send, await read_body(receive))

    wire = post(b"body")
    with serving(app, loop) as served, served.connect() as conn:
        conn.sendall(wire[:-4])
        assert given_up.wait(10)
        conn.sendall(b"body")
        assert read_all(conn).endswith(b"\r\n\r\nbody")


def test_an_unread_body_does_not_become_a_request(loop: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, scope["path"].encode())

    inner = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
    with serving(app, loop) as served:
        wire = post(inner).replace(b"Connection: close\r\n", b"")
        reply = served.raw(wire + b"GET /next HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert b"smuggled" not in reply
    assert reply.endswith(b"/next")


def test_draining(loop: str) -> None:
    called, go = threading.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/busy":
            called.set()
            await go.wait()
        await respond(send)

    with serving(app, loop) as served:
        idle = served.connect()
        idle.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b"200 OK" in idle.recv(1000)
        with served.connect() as busy:
            busy.sendall(b"GET /busy HTTP/1.1\r\nHost: a\r\n\r\n")
            assert called.wait(10)
            served.call(served.server.stop_listening)
            served.call(served.server.drain)
            assert idle.recv(1000) == b""
            served.call(go.set)
            reply = read_all(busy)
        assert b"200 OK" in reply
        assert b"connection: close" in reply.lower()
        until(lambda: served.server.connections == 0)


def test_cancel_all_ends_an_endless_stream(loop: str) -> None:
    ends: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200})
            while True:
                await send({"type": "http.response.body", "body": b"data: x\n\n", "more_body": True})
                await asyncio.sleep(60)
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    with serving(app, loop) as served, served.connect() as conn:
        conn.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b"data: x" in conn.recv(1000)
        assert served.server.in_flight == 1
        served.call(served.server.cancel_all)
        read_all(conn)
        until(lambda: served.server.in_flight == 0)
        assert served.log == []
    assert ends == ["cancelled"]
