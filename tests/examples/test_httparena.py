"""examples/httparena, started by its own command, under the checks that HttpArena makes of an entry before it measures it.

The arena (github.com/MDA2AV/HttpArena, scripts/validate.sh and scripts/validate-ws.py) starts a container. Here the command of its
Dockerfile runs with other ports and folders. The profiles of HTTP/3 and gRPC, which the arena only measures, are checked as well.
"""

from __future__ import annotations

import gzip
import os
import random
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import towline
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.support import http2_client
from tests.support.http3.client import Client as Http3Client
from tests.support.process import MAX_WAIT, eventually

from .arena import NO_DATABASE, Entry, check_item, check_items, started

for package in ("asyncpg", "google.protobuf", "msgspec"):
    pytest.importorskip(package)

TYPES = {"css": "text/css", "js": "text/javascript", "html": "text/html", "json": "application/json"}
TYPES |= {"svg": "image/svg+xml", "woff2": "font/woff2", "webp": "image/webp"}


@pytest.fixture(scope="module")
def plain(arena_entry: Entry) -> Iterator[httpx.Client]:
    with arena_entry.client(8080) as client:
        yield client


def exchange(arena_entry: Entry, *parts: bytes) -> bytes:
    """Everything that the entry sends to requests in these parts, each in a segment of its own, until it closes."""
    with socket.create_connection(("127.0.0.1", arena_entry.ports[8080]), timeout=MAX_WAIT) as conn:
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            conn.sendall(part)
        return b"".join(iter(lambda: conn.recv(65536), b""))


# baseline, limited-conn


def test_baseline(plain: httpx.Client) -> None:
    a, b = random.randrange(100, 1000), random.randrange(100, 1000)
    for body, content in [(None, 0), (b"20", 20), (iter([b"2", b"0"]), 20), (str(a).encode(), a)]:
        method = "GET" if body is None else "POST"
        response = plain.request(method, f"/baseline11?a={a}&b={b}", content=body)
        assert (response.text, response.headers["content-type"]) == (str(a + b + content), "text/plain")


@pytest.mark.parametrize(
    ("parts", "answer"),
    [
        ([b"GET /baseli", b"ne11?a=13&b=42 HTTP/1.1\r\n", b"Host: a\r\nConnection: close\r\n\r\n"], b"55"),
        ([b"GET /baseline11?a=13&b=42 HTTP/1.1\r\n", b"Host: a\r\n", b"Connection: close\r\n\r\n"], b"55"),
        ([b"POST /baseline11?a=13&b=42 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\n", b"20"], b"75"),
        ([b"POST /baseline11?a=13&b=42 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\n", b"2", b"0"], b"75"),
    ],
)  # fmt: skip
def test_requests_in_parts(arena_entry: Entry, parts: list[bytes], answer: bytes) -> None:
    assert exchange(arena_entry, *parts).endswith(b"\r\n\r\n" + answer)


@pytest.mark.parametrize("target", ["/baseline11?a=x&b=2", "/json/many", "/crud/items/0x1"])
def test_a_wrong_number_is_a_bad_request(plain: httpx.Client, target: str) -> None:
    assert plain.get(target).status_code == 400


def test_an_unknown_path(plain: httpx.Client) -> None:
    assert [plain.get("/nothing").status_code, plain.post("/pipeline").status_code] == [404, 404]


# pipelined, json, json-comp, json-tls, upload


def test_pipelined(arena_entry: Entry) -> None:
    request = b"GET /pipeline HTTP/1.1\r\nHost: a\r\n\r\n"
    received = exchange(
        arena_entry, request * 15 + request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    )
    assert received.count(b"HTTP/1.1 200 OK") == received.count(b"\r\n\r\nok") == 16
    assert received.count(b"content-type: text/plain\r\n") == 16


@pytest.mark.parametrize(("count", "factor"), [(12, 3), (22, 7), (31, 2), (50, 5), (1, 1)])
def test_json(arena_entry: Entry, plain: httpx.Client, count: int, factor: int) -> None:
    check_items(arena_entry, plain.get(f"/json/{count}?m={factor}"), count, factor)
    assert "content-encoding" not in plain.get(f"/json/{count}?m={factor}").headers
    check_items(arena_entry, plain.get(f"/public/json/{count}"), count, 1)


