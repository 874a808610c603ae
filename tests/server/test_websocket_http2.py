"""WebSocket over HTTP/2 (RFC 8441): the same applications, beside other streams of the connection."""

from __future__ import annotations

import asyncio
import struct
import threading
from typing import Any

import pytest
from towline.config import ServerConfig

from tests.support.asgi_server import Receive, Scope, Send, respond, serving
from tests.support.http2_client import Client, connected_client, open_websocket
from tests.support.websocket_server import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    TEXT,
    close_frame,
    echo,
    frame,
    late_reader,
)

WINDOW = ServerConfig("").http2_initial_stream_window_size


def test_echo_beside_other_streams() -> None:
    scopes: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        await (echo(scope, receive, send) if scope["type"] == "websocket" else respond(send, b"plain"))

    with connected_client("asgi", app) as client:
        stream = open_websocket(client, "/a?b", ("sec-websocket-protocol", "x, y"))
        exchange = client.exchanges[stream]
        assert exchange.status == 200
        assert "sec-websocket-accept" not in exchange.fields
        client.write(stream, frame(TEXT, b"one") + frame(PING, b"?"))
        client.until_body(stream, 8)
        assert exchange.body == bytes([0x80 | TEXT, 3]) + b"one" + bytes([0x80 | PONG, 1]) + b"?"
        assert client.fetch().body == b"plain"
        client.write(stream, frame(BINARY, b"x" * 300_000))
        client.until_body(stream, 8 + 10 + 300_000)
        client.write(stream, close_frame(1000))
        client.until(lambda: exchange.ended)
        assert exchange.body.endswith(struct.pack("!BBH", 0x80 | CLOSE, 2, 1000))
        # The server asks for nothing more, and nothing has failed.
        assert exchange.reset in (None, 0)
        assert client.fetch().body == b"plain"
    scope = scopes[0]
    assert (scope["http_version"], scope["scheme"], scope["path"]) == ("2", "ws", "/a")
    assert scope["subprotocols"] == ["x", "y"]


def test_denials() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        if scope["path"] == "/raise":
            raise ZeroDivisionError
        await send({"type": "websocket.close"})

    with connected_client("asgi", app) as client:
        for path, status in (("/", 403), ("/raise", 500)):
            stream = open_websocket(client, path)
            assert client.exchanges[stream].status == status
            assert client.finish(stream)[0].ended


def test_a_stream_that_is_reset() -> None:
    codes: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            return await respond(send)
        await receive()
        await send({"type": "websocket.accept"})
        codes.append((await receive())["code"])
        return None

    with connected_client("asgi", app) as client:
        client.reset(open_websocket(client))
        client.until(lambda: client.fetch().status == 200 and codes)
    assert codes == [1006]


@pytest.mark.parametrize("path", ["/waits", "/closes"])
def test_streams_that_are_reset_leave_their_places(path: str) -> None:
    """Before the application has ended, and while the server waits for the answer to its close."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            return await respond(send)
        await receive()
        await send({"type": "websocket.accept"})
        if scope["path"] == "/waits":
            await receive()
        return None

    with connected_client("asgi", app, http2_max_concurrent_streams=3) as client:
        for _ in range(20):
            stream = open_websocket(client, path)
            assert client.exchanges[stream].status == 200
            if path == "/closes":
                client.until_body(stream, 4)
            client.reset(stream)
            # Answered behind the reset.
            assert client.fetch().status == 200


def test_a_slow_application_holds_up_its_own_stream() -> None:
    received: list[int] = []
    with connected_client("asgi", late_reader(received)) as client:
        slow, fast = open_websocket(client, "/slow"), open_websocket(client, "/echo")
        rest = b"".join(frame(BINARY, b"x" * 10_000) for _ in range(100))
        while room := min(client.conn.local_flow_control_window(slow), client.conn.max_outbound_frame_size):
            client.conn.send_data(slow, rest[:room])
            rest = rest[room:]
            client.flush()
        # The window of the stream is used up, but for what the server has read ahead.
        expected = 0
        for size in (1, 1000, 300_000):
            client.write(fast, frame(BINARY, b"y" * size))
            expected += len(frame(BINARY, b"y" * size, masked=False))
            client.until_body(fast, expected)
        assert len(rest) > 100 * 10_000 - 2 * WINDOW
        assert client.fetch().status == 200
        client.write(slow, rest + close_frame(1000))
        client.finish(slow)
        assert received == [10_000] * 100


def test_a_slow_client_holds_up_its_own_stream() -> None:
    sent = {"/slow": 0, "/fast": 0}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            return await respond(send)
        await receive()
        await send({"type": "websocket.accept"})
        for _ in range(100):
            await send({"type": "websocket.send", "bytes": bytes(10_000)})
            sent[scope["path"]] += 10_000
        return None

    with connected_client("asgi", app) as client:
        client.reads = set()
        slow = open_websocket(client, "/slow")
        client.reads.add(slow + 2)
        fast = open_websocket(client, "/fast")
        client.until(lambda: len(client.exchanges[fast].body) > 100 * 10_000)
        client.write(fast, close_frame(1000))
        assert client.finish(fast)[0].ended
        assert client.fetch().status == 200
        # Bytes that the client takes at first, and those that the server keeps of a stream.
        assert sent == {"/slow": sent["/slow"], "/fast": 100 * 10_000}
        assert sent["/slow"] <= 65535 + 64 * 1024 + 10_000
        client.read(slow)
        client.until(lambda: len(client.exchanges[slow].body) > 100 * 10_000)
        client.write(slow, close_frame(1000))
        assert client.finish(slow)[0].ended


def test_the_end_of_the_server_closes_each() -> None:
    """GOAWAY first; then a close for each WebSocket, and the other requests are finished."""
    codes: list[int] = []
    begun, go = threading.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            begun.set()
            await go.wait()
            return await respond(send, b"whole")
        await receive()
        await send({"type": "websocket.accept"})
        codes.append((await receive())["code"])
        return None

    with serving(app) as server, Client(("127.0.0.1", server.port)) as client:
        sockets = [open_websocket(client), open_websocket(client)]
        request = client.begin("GET", "/slow")
        assert begun.wait(10)
        server.call(server.server.drain)
        for stream in sockets:
            client.until_body(stream, 4)
            assert client.exchanges[stream].body == struct.pack("!BBH", 0x80 | CLOSE, 2, 1012)
        assert client.goaway
        for stream in sockets:
            client.write(stream, close_frame(1012))
        assert [exchange.ended for exchange in client.finish(*sockets)] == [True, True]
        server.call(go.set)
        assert client.finish(request)[0].body == b"whole"
        client.until_closed()
        assert client.goaway[-1] == (request, 0)
    assert codes == [1012, 1012]
