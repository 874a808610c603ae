"""`--compress` over real sockets."""

from __future__ import annotations

import gzip
import socket
import zlib
from collections.abc import Iterator

import pytest
from towline.testing import Running

from tests.support.feature_server import KINDS, TEXT, fetch, parse, serving


@pytest.fixture(params=list(KINDS), scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Running]:
    with serving(request.param, compress=("br", "zstd", "gzip")) as running:
        yield running


def test_gzip(server: Running) -> None:
    response = fetch(server, "/text", "Accept-Encoding: gzip")
    assert response.field("content-encoding") == "gzip"
    assert response.field("vary") == "Accept-Encoding"
    assert response.field("etag") == 'W/"tag"'
    assert response.field("content-length") == str(len(response.body))
    assert gzip.decompress(response.body) == TEXT


@pytest.mark.parametrize(
    ("accept", "coding"),
    [
        ("gzip, br, zstd", "br"),
        ("gzip, zstd", "zstd"),
        ("br;q=0.1, gzip", "gzip"),
        ("*", "br"),
        ("br;q=0, *;q=0.5", "zstd"),
    ],
)
def test_negotiation(server: Running, accept: str, coding: str) -> None:
    response = fetch(server, "/text", f"Accept-Encoding: {accept}")
    assert response.field("content-encoding") == coding
    assert len(response.body) < len(TEXT) / 4


@pytest.mark.parametrize("accept", ["identity", "gzip;q=0", "deflate", ""])
def test_clients_that_take_nothing_get_plain_text(server: Running, accept: str) -> None:
    response = fetch(server, "/text", f"Accept-Encoding: {accept}")
    assert (response.body, response.field("content-encoding")) == (TEXT, None)
    assert response.field("vary") == "Accept-Encoding"
    assert response.field("etag") == '"tag"'


def test_small_answers_stay_as_they_are(server: Running) -> None:
    response = fetch(server, "/small", "Accept-Encoding: gzip")
    assert (response.body, response.field("content-encoding"), response.field("vary")) == (
        b"/small",
        None,
        None,
    )


def test_head_has_the_headers_of_get(server: Running) -> None:
    response = fetch(server, "/text", "Accept-Encoding: gzip", method="HEAD")
    assert (response.body, response.field("content-encoding")) == (b"", "gzip")
    assert response.field("content-length") is None


def test_a_stream_is_whole(server: Running) -> None:
    response = fetch(server, "/stream", "Accept-Encoding: gzip")
    assert response.field("transfer-encoding") == "chunked"
    assert gzip.decompress(response.body) == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"


def test_http_1_0_gets_it_until_the_end_of_the_connection(server: Running) -> None:
    request = b"GET /stream HTTP/1.0\r\nAccept-Encoding: gzip\r\n\r\n"
    with socket.create_connection((server.host, server.port), timeout=10) as client:
        client.sendall(request)
        received = b""
        while part := client.recv(65536):
            received += part
    response = parse(received)
    assert gzip.decompress(response.body) == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"


def test_each_event_arrives_before_the_next_is_made() -> None:
    """Otherwise an event source over compression is silent until some buffer fills."""
    import asyncio

    gates = [asyncio.Event() for _ in range(2)]
    loops = []

    async def app(scope, receive, send):  # type: ignore[no-untyped-def]
        loops.append(asyncio.get_running_loop())
        fields = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": fields})
        for number, gate in enumerate(gates):
            await send({"type": "http.response.body", "body": b"data: %d\n\n" % number, "more_body": True})
            await asyncio.wait_for(gate.wait(), 10)
        await send({"type": "http.response.body", "body": b""})

    from towline.testing import serve

    with (
        serve(app, compress=("gzip",)) as server,
        socket.create_connection((server.host, server.port), timeout=10) as client,
    ):
        client.sendall(b"GET / HTTP/1.1\r\nHost: test\r\nAccept-Encoding: gzip\r\n\r\n")
        decoder, raw, text = zlib.decompressobj(31), b"", b""
        for number, gate in enumerate(gates):
            while b"data: %d\n\n" % number not in text:
                part = client.recv(65536)
                assert part, "closed early"
                raw += part
                _, found, body = raw.partition(b"\r\n\r\n")
                if found:
                    decoder, text = zlib.decompressobj(31), b""
                    for content in _chunks(body):
                        text += decoder.decompress(content)
            loops[0].call_soon_threadsafe(gate.set)


def _chunks(body: bytes) -> Iterator[bytes]:
    """The whole chunks at the start of a body that is still arriving."""
    while b"\r\n" in body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        if length == 0 or len(rest) < length + 2:
            return
        yield rest[:length]
        body = rest[length + 2 :]


def test_switched_off_it_is_off() -> None:
    with serving("asgi") as server:
        response = fetch(server, "/text", "Accept-Encoding: gzip")
    assert (response.body, response.field("vary")) == (TEXT, None)