@pytest.mark.parametrize("coding", ["gzip", "br"])
@pytest.mark.parametrize(("count", "factor"), [(25, 3), (40, 7), (50, 2)])
def test_compressed_json(
    arena_entry: Entry, plain: httpx.Client, coding: str, count: int, factor: int
) -> None:
    url = plain.base_url.join(f"/json/{count}?m={factor}")
    response = towline.get(str(url), headers={"accept-encoding": coding})
    assert response.headers["content-encoding"] == coding
    check_items(arena_entry, response, count, factor)
    response = plain.get(url, headers={"accept-encoding": "gzip, br"})
    assert response.headers["content-encoding"] == "gzip"
    check_items(arena_entry, response, count, factor)


def test_json_over_tls(arena_entry: Entry) -> None:
    with arena_entry.client(8081, http2=True) as client:
        for count, factor in [(7, 2), (23, 11), (50, 1)]:
            response = client.get(f"/json/{count}?m={factor}")
            assert response.http_version == "HTTP/1.1"
            check_items(arena_entry, response, count, factor)


@pytest.mark.parametrize("size", [17, 48, 512_000, 2_097_152, 10_485_760, 20_971_520])
def test_upload(plain: httpx.Client, size: int) -> None:
    assert plain.post("/upload", content=os.urandom(size)).text == str(size)
    assert plain.post("/upload", content=iter([os.urandom(size)])).text == str(size)


# static, static-h2, static-h3, baseline-h2, baseline-h2c, json-h2c, baseline-h3


@pytest.mark.parametrize("port", [8080, 8443])
def test_static(arena_entry: Entry, port: int) -> None:
    names = [
        path.name for path in (arena_entry.data / "static").iterdir() if path.suffix not in (".gz", ".br")
    ]
    assert len(names) == 20
    compressed = 0
    with arena_entry.client(port, http2=port == 8443) as client:
        for name in names:
            expected = (arena_entry.data / "static" / name).read_bytes()
            for coding in ("identity", "gzip"):
                response = client.get(f"/static/{name}", headers={"accept-encoding": coding})
                assert response.headers["content-type"].split(";")[0] == TYPES[name.rpartition(".")[2]]
                assert response.content == expected
                compressed += response.headers.get("content-encoding") == "gzip"
        assert compressed == 15
        assert client.get("/static/nonexistent.txt").status_code == 404
        assert client.get("/static/../towline.toml").status_code == 404


def test_static_files_are_read_from_the_disk(arena_entry: Entry, plain: httpx.Client) -> None:
    path = arena_entry.data / "static" / "new.txt"
    for content in (b"one", b"another"):
        path.write_bytes(content)
        assert plain.get("/static/new.txt").content == content
    path.unlink()
    assert plain.get("/static/new.txt").status_code == 404


@pytest.mark.parametrize("port", [8443, 8082])
def test_http2(arena_entry: Entry, port: int) -> None:
    a, b = random.randrange(100, 1000), random.randrange(100, 1000)
    with arena_entry.client(port, http1=port == 8443, http2=True) as client:
        response = client.get(f"/baseline2?a={a}&b={b}")
        assert (response.text, response.headers["content-type"]) == (str(a + b), "text/plain")
        assert response.http_version == "HTTP/2"
        for count, factor in [(12, 3), (22, 7), (31, 2), (50, 5)]:
            check_items(arena_entry, client.get(f"/json/{count}?m={factor}"), count, factor)


def test_the_port_of_h2c_refuses_http1(arena_entry: Entry) -> None:
    with arena_entry.client(8082) as client, pytest.raises(httpx.HTTPError):
        client.get("/baseline2?a=1&b=1").raise_for_status()


