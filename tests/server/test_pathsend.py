"""`http.response.pathsend` never costs an application its compression, and `--ws` switches WebSocket off."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from towline import testing

from tests.support.feature_server import fetch

TEXT = b"body { color: black }\n" * 1000


async def offered(scope: Any, receive: Any, send: Any) -> None:
    """Responds with the type of the scope and whether it has the extension."""
    if scope["type"] == "lifespan":
        raise NotImplementedError
    body = f"{scope['type']} {'http.response.pathsend' in scope['extensions']}".encode()
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]}
    )
    await send({"type": "http.response.body", "body": body})


@pytest.mark.parametrize(
    ("pathsend", "field", "expected"),
    [
        ("auto", "Accept-Encoding: gzip, deflate, br", b"http False"),
        ("auto", "accept-encoding: zstd", b"http False"),
        ("auto", "Accept-Encoding: identity", b"http True"),
        ("auto", "Accept-Encoding:", b"http True"),
        ("auto", "Accept: text/css", b"http True"),
        ("on", "Accept-Encoding: gzip", b"http True"),
        ("off", "Accept: text/css", b"http False"),
    ],
)
def test_the_requests_that_are_offered_pathsend(pathsend: str, field: str, expected: bytes) -> None:
    with testing.serve(offered, pathsend=pathsend) as server:
        assert fetch(server, "/", field).body == expected


def test_starlette_compresses_static_files_as_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("starlette")
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.gzip import GZipMiddleware
    from starlette.routing import Mount
    from starlette.staticfiles import StaticFiles

    (tmp_path / "base.css").write_bytes(TEXT)
    app = Starlette(
        routes=[Mount("/static", StaticFiles(directory=tmp_path))], middleware=[Middleware(GZipMiddleware)]
    )
    with testing.serve(app) as server:
        compressed = fetch(server, "/static/base.css", "Accept-Encoding: gzip")
        assert compressed.field("content-encoding") == "gzip"
        assert gzip.decompress(compressed.body) == TEXT
        plain = fetch(server, "/static/base.css")
        assert (plain.field("content-encoding"), plain.body) == (None, TEXT)


def test_without_websocket_an_upgrade_is_an_ordinary_request() -> None:
    upgrade = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13")
    key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
    with testing.serve(offered, ws=False) as server:
        response = fetch(server, "/", *upgrade, key)
        assert (response.status, response.body.split()[0]) == (200, b"http")
