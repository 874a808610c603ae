"""WebSocket (RFC 9220), trailers and early hints over HTTP/3, from independent clients."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.asgi_server import respond
from tests.support.feature_server import every_kind
from tests.support.http2_apps import APPS, payload
from tests.support.http3.client import HAS_INTERIM, LIBRARIES, Client
from tests.support.http3.connected import connected, serving
from tests.support.process import eventually
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

MESSAGE_ERROR = 0x10E


def until_body(client: Client, stream: int, length: int) -> bytes:
    """The body of a response once it has this length."""
    client.until(lambda: len(client.exchanges[stream].body) >= length)
    assert len(client.exchanges[stream].body) == length
    return client.exchanges[stream].body


# --- WebSocket ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", LIBRARIES)
def test_echo_beside_other_streams(library: str, tmp_path: Path) -> None:
    scopes: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)
        await (echo(scope, receive, send) if scope["type"] == "websocket" else respond(send))

    with connected("asgi", app, tmp_path, library) as client:
        stream = client.open_websocket("/a?b", [("sec-websocket-protocol", "x, y")])
        exchange = client.exchanges[stream]
        assert exchange.status == 200
        assert "sec-websocket-accept" not in exchange.fields
        client.write(stream, frame(TEXT, b"one") + frame(PING, b"?"))
        body = until_body(client, stream, 8)
        assert body == bytes([0x80 | TEXT, 3]) + b"one" + bytes([0x80 | PONG, 1]) + b"?"
        assert client.fetch().body == b"ok"
        client.write(stream, frame(BINARY, b"x" * 300_000))
        until_body(client, stream, 8 + 10 + 300_000)
        client.write(stream, close_frame(1000))
        client.until(lambda: exchange.ended)
        assert exchange.body.endswith(struct.pack("!BBH", 0x80 | CLOSE, 2, 1000))
        assert exchange.reset is None
        assert client.fetch().body == b"ok"
    scope = scopes[0]
    assert (scope["http_version"], scope["scheme"], scope["path"]) == ("3", "wss", "/a")
    assert (scope["query_string"], scope["subprotocols"]) == (b"b", ["x", "y"])


def test_many_websockets_at_once(tmp_path: Path) -> None:
    with connected("asgi", echo, tmp_path) as client:
        streams = [client.open_websocket(f"/{number}") for number in range(50)]
        for number, stream in enumerate(streams):
            client.write(stream, frame(TEXT, b"%d" % number))
        for number, stream in enumerate(streams):
            text = b"%d" % number
            assert until_body(client, stream, 2 + len(text))[2:] == text


def test_denials(tmp_path: Path) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if scope["path"] == "/raise":
            raise ZeroDivisionError
        await send({"type": "websocket.close"})

    with connected("asgi", app, tmp_path) as client:
        for path, status in (("/", 403), ("/raise", 500)):
            stream = client.open_websocket(path)
            assert client.exchanges[stream].status == status
            assert client.finish(stream)[0].ended


def test_a_stream_that_is_reset(tmp_path: Path) -> None:
    codes: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            return await respond(send)
        await receive()
        await send({"type": "websocket.accept"})
        codes.append((await receive())["code"])
        return None

    with connected("asgi", app, tmp_path, http3_max_concurrent_streams=3) as client:
        # More than the places, which those that are over leave.
        for number in range(1, 11):
            stream = client.open_websocket()
            client.stop(stream)
            client.reset(stream)
            eventually(
                lambda number=number: client.fetch().status == 200 and len(codes) == number, "the code"
            )
    assert codes == [1006] * 10


def test_a_slow_application_holds_up_its_own_stream(tmp_path: Path) -> None:
    received: list[int] = []
    with connected("asgi", late_reader(received), tmp_path) as client:
        slow, fast = client.open_websocket("/slow"), client.open_websocket("/echo")
        # The library sends what the window allows and keeps the rest.
        client.write(slow, b"".join(frame(BINARY, b"x" * 10_000) for _ in range(100)))
        expected = 0
        for size in (1, 1000, 300_000):
            client.write(fast, frame(BINARY, b"y" * size))
            expected += len(frame(BINARY, b"y" * size, masked=False))
            until_body(client, fast, expected)
        assert not received
        assert client.fetch().status == 200
        client.write(slow, close_frame(1000))
        client.finish(slow)
    assert received == [10_000] * 100


def test_the_end_of_the_server_closes_each(tmp_path: Path) -> None:
    """GOAWAY first; then a close for each WebSocket, and the other requests are finished."""
    codes: list[int] = []
    begun, go = threading.Event(), threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            begun.set()
            while not go.is_set():
                await asyncio.sleep(0.01)
            return await respond(send, b"whole")
        await receive()
        await send({"type": "websocket.accept"})
        codes.append((await receive())["code"])
        return None

    with contextlib.ExitStack() as stack:
        options = {"timeout_graceful_shutdown": 20.0}
        server, certificates = stack.enter_context(serving("asgi", app, tmp_path, **options))
        client = Client((server.host, server.port), ca=str(certificates.ca))
        sockets = [client.open_websocket(), client.open_websocket()]
        request = client.begin("GET", "/slow")
        assert begun.wait(20)
        stopping = threading.Thread(target=stack.pop_all().close)
        stopping.start()
        for stream in sockets:
            assert until_body(client, stream, 4) == struct.pack("!BBH", 0x80 | CLOSE, 2, 1012)
            client.write(stream, close_frame(1012))
        assert [exchange.ended for exchange in client.finish(*sockets)] == [True, True]
        assert client.goaway is not None
        go.set()
        assert client.finish(request)[0].body == b"whole"
        client.until_closed()
        client.close()
        stopping.join(20)
        assert not stopping.is_alive()
    assert codes == [1012, 1012]


@pytest.mark.parametrize("kind", ["wsgi", "wsgi-threads"])
def test_a_wsgi_application_has_none(kind: str, tmp_path: Path) -> None:
    """Extended CONNECT is not announced (RFC 9220 3), and refused."""
    with connected(kind, APPS[kind], tmp_path) as client:
        assert not client.settings.get(8)
        pseudo = [(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "https")]
        stream = client.begin_raw([*pseudo, (":authority", client.authority), (":path", "/")], end=False)
        exchange = client.finish(stream)[0]
        assert exchange.reset == MESSAGE_ERROR or exchange.status >= 400, exchange
        assert client.fetch(path="/after").body == b"/after"


# --- trailers and early hints ---------------------------------------------------------------------------------


@pytest.mark.parametrize("library", LIBRARIES)
def test_early_hints_and_trailers_of_a_response(library: str, tmp_path: Path) -> None:
    if library == "aioquic" and not HAS_INTERIM:
        pytest.skip("this aioquic refuses interim responses")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.early_hint", "links": [b"</a.css>; rel=preload"]})
        await send({"type": "http.response.start", "status": 200, "headers": [], "trailers": True})
        await send({"type": "http.response.body", "body": b"body"})
        first = {"headers": [(b"x-sum", b"42")], "more_trailers": True}
        await send({"type": "http.response.trailers", **first})
        await send({"type": "http.response.trailers", "headers": [(b"x-more", b"2")]})

    with connected("asgi", app, tmp_path, library) as client:
        for _ in range(2):
            response = client.fetch()
            assert response.interim == [(103, {"link": "</a.css>; rel=preload"})]
            assert (response.status, response.body) == (200, b"body")
            assert response.trailers == {"x-sum": "42", "x-more": "2"}
            assert response.ended


@every_kind
@pytest.mark.parametrize("library", LIBRARIES)
def test_trailers_of_a_request(kind: str, library: str, tmp_path: Path) -> None:
    """Trailers end the body; neither interface has a place for them."""
    body = payload(100_000)
    with connected(kind, APPS[kind], tmp_path, library) as client:
        for _ in range(2):
            stream = client.begin("POST", "/echo", end=False)
            client.write(stream, body)
            client.trailers(stream, [("x-sum", "42")])
            response = client.finish(stream)[0]
            assert (response.status, response.body == body, response.ended) == (200, True, True)


@every_kind
def test_a_request_of_trailers_after_no_body(kind: str, tmp_path: Path) -> None:
    with connected(kind, APPS[kind], tmp_path) as client:
        stream = client.begin("POST", "/echo", end=False)
        client.trailers(stream, [("x-sum", "42")])
        response = client.finish(stream)[0]
        assert (response.status, response.body, response.ended) == (200, b"", True)


@every_kind
def test_pseudo_fields_in_trailers_are_malformed(kind: str, tmp_path: Path) -> None:
    """RFC 9114 4.3; other streams go on."""
    with connected(kind, APPS[kind], tmp_path) as client:
        stream = client.begin("POST", "/echo", end=False)
        client.write(stream, b"some")
        client.trailers(stream, [(":path", "/other")])
        assert client.finish(stream)[0].reset == MESSAGE_ERROR
        assert client.fetch("POST", "/echo", b"after").body == b"after"
