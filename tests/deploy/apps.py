"""Application behind the proxies.

| path         | response                                                           |
|--------------|--------------------------------------------------------------------|
| /seen        | scheme, client's address, host and HTTP version of the request     |
| /events?FILE | one event; once the file exists, others until the client leaves    |
| /upload      | length and SHA-256 of the body                                     |
| /pid         | the worker's process id                                            |

A WebSocket at any path sends every message back.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from typing import Any


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await _echo(receive, send)
        return
    kind = b"text/event-stream" if scope["path"] == "/events" else b"text/plain"
    body = b"%d" % os.getpid()
    if scope["path"] == "/seen":
        host = dict(scope["headers"])[b"host"].decode()
        body = f"{scope['scheme']} {scope['client'][0]} {host} {scope['http_version']}".encode()
    elif scope["path"] == "/upload":
        body = await _digest(receive)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    if scope["path"] == "/events":
        await _send_events(Path(scope["query_string"].decode()), receive, send)
        return
    await send({"type": "http.response.body", "body": body})


async def _send_events(gate: Path, receive: Any, send: Any) -> None:
    await send({"type": "http.response.body", "body": b"data: first\n\n", "more_body": True})
    while not gate.exists():
        await asyncio.sleep(0.01)
    await receive()
    left = asyncio.ensure_future(receive())
    while not left.done():
        # HAProxy closes its side when it cannot pass an event on, and only then.
        await send({"type": "http.response.body", "body": b"data: next\n\n", "more_body": True})
        await asyncio.sleep(0.01)


async def _digest(receive: Any) -> bytes:
    length, digest, more = 0, hashlib.sha256(), True
    while more:
        message = await receive()
        assert message["type"] == "http.request", message
        length += len(message["body"])
        digest.update(message["body"])
        more = message["more_body"]
    return f"{length} {digest.hexdigest()}".encode()


async def _echo(receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({**message, "type": "websocket.send"})
