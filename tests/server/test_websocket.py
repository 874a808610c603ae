"""WebSocket in the ASGI front end: the scope, the messages of both sides, how it begins and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sys
import threading
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.support.asgi_server import LOOPS, Receive, Scope, Send, respond, serving
from tests.support.websocket_server import (
    BINARY,
    BOTH_VERSIONS,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    Raw,
    close_frame,
    connect_to,
    echo,
    frame,
    open_ws,
    request,
)


class Kept:
    """Runs `app` and keeps what it was given and how it ended."""

    def __init__(self, app: Any) -> None:
        self.app, self.scope, self.received = app, {}, []
        self.error: BaseException | None = None
        self.ended = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def kept() -> dict[str, Any]:
            message = await receive()
            self.received.append(message)
            return message

        self.scope = scope
        try:
            await self.app(scope, kept, send)
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.ended.set()

    def last(self) -> dict[str, Any]:
        assert self.ended.wait(10)
        return self.received[-1]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("compression", [None, "deflate"])
@BOTH_VERSIONS
def test_messages_of_every_size(loop: str, compression: str | None, version: str) -> None:
    with serving(echo, loop) as server, open_ws(server, version=version, compression=compression) as ws:
        for size in (0, 1, 125, 126, 127, 65535, 65536, 300_000):
            for message in ("é" * (size // 2), bytes(range(256)) * (size // 256 + 1)):
                ws.send(message)
                assert ws.recv() == message


@BOTH_VERSIONS
def test_scope(version: str) -> None:
    app = Kept(echo)
    with (
        serving(app, root_path="/base", state={"a": 1}) as server,
        open_ws(
            server,
            "/a%20b?c=d",
            version=version,
            subprotocols=["one", "two"],
            additional_headers={"X-Own": "yes"},
        ),
    ):
        pass
    scope = app.scope
    assert scope["type"] == "websocket"
    assert scope["asgi"] == {"version": "3.0", "spec_version": "2.5"}
    assert (scope["http_version"], scope["scheme"]) == (version, "ws")
    assert (scope["path"], scope["raw_path"]) == ("/base/a b", b"/base/a%20b")
    assert (scope["query_string"], scope["root_path"]) == (b"c=d", "/base")
    assert scope["subprotocols"] == ["one", "two"]
    assert scope["extensions"] == {"websocket.http.response": {}}
    assert (b"x-own", b"yes") in scope["headers"]
    assert scope["state"] == {"a": 1}
    assert scope["client"][0] == "127.0.0.1"
    assert scope["server"] == ("127.0.0.1", server.port)
    assert "method" not in scope


@BOTH_VERSIONS
def test_subprotocol_and_headers(version: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert await receive() == {"type": "websocket.connect"}
        headers = [(b"set-cookie", b"a=b"), (b"x-own", b"1"), (b"connection", b"close")]
        await send({"type": "websocket.accept", "subprotocol": "two", "headers": headers})
        await receive()

    with serving(app) as server, open_ws(server, version=version, subprotocols=["one", "two"]) as ws:
        assert ws.subprotocol == "two"
        assert ws.response is not None
        assert (ws.response.headers["set-cookie"], ws.response.headers["x-own"]) == ("a=b", "1")
        assert ws.response.headers.get_all("connection") == ["upgrade"]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"subprotocol": "other"}, ValueError),
        ({"subprotocol": b"one"}, TypeError),
        ({"headers": [(b"Sec-WebSocket-Protocol", b"one")]}, ValueError),
        ({"headers": [("x", "y")]}, TypeError),
    ],
)
@BOTH_VERSIONS
def test_an_accept_that_breaks_a_rule(message: dict[str, Any], error: type[Exception], version: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        with pytest.raises(error):
            await send({"type": "websocket.accept", **message})
        await send({"type": "websocket.accept", "subprotocol": "one"})
        await receive()

    with serving(app) as server, open_ws(server, version=version, subprotocols=["one"]) as ws:
        assert ws.subprotocol == "one"


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"type": "websocket.send"}, ValueError),
        ({"type": "websocket.send", "text": "a", "bytes": b"b"}, ValueError),
        ({"type": "websocket.send", "text": b"a"}, TypeError),
        ({"type": "websocket.send", "bytes": "a"}, TypeError),
        ({"type": "websocket.send", "text": "\ud800"}, UnicodeEncodeError),
        ({"type": "websocket.close", "code": 1005}, ValueError),
        ({"type": "websocket.close", "code": "x"}, ValueError),
        ({"type": "websocket.close", "reason": "x" * 124}, ValueError),
        ({"type": "websocket.accept"}, RuntimeError),
        ({"type": "websocket.other"}, RuntimeError),
        ({"type": "http.response.start", "status": 200}, RuntimeError),
        ({"type": "http.response.body"}, RuntimeError),
        ({"type": "websocket.http.response.start", "status": 403}, RuntimeError),
        ({"type": "websocket.http.response.body"}, RuntimeError),
    ],
)
def test_a_message_that_breaks_a_rule(message: dict[str, Any], error: type[Exception]) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        with pytest.raises(error):
            await send(message)
        await send({"type": "websocket.send", "text": "go on"})
        await receive()

    with serving(app) as server, open_ws(server) as ws:
        assert ws.recv() == "go on"


@BOTH_VERSIONS
def test_nothing_but_an_answer_comes_first(version: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for kind in ("websocket.send", "http.response.start"):
            with pytest.raises(RuntimeError):
                await send({"type": kind, "text": "", "status": 200})
        await send({"type": "websocket.accept"})

    with serving(app) as server, open_ws(server, version=version) as ws:
        with pytest.raises(ConnectionClosed):
            ws.recv()
        assert ws.close_code == 1000


def test_websocket_messages_in_an_http_scope() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        with pytest.raises(RuntimeError, match="http scope"):
            await send({"type": "websocket.send", "text": ""})
        await respond(send)

    with serving(app) as server:
        assert server.get()[0] == 200


@BOTH_VERSIONS
def test_kinds_of_byte_strings(version: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        for data in (b"1", bytearray(b"2"), memoryview(b"3"), bytearray(b"4" * 50_000)):
            await send({"type": "websocket.send", "bytes": data, "text": None})

    with serving(app) as server, open_ws(server, version=version) as ws:
        assert [ws.recv() for _ in range(4)] == [b"1", b"2", b"3", b"4" * 50_000]


@pytest.mark.parametrize(
    ("sent", "code", "reason"),
    [
        (close_frame(), 1005, ""),
        (close_frame(1000), 1000, ""),
        (close_frame(4321, "why not ✓"), 4321, "why not ✓"),
    ],
)
@BOTH_VERSIONS
def test_the_client_closes(sent: bytes, code: int, reason: str, version: str) -> None:
    app = Kept(echo)
    with serving(app) as server, Raw(server, version=version) as client:
        client.send(sent)
        # The code and the reason are sent back, as by the package `websockets`.
        assert client.close_frame() == (None if code == 1005 else code, reason)
        assert app.last() == {"type": "websocket.disconnect", "code": code, "reason": reason}
    assert app.error is None


@BOTH_VERSIONS
def test_the_client_vanishes(version: str) -> None:
    app = Kept(echo)
    with serving(app) as server, Raw(server, version=version) as client:
        client.sock.close()
        assert app.last()["code"] == 1006


@BOTH_VERSIONS
def test_the_application_closes(version: str) -> None:
    async def close(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": 3001, "reason": "enough"})
        with pytest.raises(RuntimeError, match="has been closed"):
            await send({"type": "websocket.send", "text": ""})
        await receive()

    app = Kept(close)
    with serving(app) as server, Raw(server, version=version) as client:
        assert client.frame() == (0x88, (3001).to_bytes(2, "big") + b"enough")
        assert app.last() == {"type": "websocket.disconnect", "code": 3001, "reason": "enough"}
        # Messages under way are skipped; the answer ends the connection.
        client.send(frame(TEXT, b"late"), close_frame(3001))
        client.expect_end()
    assert app.error is None


@BOTH_VERSIONS
def test_the_application_returns(version: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})

    with serving(app) as server, Raw(server, version=version) as client:
        client.send(close_frame(1000))
        assert client.close_code() == 1000
        assert server.errors() == []


@BOTH_VERSIONS
def test_the_application_raises(version: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await receive()
        raise ZeroDivisionError

    with serving(app) as server, Raw(server, version=version) as client:
        client.send(frame(TEXT, b"x"))
        assert client.frame() == (0x88, b"\x03\xf3")
        client.send(close_frame(1011))
        client.expect_end()
        [error] = server.errors()
        assert error.startswith("Exception in ASGI application: WebSocket closed with 1011: WebSocket /")


@pytest.mark.parametrize("raises", [True, False])
@BOTH_VERSIONS
def test_the_application_ends_without_an_answer(raises: bool, version: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if raises:
            raise ZeroDivisionError

    with serving(app) as server:
        with pytest.raises(InvalidStatus) as refused, open_ws(server, version=version):
            pass
        assert refused.value.response.status_code == 500
        assert len(server.errors()) == 1


@BOTH_VERSIONS
def test_a_close_before_the_accept_is_403(version: str) -> None:
    async def close(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.close", "code": 4000})
        with pytest.raises(RuntimeError):
            await send({"type": "websocket.accept"})
        await receive()

    app = Kept(close)
    with serving(app) as server, pytest.raises(InvalidStatus) as refused, open_ws(server, version=version):
        pass
    assert refused.value.response.status_code == 403
    assert app.last()["code"] == 1006
    assert app.error is None


@BOTH_VERSIONS
def test_denial_response(version: str) -> None:
    async def deny(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        start = {"type": "websocket.http.response.start", "status": 401, "headers": [(b"x-why", b"token")]}
        await send(start)
        with pytest.raises(RuntimeError):
            await send({"type": "websocket.accept"})
        await send({"type": "websocket.http.response.body", "body": b"no ", "more_body": True})
        await send({"type": "websocket.http.response.body", "body": b"way"})
        await receive()

    app = Kept(deny)
    with serving(app) as server, pytest.raises(InvalidStatus) as refused, open_ws(server, version=version):
        pass
    response = refused.value.response
    assert (response.status_code, response.headers["x-why"]) == (401, "token")
    assert app.last()["type"] == "websocket.disconnect"
    assert app.error is None


def test_a_connection_goes_on_after_a_denial() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await respond(send, b"plain")
        else:
            await send({"type": "websocket.close"})

    with serving(app) as server, Raw(server) as client:
        assert client.status == 403
        client.send(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert client._until(b"\r\n\r\n").startswith(b"HTTP/1.1 200")


@BOTH_VERSIONS
def test_the_client_goes_before_the_accept(version: str) -> None:
    gone = asyncio.Event()

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        assert (await receive())["type"] == "websocket.disconnect"
        with pytest.raises(OSError):
            await send({"type": "websocket.accept"})
        gone.set()

    app = Kept(late)
    with serving(app) as server:
        with connect_to(server, version) as client:
            client.sendall(request())
        assert app.last()["code"] == 1006
    assert app.error is None


@BOTH_VERSIONS
def test_sending_after_the_disconnect_raises_oserror(version: str) -> None:
    async def stubborn(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        assert (await receive())["type"] == "websocket.disconnect"
        assert (await receive())["type"] == "websocket.disconnect"
        await send({"type": "websocket.send", "text": "anybody?"})

    app = Kept(stubborn)
    with serving(app) as server, Raw(server, version=version) as client:
        client.send(close_frame(1000))
        assert client.close_code() == 1000
        assert app.ended.wait(10)
        assert isinstance(app.error, OSError)
    assert server.errors() == []


@BOTH_VERSIONS
def test_a_message_before_the_close_is_received(version: str) -> None:
    go = threading.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await asyncio.get_running_loop().run_in_executor(None, go.wait, 10)
        while (await receive())["type"] == "websocket.receive":
            pass

    app = Kept(slow)
    with serving(app) as server, Raw(server, version=version) as client:
        client.send(frame(TEXT, b"one"), frame(BINARY, b"two"), close_frame(4000))
        client.sock.shutdown(1)
        go.set()
        assert app.last()["code"] == 4000
    assert [message.get("text") or message.get("bytes") for message in app.received[1:3]] == ["one", b"two"]


@BOTH_VERSIONS
def test_fragments_with_control_frames_between(version: str) -> None:
    with serving(echo) as server, Raw(server, version=version) as client:
        client.send(
            frame(TEXT, b"one ", fin=False),
            frame(PING, b"first"),
            frame(CONTINUATION, b"two ", fin=False),
            frame(PING, b"second"),
            frame(PONG, b"nobody asked"),
            frame(CONTINUATION, b"three"),
        )
        assert [client.frame() for _ in range(3)] == [
            (0x80 | PONG, b"first"),
            (0x80 | PONG, b"second"),
            (0x80 | TEXT, b"one two three"),
        ]


@pytest.mark.parametrize(
    ("garbage", "code"),
    [
        (frame(TEXT, b"x", masked=False), 1002),
        (frame(TEXT, b"x", rsv=2), 1002),
        (frame(3, b"x"), 1002),
        (frame(PING, b"x" * 126), 1002),
        (frame(PING, b"x", fin=False), 1002),
        (frame(CONTINUATION, b"x"), 1002),
        (frame(TEXT, b"a", fin=False) + frame(TEXT, b"b"), 1002),
        (frame(CLOSE, b"x"), 1002),
        (close_frame(1006), 1002),
        (frame(TEXT, b"\xff"), 1007),
        (frame(CLOSE, b"\x03\xe8\xff"), 1007),
        (frame(TEXT, b"not deflated", rsv=4), 1002),
        (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", 1002),
    ],
)
@BOTH_VERSIONS
def test_garbage(garbage: bytes, code: int, version: str) -> None:
    app = Kept(echo)
    with serving(app) as server, Raw(server, version=version) as client:
        client.send(garbage)
        assert client.close_code() == code
        assert app.last()["code"] == code
    assert server.errors() == []


@pytest.mark.parametrize(
    ("wire", "status"),
    [
        (request().replace(b"Version: 13", b"Version: 8"), 426),
        (request(key="short"), 400),
        (request().replace(b"Connection: Upgrade", b"Connection: keep-alive"), 400),
        (request(version="1.0"), 200),
        (request().replace(b"websocket", b"h2c"), 200),
        (request().replace(b"GET", b"POST").replace(b"Host", b"Content-Length: 0\r\nHost"), 200),
    ],
)
def test_handshakes_that_are_none(wire: bytes, status: int) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        await respond(send)

    with serving(app) as server, server.connect() as client:
        client.sendall(wire)
        head = client.recv(65536)
        assert int(head.split()[1]) == status
        if status == 426:
            assert b"sec-websocket-version: 13" in head


@BOTH_VERSIONS
def test_a_real_task_with_its_context(version: str) -> None:
    mark = contextvars.ContextVar("mark", default="unset")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        mark.set("mine")
        await send({"type": "websocket.accept"})
        async with asyncio.timeout(10) if sys.version_info >= (3, 11) else contextlib.nullcontext():
            message = await receive()
        assert asyncio.current_task() in asyncio.all_tasks()
        await send({"type": "websocket.send", "text": f"{mark.get()} {message['text']}"})

    with serving(app) as server, open_ws(server, version=version) as ws:
        ws.send("hers")
        assert ws.recv() == "mine hers"


@BOTH_VERSIONS
def test_one_task_sends_while_another_receives(version: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})

        async def tick() -> None:
            for number in range(100):
                await send({"type": "websocket.send", "text": str(number)})
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        assert (await receive())["text"] == "stop"
        await ticking

    with serving(app) as server, open_ws(server, version=version) as ws:
        assert [ws.recv() for _ in range(100)] == [str(number) for number in range(100)]
        ws.send("stop")
        with pytest.raises(ConnectionClosed):
            ws.recv()
        assert ws.close_code == 1000


@BOTH_VERSIONS
def test_a_wait_that_is_cancelled_loses_nothing(version: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        for _ in range(3):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(receive(), 0.01)
        await send({"type": "websocket.send", "text": "now"})
        await send({**(await receive()), "type": "websocket.send"})

    with serving(app) as server, open_ws(server, version=version) as ws:
        assert ws.recv() == "now"
        ws.send("kept")
        assert ws.recv() == "kept"
