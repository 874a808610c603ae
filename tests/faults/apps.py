"""Applications of the fault tests. The path selects the fault.

| path       | behaviour                                                            |
|------------|----------------------------------------------------------------------|
| /ok        | responds `ok`                                                        |
| /block/N   | blocks its thread for N seconds, then responds                       |
| /never     | waits for ever, without receiving                                    |
| /listen    | waits for the body, then for the disconnect                          |
| /stream    | sends for ever                                                       |
| /large     | responds with a body of 1 MiB, one chunk                             |
| /read      | reads the body, responds `ok`                                        |
| others     | the invalid response of `NONSENSE`                                   |
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

START = {"type": "http.response.start", "status": 200, "headers": []}
BODY = {"type": "http.response.body", "body": b"ok"}
CHUNK = b"x" * 16384
LARGE = bytes(1 << 20)


def raising() -> Iterator[bytes]:
    yield b"begun"
    raise RuntimeError("as planned")


ASGI_NONSENSE: dict[str, list[Any]] = {
    "nothing": [],
    "status-text": [{**START, "status": "200"}, BODY],
    "status-none": [{**START, "status": None}, BODY],
    "status-huge": [{**START, "status": 10**30}, BODY],
    "headers-int": [{**START, "headers": 5}, BODY],
    "headers-flat": [{**START, "headers": [b"name"]}, BODY],
    "header-text": [{**START, "headers": [("name", "value")]}, BODY],
    "header-split": [{**START, "headers": [(b"name", b"a\r\nb: c")]}, BODY],
    "body-int": [START, {**BODY, "body": 5}],
    "body-text": [START, {**BODY, "body": "ok"}],
    "body-none": [START, {**BODY, "body": None}],
    "body-first": [BODY],
    "body-short": [{**START, "headers": [(b"content-length", b"10")]}, BODY],
    "body-long": [{**START, "headers": [(b"content-length", b"1")]}, BODY],
    "start-only": [START],
    "start-twice": [START, START, BODY],
    "no-type": [{"status": 200}],
    "unknown-type": [{"type": "http.response.nonsense"}],
    "no-dict": ["http.response.start"],
    "none": [None],
    "late-raise": [START, {**BODY, "more_body": True}, RuntimeError("as planned")],
    "raise": [RuntimeError("as planned")],
}


def _wsgi(body: Any, status: Any = "200 OK", headers: Any = ()) -> Any:
    return status, headers if headers != () else [], body


WSGI_NONSENSE: dict[str, Any] = {
    "none": _wsgi(None),
    "int": _wsgi(5),
    "ints": _wsgi([5]),
    "texts": _wsgi(["ok"]),
    "nones": _wsgi([None]),
    "status-int": _wsgi([b"ok"], 200),
    "status-bytes": _wsgi([b"ok"], b"200 OK"),
    "status-words": _wsgi([b"ok"], "fine"),
    "headers-none": _wsgi([b"ok"], headers=None),
    "headers-flat": _wsgi([b"ok"], headers=["name"]),
    "header-bytes": _wsgi([b"ok"], headers=[(b"name", b"value")]),
    "header-split": _wsgi([b"ok"], headers=[("name", "a\r\nb: c")]),
    "body-short": _wsgi([b"ok"], headers=[("content-length", "10")]),
    "body-long": _wsgi([b"ok"], headers=[("content-length", "1")]),
    "no-start": _wsgi([b"ok"], status=None),
    "raise": RuntimeError("as planned"),
}


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        raise NotImplementedError
    command, *arguments = scope["path"].strip("/").split("/")
    for message in ASGI_NONSENSE.get(command, []):
        if isinstance(message, Exception):
            raise message
        await send(message)
    if command in ASGI_NONSENSE:
        return
    if command == "block":
        time.sleep(float(arguments[0]))
    elif command == "never":
        await asyncio.Event().wait()
    elif command == "listen":
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    while command == "read" and (await receive()).get("more_body"):
        pass
    await send(START)
    while command == "stream":
        await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
    await send({**BODY, "body": LARGE} if command == "large" else BODY)


def wsgi(environ: Any, start_response: Any) -> Any:
    command, *arguments = environ["PATH_INFO"].strip("/").split("/")
    if command in WSGI_NONSENSE:
        response = WSGI_NONSENSE[command]
        if isinstance(response, Exception):
            raise response
        status, headers, body = response
        if status is not None:
            start_response(status, headers)
        return body
    if command == "late-raise":
        start_response("200 OK", [])
        return raising()
    if command == "block":
        time.sleep(float(arguments[0]))
    elif command == "never":
        threading.Event().wait()
    elif command in ("listen", "read"):
        while environ["wsgi.input"].read(16384):
            pass
    start_response("200 OK", [])
    return iter(lambda: CHUNK, b"") if command == "stream" else [LARGE if command == "large" else b"ok"]
