"""The ASGI application of the bench: `app` serves the scenarios of Roadrunner, `hello_world` those of Hornbeam.

It is the same for every server, and needs the standard library and its folder only. Data that does not depend on the request is made
once per process, including the compressed response: the bench measures servers, not zlib.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

if TYPE_CHECKING:
    from .roadrunner_data import DOCUMENT, EVENTS, RECORDS, STATIC, items_of
else:  # servers run it with its folder on the path
    from roadrunner_data import DOCUMENT, EVENTS, RECORDS, STATIC, items_of

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Handler = Callable[[Scope, Receive, Send], Awaitable[None]]
Fields = list[tuple[bytes, bytes]]

TEXT, OCTETS, JSON = b"text/plain", b"application/octet-stream", b"application/json"


def start(status: int, fields: Fields) -> Message:
    return {"type": "http.response.start", "status": status, "headers": fields}


def piece(body: bytes, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


def response(
    body: bytes, kind: bytes, *more: tuple[bytes, bytes], status: int = 200
) -> tuple[Message, Message]:
    fields = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), *more]
    return start(status, fields), piece(body)


HELLO = response(b"alive\r\n", TEXT)
READY = {
    "/": HELLO,
    "/json": response(DOCUMENT, JSON),
    "/large": response(b"x" * 65536, OCTETS),
    "/download": response(b"x" * (10 << 20), OCTETS),
    "/gzip": response(RECORDS, JSON, (b"content-encoding", b"gzip"), (b"vary", b"accept-encoding")),
    "/redirect": response(b"", TEXT, (b"location", b"/target"), status=302),
    "/static/hello.txt": response(STATIC, TEXT),
    **{f"/api/v1/items/{n:04}": HELLO for n in range(1, 101)},
}
NOT_FOUND = response(b"not found", TEXT, status=404)
NOTHING = piece(b"")
ETAG = [(b"etag", b'"v1"')]
PREFLIGHT = start(
    204,
    [
        (b"access-control-allow-origin", b"https://example.com"),
        (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
        (b"access-control-allow-headers", b"Content-Type, Authorization"),
    ],
)


class ClientGone(Exception):
    """The client disconnected during its request."""


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        await other(scope, receive, send)
        return
    path = scope["path"]
    ready = READY.get(path)
    if ready is not None:
        await send(ready[0])
        await send(NOTHING if scope["method"] == "HEAD" else ready[1])
    elif (handler := HANDLERS.get(path)) is not None:
        try:
            await handler(scope, receive, send)
        except ClientGone:
            pass
    elif path.startswith("/httparena_json/"):
        await items(scope, send)
    else:
        await send_response(send, NOT_FOUND)


async def hello_world(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        await other(scope, receive, send)
        return
    made = WORLD.get(scope["path"]) or await WORK.get(scope["path"], not_found)()
    await send(made[0])
    await send(NOTHING if scope["method"] == "HEAD" else made[1])


async def users(scope: Scope, receive: Receive, send: Send) -> None:
    """The routes of web-frameworks."""
    if scope["type"] != "http":
        await other(scope, receive, send)
        return
    _, user, number = scope["path"].rpartition("/user/")
    await send_response(send, response(number.encode() if user else b"", TEXT))


async def send_response(send: Send, made: tuple[Message, Message]) -> None:
    await send(made[0])
    await send(made[1])


async def pieces(receive: Receive) -> AsyncIterator[bytes]:
    """Yields the pieces of the request's body."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        yield message.get("body", b"")
        more = message.get("more_body", False)


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    await send_response(send, response(b"".join([data async for data in pieces(receive)]), OCTETS))


async def drain(scope: Scope, receive: Receive, send: Send) -> None:
    async for _ in pieces(receive):
        pass
    await send_response(send, response(b"ok", TEXT))


async def upload(scope: Scope, receive: Receive, send: Send) -> None:
    size = 0
    async for data in pieces(receive):
        size += len(data)
    await send_response(send, response(b"%d" % size, TEXT))


