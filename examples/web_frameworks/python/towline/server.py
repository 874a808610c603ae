"""The routes of the contract as an ASGI application without a framework."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

Send = Callable[[dict[str, Any]], Awaitable[None]]


async def app(scope: dict[str, Any], receive: Callable[[], Awaitable[dict[str, Any]]], send: Send) -> None:
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    status, body = route(scope["method"], scope["path"])
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def route(method: str, path: str) -> tuple[int, bytes]:
    if path == "/":
        return (200, b"") if method == "GET" else (405, b"")
    if path == "/user":
        return (200, b"") if method == "POST" else (405, b"")
    if path.startswith("/user/"):
        return (200, path[len("/user/") :].encode()) if method == "GET" else (405, b"")
    return 404, b""
