"""A destination for the load script: counts the webhooks it receives, by Webhook-Id.

`GET /seen` returns how many different webhooks came, how many came more than once, and how many with another
body.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

EXPECTED = os.environ.get("EXPECTED_BODY", '{"first_name":"Jony"}').encode()
_seen: Counter[bytes] = Counter()
_wrong = 0


async def app(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    global _wrong
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    if scope["path"] == "/seen":
        again = sum(1 for count in _seen.values() if count > 1)
        content = json.dumps({"different": len(_seen), "again": again, "wrong": _wrong}).encode()
    else:
        _seen[dict(scope["headers"]).get(b"webhook-id", b"")] += 1
        _wrong += body != EXPECTED
        content = b"thanks"
    headers = [(b"content-length", b"%d" % len(content)), (b"x-destination", b"load")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content})
