"""One application for both interfaces, with a path for each response that the HTTP/2 tests need."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from typing import Any

PIECE = b"0123456789abcdef" * 512
"""8 KiB."""


async def asgi_app(scope: Any, receive: Any, send: Any) -> None:
    path = scope["path"]
    status, headers, body = 200, [(b"content-type", b"text/plain")], path.encode()
    if path == "/echo":
        await echo(receive, send)
        return
    if path.startswith("/pieces/"):
        await pieces(send, int(path.removeprefix("/pieces/")))
        return
    if path.startswith("/file/"):
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.pathsend", "path": path.removeprefix("/file")})
        return
    if path.startswith("/sleep/"):
        await asyncio.sleep(float(path.removeprefix("/sleep/")))
    elif path.startswith("/status/"):
        status, body = int(path.removeprefix("/status/")), b""
    elif path == "/version":
        body = f"{scope['http_version']} {scope['scheme']}".encode()
    elif path == "/client":
        body = scope["client"][0].encode()
    elif path == "/fail":
        raise RuntimeError("as asked")
    elif path == "/cut":
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise RuntimeError("as asked")
    elif path == "/fields":
        body = b"\n".join(b"%s: %s" % field for field in scope["headers"])
        headers += [(b"connection", b"close"), (b"keep-alive", b"5"), (b"X-Mixed", b"Case")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def echo(receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        more = message["more_body"]
        await send({"type": "http.response.body", "body": message["body"], "more_body": more})


async def pieces(send: Any, count: int) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(count):
        await send({"type": "http.response.body", "body": PIECE, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def wsgi_app(environ: dict[str, Any], start_response: Any) -> Any:
    path = environ["PATH_INFO"]
    headers = [("content-type", "text/plain")]
    if path == "/echo":
        start_response("200 OK", [])
        return iter(lambda: environ["wsgi.input"].read(16384), b"")
    if path.startswith("/pieces/"):
        start_response("200 OK", [])
        return wsgi_pieces(int(path.removeprefix("/pieces/")))
    if path.startswith("/file/"):
        start_response("200 OK", headers)
        return environ["wsgi.file_wrapper"](open(path.removeprefix("/file"), "rb"))
    status, body = "200 OK", path.encode()
    if path.startswith("/sleep/"):
        time.sleep(float(path.removeprefix("/sleep/")))
    elif path.startswith("/status/"):
        status, body = path.removeprefix("/status/") + " As asked", b""
    elif path == "/version":
        body = f"{environ['SERVER_PROTOCOL']} {environ['wsgi.url_scheme']}".encode()
    elif path == "/client":
        body = environ["REMOTE_ADDR"].encode()
    elif path == "/fail":
        raise RuntimeError("as asked")
    elif path == "/cut":
        start_response("200 OK", headers)
        return broken()
    elif path == "/fields":
        fields = sorted((name, value) for name, value in environ.items() if name.startswith("HTTP_"))
        body = "\n".join(f"{name}: {value}" for name, value in fields).encode()
        headers += [("X-Mixed", "Case")]
    start_response(status, headers)
    return [body]


def wsgi_pieces(count: int) -> Iterator[bytes]:
    for _ in range(count):
        yield PIECE


def broken() -> Iterator[bytes]:
    yield b"half"
    raise RuntimeError("as asked")


APPS = {"asgi": asgi_app, "wsgi": wsgi_app, "wsgi-threads": wsgi_app}


def payload(size: int) -> bytes:
    return os.urandom(size)
