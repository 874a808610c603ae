"""Checks of the clients' WebSockets that are the same over every version of HTTP."""

from __future__ import annotations

from typing import Any

import pytest
import towline

from tests.support.asgi_server import Receive, Scope, Send, respond
from tests.support.patience import PATIENCE
from tests.support.websocket_server import echo as echo_app

MAX_WAIT = 20.0 * PATIENCE
MIB = 1 << 20


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Sends the HTTP version, then echoes; no WebSockets below /no."""
    if scope["type"] == "http":
        await respond(send, scope["http_version"].encode())
    elif scope["path"] == "/no":
        await receive()
        await send({"type": "websocket.close"})
    elif scope["path"] == "/close":
        await receive()
        await send({"type": "websocket.accept", "subprotocol": "b"})
        await send({"type": "websocket.send", "text": scope["http_version"]})
        await send({"type": "websocket.close", "code": 4000, "reason": "enough"})
    else:
        await echo_app(scope, receive, send)


def check(backend: Any, url: str, version: str) -> None:
    """WebSockets of a client at the URL of `application`, over this version of HTTP."""
    with backend.open(f"{url}/close", subprotocols=["a", "b"]) as ws:
        assert ws.response.http_version == f"HTTP/{version}"
        assert ws.subprotocol == "b"
        assert ws.recv(timeout=MAX_WAIT) == version
        with pytest.raises(towline.WebSocketClosed) as closed:
            ws.recv(timeout=MAX_WAIT)
        assert (closed.value.code, closed.value.reason) == (4000, "enough")
    with backend.open(url) as ws:
        for message in ("text", b"\x00" * MIB, "a" * 300_000, ""):
            ws.send(message)
            assert ws.recv(timeout=MAX_WAIT) == message
    with pytest.raises(towline.WebSocketRefused) as refused, backend.open(f"{url}/no"):
        pass
    assert refused.value.response.status_code == 403
