"""`client.websocket(url)`: one test body for both clients, against the `websockets` package and hand-written servers."""

from __future__ import annotations

import queue
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import towline
from towline import WebSocketClosed, WebSocketRefused
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection

from tests.support.client_backends import MIB, rss_bytes
from tests.support.http1_peer import read_head, serving
from tests.support.websocket_clients import BACKENDS, drained, echo, frame, handshake, next_frame, peer

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
MAX_WAIT = 10.0


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest) -> Iterator[Any]:
    created = BACKENDS[request.param]()
    yield created
    created.close()


# --- messages


@pytest.mark.parametrize("compression", [True, False])
def test_messages_come_back(backend: Any, compression: bool) -> None:
    with peer(echo) as url, backend.open(url, compression=compression) as ws:
        offered = ws.response.headers.get("sec-websocket-extensions", "")
        assert ("permessage-deflate" in offered) is compression
        assert ws.response.status_code == 101
        for message in ("", "text", "Grüße 🦀", b"", b"\x00\xff", "a" * 300_000, bytes(range(256)) * 4096):
            ws.send(message)
            assert ws.recv(timeout=MAX_WAIT) == message
        ws.send(bytearray(b"array"))
        assert ws.recv() == b"array"
        ws.send(memoryview(b"view"))
        assert ws.recv() == b"view"
        ws.send_json({"a": [1, None]})
        assert ws.recv_json() == {"a": [1, None]}
        with pytest.raises(TypeError):
            ws.send(7)
        with pytest.raises(ValueError, match="surrogates"):
            ws.send("\ud800")
        ws.send("still there")
        assert ws.recv() == "still there"


def test_fragments_are_put_together(backend: Any) -> None:
    def handler(ws: ServerConnection) -> None:
        ws.send(["one ", "two ", "", "three"])
        ws.send([b"\x00"] * 500)

    with peer(handler) as url, backend.open(url) as ws:
        assert list(ws) == ["one two three", b"\x00" * 500]


def test_subprotocols(backend: Any) -> None:
    with peer(echo, select_subprotocol=lambda _, offered: offered[-1] if offered else None) as url:
        with backend.open(url, subprotocols=["a", "b"]) as ws:
            assert ws.subprotocol == "b"
        with backend.open(url) as ws:
            assert ws.subprotocol is None


# --- the end


@pytest.mark.parametrize("code", [1000, 1001])
def test_iteration_ends_where_the_server_closes_in_order(backend: Any, code: int) -> None:
    def handler(ws: ServerConnection) -> None:
        ws.send("last")
        ws.close(code, "that is all")

    with peer(handler) as url, backend.open(url) as ws:
        assert ws.close_code is None
        assert list(ws) == ["last"]
        assert (ws.close_code, ws.close_reason) == (code, "that is all")
        for act in (ws.recv, lambda: ws.send("x"), ws.ping):
            with pytest.raises(WebSocketClosed) as caught:
                act()
            assert (caught.value.code, caught.value.reason) == (code, "that is all")
        ws.close()


def test_iteration_raises_where_it_does_not(backend: Any) -> None:
    def handler(ws: ServerConnection) -> None:
        ws.send("last")
        ws.close(4001, "no more")

    with peer(handler) as url, backend.open(url) as ws:
        received = []
        messages = iter(ws)
        received.append(next(messages))
        with pytest.raises(WebSocketClosed) as caught:
            next(messages)
        assert received == ["last"]
        assert (caught.value.code, caught.value.reason, caught.value.rule) == (4001, "no more", None)


def test_a_close_without_a_code_is_in_order(backend: Any) -> None:
    def serve(connection: socket.socket, number: int) -> None:
        handshake(connection)
        connection.sendall(frame(CLOSE))
        assert next_frame(connection) == (CLOSE, b"")

    with serving(serve) as server, backend.open(server.url) as ws:
        assert list(ws) == []
        assert ws.close_code == 1005


