"""The application of this deployment: a greeting, an event stream, and an error for the dashboard and the alerts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        raise NotImplementedError(f"http only, not {scope['type']}")
    if scope["path"] == "/error":
        raise RuntimeError("as requested")
    if scope["path"] == "/events":
        await events(send)
        return
    client = (scope["client"] or ("unknown",))[0]  # of X-Forwarded-For, which nginx sets
    body = f"Hello {client}, from worker {os.getpid()}\n".encode()
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def events(send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for number in range(5):
        event = b"data: %d\n\n" % number
        await send({"type": "http.response.body", "body": event, "more_body": True})
        await asyncio.sleep(0.2)
    await send({"type": "http.response.body"})