async def form(scope: Scope, receive: Receive, send: Send) -> None:
    body = b"".join([data async for data in pieces(receive)])
    await send_response(send, response(b"%d" % len(parse_qsl(body.decode())), TEXT))


async def cookies(scope: Scope, receive: Receive, send: Send) -> None:
    found = {}
    for name, value in scope["headers"]:
        if name == b"cookie":
            for pair in value.decode("latin-1").split(";"):
                key, _, content = pair.partition("=")
                found[key.strip()] = content.strip()
    await send_response(send, response(b"%d" % len(found), TEXT))


async def query(scope: Scope, receive: Receive, send: Send) -> None:
    await send_response(send, response(b"%d" % len(parse_qsl(scope["query_string"].decode())), TEXT))


async def baseline(scope: Scope, receive: Receive, send: Send) -> None:
    numbers = dict(parse_qsl(scope["query_string"].decode()))
    await send_response(send, response(b"%d" % (int(numbers["a"]) + int(numbers["b"])), TEXT))


async def items(scope: Scope, send: Send) -> None:
    count = int(scope["path"].rpartition("/")[2])
    factor = int(dict(parse_qsl(scope["query_string"].decode())).get("m", "1"))
    await send_response(send, response(items_of(count, factor), JSON))


async def etag(scope: Scope, receive: Receive, send: Send) -> None:
    if any(name == b"if-none-match" and value == b'"v1"' for name, value in scope["headers"]):
        await send_response(send, (start(304, ETAG), NOTHING))
    else:
        await send_response(send, response(b"first version", TEXT, *ETAG))


async def preflight(scope: Scope, receive: Receive, send: Send) -> None:
    await send_response(send, (PREFLIGHT, NOTHING) if scope["method"] == "OPTIONS" else HELLO)


def streamed(kind: bytes, parts: Iterable[bytes]) -> Handler:
    """One message for each part; none contains the length."""
    *first, last = parts
    head, before, end = (
        start(200, [(b"content-type", kind)]),
        [piece(part, True) for part in first],
        piece(last),
    )

    async def handler(scope: Scope, receive: Receive, send: Send) -> None:
        await send(head)
        for message in before:
            await send(message)
        await send(end)

    return handler


HANDLERS: dict[str, Handler] = {
    "/echo": echo,
    "/drain": drain,
    "/upload": upload,
    "/form": form,
    "/cookies": cookies,
    "/qs": query,
    "/baseline11": baseline,
    "/etag": etag,
    "/api": preflight,
    "/streaming": streamed(OCTETS, [b"x" * 4096] * 4),
    "/small": streamed(OCTETS, [b"x" * 64] * 100),
    "/sse": streamed(b"text/event-stream", EVENTS),
}


async def async_sleep() -> tuple[Message, Message]:
    await asyncio.sleep(0.001)
    return response(b"slept", TEXT)


async def concurrent_tasks() -> tuple[Message, Message]:
    async def square(number: int) -> int:
        await asyncio.sleep(0)
        return number * number

    return response(b"%d" % sum(await asyncio.gather(*(square(number) for number in range(10)))), TEXT)


async def not_found() -> tuple[Message, Message]:
    return NOT_FOUND


WORLD = {"/": response(b"Hello, World!", TEXT), "/large": response(b"X" * 65536, TEXT)}
WORK = {"/async_sleep": async_sleep, "/concurrent_tasks": concurrent_tasks}


async def other(scope: Scope, receive: Receive, send: Send) -> None:
    """Lifespan, and the WebSocket echo."""
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    await receive()
    if scope["path"] != "/ws":
        await send({"type": "websocket.close"})
        return
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        text, data = message.get("text"), message.get("bytes")
        await send(
            {"type": "websocket.send", "text": text}
            if data is None
            else {"type": "websocket.send", "bytes": data}
        )
