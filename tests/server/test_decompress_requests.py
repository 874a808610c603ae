"""Request bodies with a content coding, which the server decodes (`--decompress-requests`)."""

from __future__ import annotations

import gzip
import json
import random
import socket
import zlib
from pathlib import Path
from typing import Any

import pytest
from towline._codings import REQUEST_CODINGS
from towline.config import ServerConfig
from towline.errors import ConfigError

from tests.support.every_version import every_version_and_kind, fetching
from tests.support.feature_server import every_kind, fetch, parse, samples, serving
from tests.support.sockets import read_all

ALL = {"decompress_requests": REQUEST_CODINGS}
TEXT = b"".join(b"%d %d\n" % (n, n * n) for n in range(20_000))
BOMB = gzip.compress(bytes(60 << 20))


def encoded(coding: str, body: bytes) -> bytes:
    """The body in a coding; the server itself is the encoder of those that Python lacks."""
    if coding == "gzip":
        return gzip.compress(body)
    if coding == "deflate":
        return zlib.compress(body)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    with serving("asgi", app, compress=(coding,)) as server:
        response = fetch(server, "/", f"Accept-Encoding: {coding}")
    assert response.field("content-encoding") == coding
    return response.body


async def echo_asgi(scope: Any, receive: Any, send: Any) -> None:
    """Responds with the length of the body, its sum, and the headers about it."""
    size = sum = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError("left")
        size, sum = size + len(message["body"]), zlib.crc32(message["body"], sum)
        if not message["more_body"]:
            break
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    body = json.dumps([size, sum, headers.get("content-encoding"), headers.get("content-length")]).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def echo_wsgi(environ: dict[str, Any], start_response: Any) -> Any:
    """Responds with the length of the body, its sum, and the headers about it."""
    size = sum = 0
    while part := environ["wsgi.input"].read(10_000):
        size, sum = size + len(part), zlib.crc32(part, sum)
    described = [size, sum, environ.get("HTTP_CONTENT_ENCODING"), environ.get("CONTENT_LENGTH")]
    start_response("200 OK", [])
    return [json.dumps(described).encode()]


def echo(kind: str) -> Any:
    return echo_asgi if kind == "asgi" else echo_wsgi


def chunked(head: str, *parts: bytes) -> bytes:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return f"{head}\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + chunks


POST = "POST / HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Encoding: gzip"


@every_version_and_kind
def test_every_coding(version: str, kind: str, tmp_path: Path) -> None:
    with fetching(version, kind, echo(kind), tmp_path, **ALL) as send:
        for coding in REQUEST_CODINGS:
            body = encoded(coding, TEXT)
            answer = json.loads(send("POST", "/", body, (("content-encoding", coding),)).body)
            length = None if kind == "asgi" else str(len(TEXT))
            assert answer == [len(TEXT), zlib.crc32(TEXT), None, length], coding
        twice = encoded("br", encoded("gzip", TEXT))
        answer = json.loads(send("POST", "/", twice, (("content-encoding", "gzip, br"),)).body)
        assert answer[:2] == [len(TEXT), zlib.crc32(TEXT)]
        plain = json.loads(send("POST", "/", b"abc", (("content-encoding", "identity"),)).body)
        assert plain == [3, zlib.crc32(b"abc"), "identity", "3" if version == "1.1" else plain[3]]
        nothing = send("GET", "/", headers=(("content-encoding", "unknown"),))
        assert (nothing.status, json.loads(nothing.body)[0]) == (200, 0)


@every_version_and_kind
def test_refusals(version: str, kind: str, tmp_path: Path) -> None:
    options = {**ALL, "limit_decompressed_body": 50 << 20}
    with fetching(version, kind, echo(kind), tmp_path, metrics=True, **options) as send:
        coded = (("content-encoding", "gzip"),)
        unknown = send("POST", "/", b"x" * 100_000, (("content-encoding", "compress"),))
        assert unknown.status == 415
        assert unknown.fields["accept-encoding"] == "gzip, deflate, br, zstd"
        body = gzip.compress(TEXT)
        for broken in (body[:-1], body[:1000], b"not gzip" * 1000):
            assert send("POST", "/", broken, coded).status == 400
        bomb = send("POST", "/", BOMB, coded)
        assert bomb.status == 413
        assert b"200 times" in bomb.body
        page = send("GET", "/metrics").body.decode()
    counts = samples(page)
    assert counts['towline_refused_total{reason="content_coding"}'] == 4
    assert counts['towline_refused_total{reason="body_too_large"}'] == 1