def test_leaving_the_block_closes_with_the_right_code(backend: Any) -> None:
    codes: queue.Queue[int | None] = queue.Queue()

    def handler(ws: ServerConnection) -> None:
        drained(ws)
        codes.put(ws.close_code)

    with peer(handler) as url:
        with backend.open(url) as ws:
            pass
        assert codes.get(timeout=MAX_WAIT) == 1000
        with pytest.raises(ZeroDivisionError), backend.open(url) as ws:
            raise ZeroDivisionError
        assert codes.get(timeout=MAX_WAIT) == 1011
        with backend.open(url) as ws:
            with pytest.raises(ValueError, match="close code"):
                ws.close(1005)
            ws.close(4242, "by")
            assert codes.get(timeout=MAX_WAIT) == 4242
            assert ws.close_code == 4242
        assert backend.client.pool_status() == {"active": 0, "idle": 0, "connecting": 0, "waiting": 0}


def test_a_missing_close_frame_is_not_waited_for(backend: Any) -> None:
    def serve(connection: socket.socket, number: int) -> None:
        handshake(connection)
        while next_frame(connection):
            pass

    with serving(serve) as server, backend.open(server.url, close_timeout=0.05) as ws:
        ws.close()
        assert ws.close_code == 1006


def test_a_connection_that_ends_without_a_close_frame(backend: Any) -> None:
    def serve(connection: socket.socket, number: int) -> None:
        handshake(connection)
        connection.sendall(frame(TEXT, b"last") + frame(TEXT, b"half", fin=False))

    with serving(serve) as server, backend.open(server.url) as ws:
        assert ws.recv() == "last"
        with pytest.raises(WebSocketClosed) as caught:
            ws.recv()
        assert caught.value.code == 1006
        assert "RFC 6455" in caught.value.rule


def test_a_violation_is_named_and_closes_with_its_code(backend: Any) -> None:
    responses: queue.Queue[Any] = queue.Queue()

    def serve(connection: socket.socket, number: int) -> None:
        handshake(connection)
        connection.sendall(frame(TEXT, b"\xff\xfe"))
        responses.put(next_frame(connection))

    with serving(serve) as server, backend.open(server.url) as ws:
        with pytest.raises(WebSocketClosed) as caught:
            ws.recv()
        assert caught.value.code == 1007
        assert "UTF-8" in caught.value.rule
    close = struct.pack("!H", 1007) + caught.value.rule.encode()
    assert responses.get(timeout=MAX_WAIT) == (CLOSE, close)


def test_messages_over_the_limit(backend: Any) -> None:
    codes: queue.Queue[int | None] = queue.Queue()

    def handler(ws: ServerConnection) -> None:
        ws.send(b"x" * 1000)
        ws.send(b"x" * 1001)
        drained(ws)
        codes.put(ws.close_code)

    with peer(handler) as url:
        with backend.open(url, max_message_bytes=1000) as ws:
            assert len(ws.recv()) == 1000
            with pytest.raises(WebSocketClosed) as caught:
                ws.recv()
            assert caught.value.code == 1009
        assert codes.get(timeout=MAX_WAIT) == 1009


def test_messages_without_a_limit(backend: Any) -> None:
    def handler(ws: ServerConnection) -> None:
        ws.send("x" * 100_000)
        drained(ws)

    with peer(handler) as url, backend.open(url, max_message_bytes=None) as ws:
        assert len(ws.recv()) == 100_000


# --- time and pings


def test_a_timeout_of_recv_loses_nothing(backend: Any) -> None:
    go = threading.Event()

    def handler(ws: ServerConnection) -> None:
        go.wait(MAX_WAIT)
        ws.send("late")

    with peer(handler) as url, backend.open(url) as ws:
        for timeout in (0, 0.05):
            with pytest.raises(towline.ReadTimeout):
                ws.recv(timeout=timeout)
        go.set()
        assert ws.recv(timeout=MAX_WAIT) == "late"


