"""Static files over real sockets: the mount answers, the application never hears of it."""

from __future__ import annotations

import gzip
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from towline.errors import ConfigError, StartupError
from towline.testing import Running

from tests.support.feature_server import KINDS, fetch, parse, serving

BIG = bytes(range(256)) * 8192  # 2 MiB: more than a socket's buffer


@pytest.fixture(params=list(KINDS), scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    base = tmp_path_factory.mktemp("static")
    root = base / "root"
    (root / "sub").mkdir(parents=True)
    (base / "secret.txt").write_text("secret")
    (root / "page.html").write_text("<p>hello</p>")
    (root / "page.html.gz").write_bytes(gzip.compress(b"<p>hello</p>"))
    (root / "sub" / "a b.txt").write_text("spaced")
    (root / "big.bin").write_bytes(BIG)
    (root / "empty.txt").write_text("")
    (root / ".env").write_text("hidden")
    (root / "leaves").symlink_to("../secret.txt")
    (root / "stays").symlink_to("page.html")
    for file in root.rglob("*"):
        if file.is_file() and not file.is_symlink():
            os.utime(file, (1_000_000_000, 1_000_000_000))
    with serving(request.param, static=(("/static", str(root)),)) as running:
        yield running


def test_a_file(server: Running) -> None:
    response = fetch(server, "/static/page.html")
    assert (response.status, response.body) == (200, b"<p>hello</p>")
    assert response.field("content-type") == "text/html; charset=utf-8"
    assert response.field("content-length") == "12"
    assert response.field("cache-control") == "max-age=86400"
    assert response.field("last-modified") == "Sun, 09 Sep 2001 01:46:40 GMT"
    assert response.field("server") == "towline"
    assert response.field("date") is not None
    assert response.field("x-app") is None


def test_the_application_has_everything_else(server: Running) -> None:
    assert fetch(server, "/staticx").body == b"/staticx"
    assert fetch(server, "/").field("x-app") == "yes"


def test_head(server: Running) -> None:
    response = fetch(server, "/static/page.html", method="HEAD")
    assert (response.status, response.body, response.field("content-length")) == (200, b"", "12")


def test_other_methods(server: Running) -> None:
    response = fetch(server, "/static/page.html", "Content-Length: 0", method="POST")
    assert (response.status, response.field("allow")) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "path",
    [
        "missing",
        "",
        "sub",
        "sub/",
        ".env",
        "leaves",
        "../secret.txt",
        "%2e%2e/secret.txt",
        "sub/..%2f..%2fsecret.txt",
        "%00",
    ],
)
def test_a_path_that_is_not_served_is_404(server: Running, path: str) -> None:
    response = fetch(server, f"/static/{path}")
    assert response.status == 404
    assert b"secret" not in response.body


def test_names_are_decoded_and_links_inside_are_followed(server: Running) -> None:
    assert fetch(server, "/static/sub/a%20b.txt").body == b"spaced"
    assert fetch(server, "/static/stays").body == b"<p>hello</p>"


def test_not_modified(server: Running) -> None:
    tag = fetch(server, "/static/page.html").field("etag")
    response = fetch(server, "/static/page.html", f"If-None-Match: {tag}")
    assert (response.status, response.body, response.field("etag")) == (304, b"", tag)
    assert (
        fetch(server, "/static/page.html", "If-Modified-Since: Sun, 09 Sep 2001 01:46:40 GMT").status == 304
    )


def test_ranges(server: Running) -> None:
    response = fetch(server, "/static/big.bin", "Range: bytes=1000-1999")
    assert (response.status, response.body) == (206, BIG[1000:2000])
    assert response.field("content-range") == f"bytes 1000-1999/{len(BIG)}"
    assert fetch(server, "/static/big.bin", "Range: bytes=-5").body == BIG[-5:]
    response = fetch(server, "/static/big.bin", f"Range: bytes={len(BIG)}-")
    assert (response.status, response.field("content-range")) == (416, f"bytes */{len(BIG)}")


def test_a_precompressed_sibling(server: Running) -> None:
    response = fetch(server, "/static/page.html", "Accept-Encoding: br;q=0, gzip")
    assert response.field("content-encoding") == "gzip"
    assert response.field("vary") == "Accept-Encoding"
    assert gzip.decompress(response.body) == b"<p>hello</p>"


def test_big_and_empty_files(server: Running) -> None:
    assert fetch(server, "/static/big.bin").body == BIG
    response = fetch(server, "/static/empty.txt")
    assert (response.status, response.body, response.field("content-length")) == (200, b"", "0")


def test_files_and_application_take_turns_on_one_connection(server: Running) -> None:
    """Pipelined: the answers come in the order of the requests."""
    request = b"GET %s HTTP/1.1\r\nHost: test\r\n%s\r\n"
    targets = [b"/static/big.bin", b"/one", b"/static/page.html", b"/two"]
    data = b"".join(request % (target, b"") for target in targets)
    data += request % (b"/last", b"Connection: close\r\n")
    with socket.create_connection((server.host, server.port), timeout=10) as client:
        client.sendall(data)
        received = b""
        while part := client.recv(65536):
            received += part
    bodies = []
    for _ in range(5):
        head, _, rest = received.partition(b"\r\n\r\n")
        length = int(parse(head + b"\r\n\r\n").field("content-length") or 0)
        bodies.append(rest[:length])
        received = rest[length:]
    assert bodies == [BIG, b"/one", b"<p>hello</p>", b"/two", b"/last"]
    assert received == b""


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_is_served_for_its_directory_when_configured(kind: str, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<p>index</p>")
    routes = (("/static", str(tmp_path)),)
    with serving(kind, static=routes, static_index="index.html") as server:
        response = fetch(server, "/static/")
        assert (response.status, response.body) == (200, b"<p>index</p>")
        assert response.field("content-type") == "text/html; charset=utf-8"
        assert fetch(server, "/static").field("location") == "/static/"
    with serving(kind, static=routes) as server:
        assert fetch(server, "/static/").status == 404


def test_a_missing_directory_stops_the_start(tmp_path: Path) -> None:
    with (
        pytest.raises((StartupError, ConfigError), match="nowhere"),
        serving("asgi", static=(("/s", str(tmp_path / "nowhere")),)),
    ):
        pass
