"""An ASGI application whose requests cost processor time in Python: `WORK` rounds of a loop, 2 ms by default of `benches.cores`."""

from __future__ import annotations

import os
from typing import Any

WORK = int(os.environ.get("WORK", "0"))


def work(rounds: int) -> int:
    found = 0
    for number in range(rounds):
        found = (found * 31 + number) & 0xFFFF
    return found


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    body = b"%05d" % work(WORK)
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"5")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