def test_the_timeouts_of_the_client_are_those_of_the_handshake(backend: Any) -> None:
    go = threading.Event()

    def handler(ws: ServerConnection) -> None:
        go.wait(MAX_WAIT)
        ws.send("late")

    timeout = towline.Timeout(read=1.5, total=2.0)
    with peer(handler) as url, backend.open(url, timeout=timeout) as ws:
        with pytest.raises(towline.ReadTimeout):
            ws.recv(timeout=2.5)
        go.set()
        assert ws.recv() == "late"
    with serving(lambda connection, number: connection.recv(1 << 20) and threading.Event().wait(5)) as server:  # type: ignore[arg-type]
        with pytest.raises(towline.TimeoutError), backend.open(server.url, timeout=timeout):
            pass


def test_pings_of_the_server_are_answered_in_recv(backend: Any) -> None:
    def handler(ws: ServerConnection) -> None:
        ws.ping(b"are you there?").wait(MAX_WAIT)
        ws.send("answered")

    with peer(handler) as url, backend.open(url) as ws:
        assert ws.recv(timeout=MAX_WAIT) == "answered"


def test_pings_of_the_program_and_of_the_clock(backend: Any) -> None:
    seen: queue.Queue[tuple[int, bytes]] = queue.Queue()

    def serve(connection: socket.socket, number: int) -> None:
        handshake(connection)
        for _ in range(2):
            opcode, payload = next_frame(connection)
            seen.put((opcode, payload))
            connection.sendall(frame(PONG, payload))
        connection.sendall(frame(TEXT, b"done"))
        next_frame(connection)
        connection.sendall(frame(CLOSE))

    with serving(serve) as server, backend.open(server.url, ping_interval=0.05) as ws:
        ws.ping(b"mine")
        assert seen.get(timeout=MAX_WAIT) == (PING, b"mine")
        with pytest.raises(ValueError, match="125"):
            ws.ping(b"x" * 126)
        assert ws.recv(timeout=MAX_WAIT) == "done"
        opcode, payload = seen.get(timeout=MAX_WAIT)
        assert (opcode, len(payload)) == (PING, 4)


def test_a_server_that_falls_silent(backend: Any) -> None:
    def serve(connection: socket.socket, number: int) -> None:
        handshake(connection)
        while next_frame(connection)[0] != CLOSE:
            pass

    with serving(serve) as server:
        with backend.open(server.url, ping_interval=0.05, ping_timeout=0.05) as ws:
            with pytest.raises(WebSocketClosed) as caught:
                ws.recv(timeout=MAX_WAIT)
            assert caught.value.code == 1011
            assert "pong" in caught.value.rule


# --- the handshake


def test_the_handshake_is_a_call_like_others(backend: Any) -> None:
    heads: queue.Queue[bytes] = queue.Queue()

    def serve(connection: socket.socket, number: int) -> None:
        heads.put(handshake(connection, "Set-Cookie: session=1"))
        connection.sendall(frame(CLOSE, struct.pack("!H", 1000)))
        next_frame(connection)

    with serving(serve) as server:
        backend.client.base_url = server.url
        url = "chat?a=1"
        with backend.open(
            url, params={"b": "2"}, headers={"X-Mine": "yes"}, auth=("user", "pass"), cookies={"c": "3"}
        ) as ws:
            assert list(ws) == []
        head = heads.get()
        lines = head.split(b"\r\n")
        assert lines[0] == b"GET /chat?a=1&b=2 HTTP/1.1"
        assert b"X-Mine: yes" in lines
        assert b"Authorization: Basic dXNlcjpwYXNz" in lines
        assert b"Cookie: c=3" in lines
        assert b"Sec-WebSocket-Version: 13" in lines
        assert backend.client.cookies["session"] == "1"
        with backend.open(url):
            pass
        assert b"Cookie: session=1" in heads.get()


