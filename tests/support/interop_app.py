"""ASGI application that any server can run: a small response, a large one, an echo, and one that begins at once."""

from __future__ import annotations

from typing import Any

SMALL = b"hello"
LARGE = bytes(range(256)) * 12_000


async def app(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] == "http", "run it without lifespan"
    if scope["path"] == "/talk":
        await talk(receive, send)
        return
    body = {"/small": SMALL, "/large": LARGE}.get(scope["path"])
    if scope["path"] == "/echo":
        body = await received(receive)
    length = len(body or b"")
    head = [(b"content-length", b"%d" % length), (b"x-version", scope["http_version"].encode())]
    await send({"type": "http.response.start", "status": 404 if body is None else 200, "headers": head})
    pieces = range(0, length, 65_536) if scope["method"] != "HEAD" else ()
    for at in pieces:
        piece = (body or b"")[at : at + 65_536]
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def received(receive: Any) -> bytes:
    body = b""
    while True:
        message = await receive()
        assert message["type"] == "http.request"
        body += message["body"]
        if not message["more_body"]:
            return body


async def talk(receive: Any, send: Any) -> None:
    """Sends the head, then each piece of the request body as it comes."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"", "more_body": True})
    while (message := await receive())["type"] == "http.request":
        more = message["more_body"]
        await send({"type": "http.response.body", "body": message["body"], "more_body": more})
        if not more:
            return
