"""HttpArena's validation of an entry, for the profiles that need neither a database nor a proxy.

The arena (github.com/MDA2AV/HttpArena, scripts/validate.sh) sends these requests to a container. Here they go to servers as its
profiles ask for: HTTP/1.1, TLS with HTTP/1.1 and HTTP/2, and HTTP/2 alone in clear text.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import httpx
import pytest
import trustme
from towline.testing import Running, serve
from websockets.sync.client import connect

ITEMS = [
    {
        **{
            "id": number,
            "name": f"item {number}",
            "category": "tools",
            "price": number * 7,
            "quantity": number % 9,
        },
        **{"active": number % 2 == 0, "tags": ["a", "b"], "rating": {"score": number % 5, "count": number}},
    }
    for number in range(1, 51)
]
FILES = {"reset.css": "text/css", "app.js": "javascript", "manifest.json": "application/json"}


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await echo(receive, send)
        return
    path, query = scope["path"], {k: v[0] for k, v in parse_qs(scope["query_string"].decode()).items()}
    received = b""
    while True:
        message = await receive()
        received += message["body"]
        if not message.get("more_body"):
            break
    content_type = b"text/plain"
    if path in ("/baseline11", "/baseline2"):
        body = str(int(query["a"]) + int(query["b"]) + int(received or 0)).encode()
    elif path == "/pipeline":
        body = b"ok"
    elif path == "/upload":
        body = str(len(received)).encode()
    else:
        count, factor = int(path.rpartition("/")[2]), int(query["m"])
        items = [{**item, "total": item["price"] * item["quantity"] * factor} for item in ITEMS[:count]]
        body, content_type = json.dumps({"items": items, "count": count}).encode(), b"application/json"
    headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def echo(receive: Any, send: Any) -> None:
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({**message, "type": "websocket.send"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("static")
    for name in FILES:
        (made / name).write_bytes(b"/* %s */\n" % name.encode() * 500)
    return made


@pytest.fixture(scope="module")
def plain(folder: Path) -> Iterator[Running]:
    options = {"static": (("/static", str(folder)),), "compress": ("gzip", "br"), "http2": False}
    with serve(app, lifespan="off", **options) as running:
        yield running


@pytest.fixture(scope="module", params=["json-tls", "h2", "h2c"])
def client(
    request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """A client of each profile beside HTTP/1.1 in clear text."""
    options: dict[str, Any] = {"static": (("/static", str(folder)),)}
    context, scheme = ssl.create_default_context(), "http"
    if request.param == "h2c":
        options |= {"http1": False, "http2": True}
    else:
        authority = trustme.CA()
        authority.configure_trust(context)
        pem = tmp_path_factory.mktemp("tls") / "server.pem"
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(pem)
        options |= {"ssl_certfile": str(pem), "ssl_keyfile": str(pem)}
        scheme = "https"
    is_h1 = request.param == "json-tls"
    with (
        serve(app, lifespan="off", **options) as running,
        httpx.Client(
            http1=is_h1, http2=not is_h1, verify=context, base_url=f"{scheme}://127.0.0.1:{running.port}"
        ) as made,
    ):
        made.headers["accept-encoding"] = "identity"
        made.headers["x-version"] = "HTTP/1.1" if is_h1 else "HTTP/2"
        yield made


def url(running: Running, path: str) -> str:
    return f"http://127.0.0.1:{running.port}{path}"


def check_items(response: httpx.Response, count: int, factor: int) -> None:
    document = response.json()
    assert response.headers["content-type"].startswith("application/json")
    assert document["count"] == len(document["items"]) == count
    assert all(item["total"] == item["price"] * item["quantity"] * factor for item in document["items"])


def test_baseline(plain: Running) -> None:
    a, b = random.randrange(100, 1000), random.randrange(100, 1000)
    for body, content in [(None, 0), (b"20", 20), (iter([b"2", b"0"]), 20), (str(a).encode(), a)]:
        method = "GET" if body is None else "POST"
        response = httpx.request(method, url(plain, f"/baseline11?a={a}&b={b}"), content=body)
        assert (response.text, response.headers["content-type"]) == (str(a + b + content), "text/plain")


@pytest.mark.parametrize(
    ("parts", "answer"),
    [
        (["GET /baseli", "ne11?a=13&b=42 HTTP/1.1\r\n", "Host: a\r\nConnection: close\r\n\r\n"], b"55"),
        (["GET /baseline11?a=13&b=42 HTTP/1.1\r\n", "Host: a\r\n", "Connection: close\r\n\r\n"], b"55"),
        (["POST /baseline11?a=13&b=42 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\n", "20"], b"75"),
        (["POST /baseline11?a=13&b=42 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\n", "2", "0"], b"75"),
    ],
)  # fmt: skip
def test_requests_in_parts(plain: Running, parts: list[str], answer: bytes) -> None:
    with socket.create_connection(("127.0.0.1", plain.port), timeout=20) as conn:
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            conn.sendall(part.encode())
        received = b"".join(iter(lambda: conn.recv(65536), b""))
    assert received.endswith(b"\r\n\r\n" + answer)


def test_pipelined(plain: Running) -> None:
    request = b"GET /pipeline HTTP/1.1\r\nHost: a\r\n\r\n"
    with socket.create_connection(("127.0.0.1", plain.port), timeout=20) as conn:
        conn.sendall(request * 15 + request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        received = b"".join(iter(lambda: conn.recv(65536), b""))
    assert received.count(b"HTTP/1.1 200 OK") == received.count(b"\r\n\r\nok") == 16


@pytest.mark.parametrize(("count", "factor"), [(12, 3), (22, 7), (31, 2), (50, 5)])
def test_json(plain: Running, count: int, factor: int) -> None:
    target = url(plain, f"/json/{count}?m={factor}")
    check_items(httpx.get(target, headers={"accept-encoding": "identity"}), count, factor)
    assert "content-encoding" not in httpx.get(target, headers={"accept-encoding": "identity"}).headers
    with httpx.stream("GET", target, headers={"accept-encoding": "gzip"}) as response:
        assert response.headers["content-encoding"] == "gzip"
        assert json.loads(gzip.decompress(b"".join(response.iter_raw())))["count"] == count


@pytest.mark.parametrize("size", [17, 48, 512_000, 2_097_152, 10_485_760, 20_971_520])
def test_upload(plain: Running, size: int) -> None:
    assert httpx.post(url(plain, "/upload"), content=os.urandom(size)).text == str(size)


def test_static(plain: Running, folder: Path) -> None:
    for name, content_type in FILES.items():
        for coding in ("identity", "gzip"):
            response = httpx.get(url(plain, f"/static/{name}"), headers={"accept-encoding": coding})
            assert content_type in response.headers["content-type"]
            assert response.content == (folder / name).read_bytes()
    assert httpx.get(url(plain, "/static/nonexistent.txt")).status_code == 404
    (folder / "app.js").write_bytes(b"changed")
    assert httpx.get(url(plain, "/static/app.js")).content == b"changed"


def test_websocket(plain: Running) -> None:
    with connect(f"ws://127.0.0.1:{plain.port}/ws") as ws:
        for message in ("hello", b"\x00\xff", "x" * 100_000, ""):
            ws.send(message)
            assert ws.recv(timeout=20) == message


def test_the_other_versions(client: httpx.Client, folder: Path) -> None:
    a, b = random.randrange(100, 1000), random.randrange(100, 1000)
    response = client.get(f"/baseline2?a={a}&b={b}")
    assert (response.text, response.headers["content-type"]) == (str(a + b), "text/plain")
    assert response.http_version == client.headers["x-version"]
    for count, factor in [(7, 2), (23, 11), (50, 1)]:
        check_items(client.get(f"/json/{count}?m={factor}"), count, factor)
    assert client.get("/static/reset.css").content == (folder / "reset.css").read_bytes()
    assert client.get("/static/nonexistent.txt").status_code == 404
    if client.base_url.scheme == "http":
        with pytest.raises(httpx.HTTPError):  # HTTP/2 alone: the arena refuses a port that speaks both
            httpx.get(client.base_url.join("/baseline2?a=1&b=1")).raise_for_status()