@every_kind
@pytest.mark.parametrize("option", ["limit_decompressed_body", "limit_request_body"])
def test_the_decoded_size_is_bounded(kind: str, option: str, tmp_path: Path) -> None:
    body = gzip.compress(TEXT)
    coded = (("content-encoding", "gzip"),)
    for limit, status in ((len(TEXT), 200), (len(TEXT) - 1, 413)):
        with fetching("1.1", kind, echo(kind), tmp_path, **ALL, **{option: limit}) as send:
            assert send("POST", "/", body, coded).status == status


@every_kind
def test_pieces_trailers_and_100_continue(kind: str) -> None:
    body = gzip.compress(TEXT)
    cuts = sorted(random.Random(7).sample(range(1, len(body)), 20))
    parts = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    with serving(kind, echo(kind), **ALL) as server:
        with socket.create_connection((server.host, server.port), timeout=20) as client:
            client.sendall(chunked(f"{POST}\r\nExpect: 100-continue"))
            assert client.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
            for part in parts:
                client.sendall(b"%x\r\n%b\r\n" % (len(part), part))
            client.sendall(b"0\r\nX-Sum: 1\r\n\r\n")
            response = parse(read_all(client))
    assert json.loads(response.body)[:3] == [len(TEXT), zlib.crc32(TEXT), None]


@every_kind
def test_an_unknown_coding_gets_no_100(kind: str) -> None:
    with serving(kind, echo(kind), decompress_requests=("br",)) as server:
        with socket.create_connection((server.host, server.port), timeout=20) as client:
            client.sendall(chunked(f"{POST}\r\nExpect: 100-continue"))
            response = parse(read_all(client))
    assert response.status == 415
    assert response.field("accept-encoding") == "br"


@every_kind
def test_a_client_that_leaves_midway(kind: str) -> None:
    with serving(kind, echo(kind), **ALL) as server:
        with socket.create_connection((server.host, server.port), timeout=20) as client:
            client.sendall(chunked(POST, gzip.compress(TEXT)[:5000]))
        assert fetch(server, "/").status == 200


@pytest.mark.parametrize("kind", ["wsgi", "wsgi-threads"])
def test_a_body_that_is_streamed_to_wsgi_input(kind: str, tmp_path: Path) -> None:
    options = {**ALL, "wsgi_request_buffer": 0, "metrics": True}
    coded = (("content-encoding", "gzip"),)
    body = gzip.compress(TEXT)
    for version in ("1.1", "2", "3"):
        with fetching(version, kind, echo_wsgi, tmp_path, **options) as send:
            answer = json.loads(send("POST", "/", body, coded).body)
            assert answer == [len(TEXT), zlib.crc32(TEXT), None, None]
            assert send("POST", "/", body[:-1], coded).status == 400
            assert send("POST", "/", BOMB, coded).status == 413
            counts = samples(send("GET", "/metrics").body.decode())
        assert counts['towline_refused_total{reason="content_coding"}'] == 1
        assert counts['towline_refused_total{reason="body_too_large"}'] == 1


def test_a_response_that_has_begun_is_aborted() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass

    with serving("asgi", app, **ALL) as server:
        with socket.create_connection((server.host, server.port), timeout=20) as client:
            client.sendall(chunked(POST, b"\x1f\x8bbroken"))
            received = b""
            try:
                while part := client.recv(1000):
                    received += part
            except ConnectionResetError:
                pass
    assert b"200 OK" in received
    assert not received.endswith(b"0\r\n\r\n")


@every_kind
def test_off_by_default(kind: str, tmp_path: Path) -> None:
    body = gzip.compress(TEXT)
    with fetching("1.1", kind, echo(kind), tmp_path) as send:
        answer = json.loads(send("POST", "/", body, (("content-encoding", "gzip"),)).body)
    assert answer == [len(body), zlib.crc32(body), "gzip", str(len(body))]


def test_codings_are_checked() -> None:
    with pytest.raises(
        ConfigError, match="decompress_requests: unknown coding 'lz4'; there are gzip, deflate"
    ):
        ServerConfig("app:app", decompress_requests=("lz4",))
