"""A response before the end of its request: the connection that it keeps is kept, and the client may send the rest first."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from tests.support.feature_server import KINDS, every_kind, parse, serving
from tests.support.http2_client import connected_client
from tests.support.http3.client import LIBRARIES
from tests.support.http3.connected import connected

MEBIBYTE = b"x" * (1024 * 1024)
OK = b"HTTP/1.1 200 OK"


async def unread(scope: Any, receive: Any, send: Any) -> None:
    """Answers without reading the request."""
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


def wsgi_unread(environ: Any, start_response: Any) -> Any:
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]


APPS = {"asgi": unread, "wsgi": wsgi_unread, "wsgi-threads": wsgi_unread}


def upload(framing: str, mebibytes: int, *fields: str) -> tuple[bytes, bytes]:
    """The head of a POST and one piece of its body, which is to be sent `mebibytes` times."""
    lines = ["POST /up HTTP/1.1", "Host: a", *fields]
    if framing == "chunked":
        lines.append("Transfer-Encoding: chunked")
        return "\r\n".join([*lines, "", ""]).encode(), b"100000\r\n" + MEBIBYTE + b"\r\n"
    lines.append(f"Content-Length: {mebibytes * len(MEBIBYTE)}")
    return "\r\n".join([*lines, "", ""]).encode(), MEBIBYTE


def send_all(conn: socket.socket, framing: str, mebibytes: int, *fields: str) -> None:
    head, piece = upload(framing, mebibytes, *fields)
    conn.sendall(head)
    for _ in range(mebibytes):
        conn.sendall(piece)
    if framing == "chunked":
        conn.sendall(b"0\r\n\r\n")


def read_response(conn: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\r\n\r\nok"):
        part = conn.recv(65536)
        assert part, data
        data += part
    return data


@every_kind
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_the_connection_serves_the_next_request(kind: str, framing: str) -> None:
    with (
        serving(kind, APPS[kind]) as server,
        socket.create_connection((server.host, server.port), 20) as conn,
    ):
        for _ in range(3):
            send_all(conn, framing, 8)
            response = read_response(conn)
            assert response.startswith(OK)
            assert b"connection: close" not in response.lower()


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_a_response_that_announces_the_close_can_be_read_after_the_upload(framing: str) -> None:
    with serving("asgi", unread) as server, socket.create_connection((server.host, server.port), 20) as conn:
        send_all(conn, framing, 16, "Connection: close")
        assert b"connection: close" in read_response(conn).lower()
        assert conn.recv(1) == b""


@every_kind
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_a_body_over_the_limit_can_be_sent_before_the_413_is_read(kind: str, framing: str) -> None:
    with (
        serving(kind, APPS[kind] if kind != "asgi" else reads, limit_request_body=100_000) as server,
        socket.create_connection((server.host, server.port), 20) as conn,
    ):
        send_all(conn, framing, 16)
        assert conn.recv(65536).startswith(b"HTTP/1.1 413 ")


async def reads(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass


@pytest.mark.parametrize("kind", ["asgi", "wsgi-threads"])
def test_over_http2_the_body_is_taken_and_the_stream_not_reset(kind: str) -> None:
    with connected_client(kind, APPS[kind]) as client:
        for _ in range(3):
            exchange = client.fetch("POST", "/up", MEBIBYTE * 4)
            assert (exchange.status, exchange.body, exchange.reset) == (200, b"ok", None)


@pytest.mark.parametrize("library", LIBRARIES)
def test_over_http3_the_body_is_taken_and_the_stream_not_stopped(library: str, tmp_path: Path) -> None:
    with connected("asgi", unread, tmp_path, library) as client:
        for mebibytes in (1, 4, 1):
            exchange = client.fetch("POST", "/up", MEBIBYTE * mebibytes)
            assert (exchange.status, exchange.body, exchange.reset) == (200, b"ok", None)


@pytest.mark.parametrize("announced", [True, False])
def test_over_http2_a_413_does_not_reset_the_stream(announced: bool) -> None:
    fields = [("content-length", str(4 * len(MEBIBYTE)))] if announced else []
    with connected_client("asgi", reads, limit_request_body=100_000) as client:
        exchange = client.fetch("POST", "/up", MEBIBYTE * 4, fields)
        assert (exchange.status, exchange.reset) == (413, None)
        assert client.fetch("POST", "/up", b"short", [("content-length", "5")]).status == 500


async def fails_at_the_end(scope: Any, receive: Any, send: Any) -> None:
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    more = scope["path"] == "/fails"
    await send({"type": "http.response.body", "body": b"ok", "more_body": more})
    if more:
        raise LookupError("after the last byte")


def wsgi_fails_at_the_end(environ: Any, start_response: Any) -> Any:
    start_response("200 OK", [("Content-Length", "2")])
    yield b"ok"
    if environ["PATH_INFO"] == "/fails":
        raise LookupError("after the last byte")


@every_kind
def test_a_response_that_is_complete_keeps_the_connection_although_its_application_fails(kind: str) -> None:
    app = fails_at_the_end if KINDS[kind]["interface"] == "asgi" else wsgi_fails_at_the_end
    with serving(kind, app) as server, socket.create_connection((server.host, server.port), 20) as conn:
        conn.sendall(b"GET /fails HTTP/1.1\r\nHost: a\r\n\r\n")
        assert parse(read_response(conn)).body == b"ok"
        conn.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert parse(read_response(conn)).body == b"ok"
