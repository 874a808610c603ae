from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.free_threading.threads import short_turns
from tests.support.asgi_server import read_body, serving


async def echo(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Responds with what it has received; `/stream/N` with N pieces of 1,000 bytes."""
    body = await read_body(receive)
    path = scope["path"]
    if path.startswith("/stream/"):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(int(path.removeprefix("/stream/"))):
            await send(
                {"type": "http.response.body", "body": b"%d" % (number % 10) * 1000, "more_body": True}
            )
        await send({"type": "http.response.body", "body": b""})
        return
    seen = {
        "path": path,
        "query": scope["query_string"].decode(),
        "body": body.decode(),
        "x": dict(scope["headers"]).get(b"x-number", b"").decode(),
    }
    headers = [(b"content-type", b"application/json"), (b"x-echo", path.encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(seen).encode()})


@pytest.fixture
def url() -> Iterator[str]:
    with short_turns(), serving(echo) as server:
        yield f"http://127.0.0.1:{server.port}"