def test_http3(arena_entry: Entry) -> None:
    a, b = random.randrange(100, 1000), random.randrange(100, 1000)
    with Http3Client(("127.0.0.1", arena_entry.ports[8443]), ca=str(arena_entry.authority)) as client:
        sum_of_both = client.fetch("GET", f"/baseline2?a={a}&b={b}")
        assert (sum_of_both.status, sum_of_both.body) == (200, str(a + b).encode())
        for name in ("reset.css", "vendor.js", "hero.webp"):
            file = client.fetch("GET", f"/static/{name}")
            assert file.body == (arena_entry.data / "static" / name).read_bytes()
            coded = client.fetch("GET", f"/static/{name}", headers=[("accept-encoding", "gzip;q=0.8")])
            is_text = coded.fields.get("content-encoding") == "gzip"
            assert is_text != name.endswith("webp")
            assert (gzip.decompress(coded.body) if is_text else coded.body) == file.body
        assert client.fetch("GET", "/static/nonexistent.txt").status == 404


# async-db, api-4, api-16, crud


@pytest.mark.parametrize(("low", "high", "limit"), [(5, 80, 7), (20, 150, 18), (100, 400, 33), (10, 50, 50)])
@pytest.mark.usefixtures("arena_database")
def test_async_db(plain: httpx.Client, low: int, high: int, limit: int) -> None:
    response = plain.get(f"/async-db?min={low}&max={high}&limit={limit}")
    found = response.json()
    assert response.headers["content-type"] == "application/json"
    assert found["count"] == len(found["items"]) == limit
    for item in found["items"]:
        check_item(item)
        assert low <= item["price"] <= high


@pytest.mark.usefixtures("arena_database")
def test_async_db_without_a_match_and_without_parameters(plain: httpx.Client) -> None:
    assert plain.get("/async-db?min=9999&max=9999&limit=50").json() == {"items": [], "count": 0}
    assert plain.get("/async-db").json()["count"] == 50
    assert plain.get("/async-db?limit=1000").json()["count"] == 50
    assert plain.get("/async-db?min=99999999999").status_code == 400


@pytest.mark.usefixtures("arena_database")
def test_crud_list(plain: httpx.Client) -> None:
    pages = [plain.get(f"/crud/items?category=electronics&page={page}&limit=5").json() for page in (1, 2)]
    for number, page in enumerate(pages, 1):
        assert (page["total"], page["page"], page["limit"]) == (5, number, 5)
        assert {item["category"] for item in page["items"]} == {"electronics"}
    numbers = [item["id"] for page in pages for item in page["items"]]
    assert numbers == sorted({*numbers})


def fresh(arena_entry: Entry, method: str, path: str, **options: Any) -> httpx.Response:
    """A request on a connection of its own, so that any worker may get it."""
    with arena_entry.client(8080) as client:
        return client.request(method, path, **options)


@pytest.mark.usefixtures("arena_database")
def test_crud(arena_entry: Entry) -> None:
    first = fresh(arena_entry, "GET", "/crud/items/42")
    check_item(first.json())
    second = fresh(arena_entry, "GET", "/crud/items/42")
    assert (first.headers["x-cache"], second.headers["x-cache"]) == ("MISS", "HIT")
    assert first.content == second.content
    assert fresh(arena_entry, "GET", "/crud/items/999999").status_code == 404

    item = {"id": 200001, "name": "new", "category": "test", "price": 42, "quantity": 7}
    created = fresh(arena_entry, "POST", "/crud/items", json=item)
    assert (created.status_code, created.json()) == (201, item)
    assert fresh(arena_entry, "GET", "/crud/items/200001").json()["price"] == 42
    assert fresh(arena_entry, "POST", "/crud/items", json={**item, "price": 43}).status_code == 201
    assert fresh(arena_entry, "GET", "/crud/items/200001").json()["price"] == 43

    change = {"name": "changed", "category": "test", "price": 99, "quantity": 1}
    assert fresh(arena_entry, "PUT", "/crud/items/200001", json=change).status_code == 200
    changed = fresh(arena_entry, "GET", "/crud/items/200001")
    assert (changed.headers["x-cache"], changed.json()["name"]) == ("MISS", "changed")
    assert fresh(arena_entry, "PUT", "/crud/items/999999", json=change).status_code == 404
    assert fresh(arena_entry, "PUT", "/crud/items/42", json={"name": 1}).status_code == 400