def test_refusals_carry_the_response(backend: Any) -> None:
    def refuse(connection: ServerConnection, request: Request) -> Response | None:
        if request.path == "/moved":
            return Response(302, "Found", Headers({"Location": "/", "Content-Length": "0"}))
        if request.path == "/no":
            return Response(403, "Forbidden", Headers({"Content-Length": "7"}), b"not you")
        return None

    with peer(echo, process_request=refuse) as url:
        with pytest.raises(WebSocketRefused) as caught, backend.open(f"{url}/no"):
            pass
        assert caught.value.response.status_code == 403
        assert caught.value.response.text == "not you"
        assert caught.value.request.url.path == "/no"
        with pytest.raises(WebSocketRefused) as caught, backend.open(f"{url}/moved"):
            pass
        assert caught.value.response.status_code == 302
        with backend.open(f"{url}/moved", follow_redirects=True) as ws:
            ws.send("here")
            assert ws.recv() == "here"
            assert [earlier.status_code for earlier in ws.response.history] == [302]


def test_a_refusal_without_end_is_cut(backend: Any) -> None:
    def serve(connection: socket.socket, number: int) -> None:
        read_head(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b"endless " * 1000)

    with serving(serve) as server:
        with pytest.raises(WebSocketRefused) as caught, backend.open(server.url):
            pass
        assert 0 < len(caught.value.response.content) <= 65_536


@pytest.mark.parametrize(
    ("fields", "accept", "rule"),
    [
        ((), b"AAAA", "Sec-WebSocket-Accept"),
        (("Sec-WebSocket-Protocol: other",), None, "Sec-WebSocket-Protocol"),
        (("Sec-WebSocket-Extensions: x-webkit",), None, "Sec-WebSocket-Extensions"),
    ],
)
def test_grants_that_break_a_rule(
    backend: Any, fields: tuple[str, ...], accept: bytes | None, rule: str
) -> None:
    def serve(connection: socket.socket, number: int) -> None:
        handshake(connection, *fields, accept=accept)
        connection.recv(1)

    with serving(serve) as server:
        with pytest.raises(towline.RemoteProtocolError, match=rule), backend.open(server.url):
            pass


def test_usage_errors(backend: Any) -> None:
    mistakes: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (towline.InvalidHeader, "ws://host/", {"headers": {"Sec-WebSocket-Key": "x"}}),
        (towline.InvalidHeader, "ws://host/", {"headers": {"Upgrade": "h2c"}}),
        (towline.ConfigError, "ws://host/", {"subprotocols": ["a b"]}),
        (towline.ConfigError, "ws://host/", {"subprotocols": "chat"}),
        (towline.ConfigError, "ws://host/", {"max_message_bytes": 0}),
        (towline.ConfigError, "ws://host/", {"ping_interval": 0}),
        (towline.InvalidURL, "ftp://host/", {}),
        (towline.UsageError, "ws://host/", {"transport": towline.MockTransport(lambda request: None)}),  # type: ignore[arg-type,return-value]
    ]
    for error, url, options in mistakes:
        with pytest.raises(error), backend.open(url, **options):
            pass


def test_through_a_proxy_it_is_a_tunnel(backend: Any) -> None:
    heads: queue.Queue[bytes] = queue.Queue()

    def serve(connection: socket.socket, number: int) -> None:
        heads.put(read_head(connection))
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        handshake(connection)
        connection.sendall(frame(TEXT, b"through"))
        next_frame(connection)
        connection.sendall(frame(CLOSE))

    with serving(serve) as proxy:
        proxied = BACKENDS[backend.name](proxy=proxy.url)
        with proxied.open("ws://origin.example/") as ws:
            assert ws.recv() == "through"
        assert heads.get().startswith(b"CONNECT origin.example:80 HTTP/1.1\r\n")
        proxied.close()


# --- pace


def test_a_fast_sender_waits_for_a_slow_reader(backend: Any) -> None:
    sent = [0]

    def handler(ws: ServerConnection) -> None:
        for _ in range(100):
            ws.send(bytes(MIB))
            sent[0] += 1

    with peer(handler, compression=None) as url, backend.open(url) as ws:
        before, max_growth = rss_bytes(), 0
        for number in range(1, 101):
            assert len(ws.recv(timeout=MAX_WAIT)) == MIB
            # Data in between is in the buffers of the system: a few megabytes.
            assert sent[0] - number <= 16
            max_growth = max(max_growth, rss_bytes() - before)
        assert max_growth < 48 * MIB
