"""Applications that count in the store of their server. `/pid`: the worker; `/count`: adds one; `/where`: the store."""

from __future__ import annotations

import os
from typing import Any

import towline.state
from towline._state_location import STATE_VARIABLE

blocking = towline.state.open()
shared = towline.state.open_async()


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] == "http"
    path = scope["path"]
    if path == "/count":
        body = str(await shared.increment("count"))
    else:
        body = os.environ[STATE_VARIABLE] if path == "/where" else str(os.getpid())
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body.encode()})


def wsgi(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    path = environ["PATH_INFO"]
    if path == "/count":
        body = str(blocking.increment("count"))
    else:
        body = os.environ[STATE_VARIABLE] if path == "/where" else str(os.getpid())
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body.encode()]