@pytest.mark.usefixtures("arena_database")
def test_the_cache_ends_after_its_time(arena_entry: Entry) -> None:
    assert fresh(arena_entry, "GET", "/crud/items/43").headers["x-cache"] == "MISS"
    eventually(
        lambda: fresh(arena_entry, "GET", "/crud/items/43").headers["x-cache"] == "MISS", "the end of 200 ms"
    )


def test_without_the_database(arena_data: Path, tmp_path: Path) -> None:
    for name in ("dataset.json", "static"):
        (tmp_path / name).symlink_to(arena_data / name)
    with started(tmp_path, NO_DATABASE) as entry, entry.client(8080) as client:
        assert client.get("/async-db?min=10&max=50&limit=5").json() == {"items": [], "count": 0}
        assert client.get("/crud/items/1").status_code == 503
        assert client.get("/pipeline").text == "ok"


# unary-grpc, stream-grpc, both with TLS

GRPC = [("content-type", "application/grpc"), ("te", "trailers")]


@pytest.fixture(params=[8080, 8443])
def rpc(request: pytest.FixtureRequest, arena_entry: Entry) -> Iterator[http2_client.Client]:
    context = None
    if request.param == 8443:
        context = ssl.create_default_context(cafile=str(arena_entry.authority))
        context.set_alpn_protocols(["h2"])
    with http2_client.Client(("127.0.0.1", arena_entry.ports[request.param]), tls=context) as client:
        yield client


def replies(body: bytes) -> list[bytes]:
    """The messages of a body."""
    found = []
    while body:
        assert body[0] == 0
        length = int.from_bytes(body[1:5], "big")
        found.append(body[5 : 5 + length])
        body = body[5 + length :]
    return found


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def test_unary_grpc(rpc: http2_client.Client) -> None:
    answer = rpc.fetch(
        "POST", "/benchmark.BenchmarkService/GetSum", bytes.fromhex("000000000408011002"), GRPC
    )
    assert (answer.status, answer.fields["content-type"]) == (200, "application/grpc")
    assert (answer.body, answer.trailers) == (bytes.fromhex("00000000020803"), {"grpc-status": "0"})


@pytest.mark.parametrize("count", [10, 5000, 0])
def test_stream_grpc(rpc: http2_client.Client, count: int) -> None:
    request = b"\x08\x0d\x10\x2a\x18" + varint(count)
    frame = b"\0" + len(request).to_bytes(4, "big") + request
    answer = rpc.fetch("POST", "/benchmark.BenchmarkService/StreamSum", frame, GRPC)
    assert replies(answer.body) == [b"\x08" + varint(13 + 42 + number) for number in range(count)]
    assert answer.trailers == {"grpc-status": "0"}


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"\1\0\0\0\0", "12"), (b"", "13"), (b"\0\0\0\0\5\0", "13"), (b"\0\0\0\0\1\xff", "13")],
)
def test_grpc_that_fails(rpc: http2_client.Client, body: bytes, status: str) -> None:
    answer = rpc.fetch("POST", "/benchmark.BenchmarkService/GetSum", body, GRPC)
    assert (answer.status, answer.fields["grpc-status"], answer.body) == (200, status, b"")


# echo-ws


def test_websocket(arena_entry: Entry) -> None:
    url = f"ws://127.0.0.1:{arena_entry.ports[8080]}"
    with connect(f"{url}/ws") as ws:
        for message in ("hello", os.urandom(256), "x" * 100_000, ""):
            ws.send(message)
            assert ws.recv(timeout=MAX_WAIT) == message
        messages = [f"message {number}" for number in range(5)]
        for message in messages:
            ws.send(message)
        assert [ws.recv(timeout=MAX_WAIT) for _ in messages] == messages
    assert ws.protocol.close_code == 1000
    with pytest.raises(InvalidStatus), connect(f"{url}/other"):
        pass


def test_a_request_to_the_websocket_without_an_upgrade(plain: httpx.Client) -> None:
    assert plain.get("/ws").status_code == 426
