"""HttpArena's endpoints as an ASGI application without a framework: `towline serve main:app --config towline.toml`.

Static files, compression, TLS and the versions of HTTP are the server's: see towline.toml. The endpoints of the arena's databases
are in items.py, its gRPC service is in rpc.py.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import items
import msgspec
import rpc
from items import PricedItem

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

DATASET = msgspec.json.decode(
    Path(os.environ.get("DATASET_PATH", "/data/dataset.json")).read_bytes(), type=list[items.Item]
)

TEXT: Headers = [(b"content-type", b"text/plain")]
JSON: Headers = [(b"content-type", b"application/json")]
HIT: Headers = [*JSON, (b"x-cache", b"HIT")]
MISS: Headers = [*JSON, (b"x-cache", b"MISS")]

encode = msgspec.json.Encoder().encode
new_item = msgspec.json.Decoder(items.NewItem).decode
changed_item = msgspec.json.Decoder(items.ChangedItem).decode


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        method, path = scope["method"], scope["path"]
        handler = ROUTES.get((method, path)) or ROUTES.get((method, path[: path.rfind("/") + 1]), missing)
        try:
            await handler(scope, receive, send)
        except items.INVALID as error:
            await respond(send, f"{error}\n".encode(), status=400)
        except items.UNAVAILABLE:
            await respond(send, b"the database is unavailable\n", status=503)
    elif scope["type"] == "websocket":
        await echo(scope, receive, send)
    else:
        await lifespan(receive, send)


async def lifespan(receive: Receive, send: Send) -> None:
    await receive()
    await items.open_all()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await items.close_all()
    await send({"type": "lifespan.shutdown.complete"})


async def respond(send: Send, body: bytes, headers: Headers = TEXT, status: int = 200) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def missing(scope: Scope, receive: Receive, send: Send) -> None:
    await respond(send, b"not found\n", status=404)


def query(scope: Scope) -> dict[str, str]:
    """The parameters of the query. Few queries need the slower function, which decodes escapes."""
    text: str = scope["query_string"].decode("latin-1")
    if "%" in text or "+" in text:
        return dict(parse_qsl(text))
    return dict(pair.split("=", 1) for pair in text.split("&") if "=" in pair)


async def body_of(receive: Receive) -> bytes:
    """The body, whose size the server limits (`limit-request-body`)."""
    message = await receive()
    body: bytes = message.get("body", b"")
    while message.get("more_body"):
        message = await receive()
        body += message.get("body", b"")
    return body


# The endpoints without a database.


async def add(scope: Scope, receive: Receive, send: Send) -> None:
    await respond(send, b"%d" % sum(map(int, query(scope).values())))


async def add_with_body(scope: Scope, receive: Receive, send: Send) -> None:
    await respond(send, b"%d" % (sum(map(int, query(scope).values())) + int(await body_of(receive))))


async def pipeline(scope: Scope, receive: Receive, send: Send) -> None:
    await respond(send, b"ok")


async def dataset(scope: Scope, receive: Receive, send: Send) -> None:
    """The first items of the dataset, each with its total."""
    count = max(int(scope["path"].rpartition("/")[2]), 0)
    factor = int(query(scope).get("m", "1"))
    # By position: names cost more than the rest.
    chosen = [
        PricedItem(
            i.id, i.name, i.category, i.price, i.quantity, i.active, i.tags, i.rating, i.price * i.quantity * factor
        )
        for i in DATASET[:count]
    ]  # fmt: skip
    await respond(send, encode({"items": chosen, "count": len(chosen)}), JSON)


async def upload(scope: Scope, receive: Receive, send: Send) -> None:
    """The number of bytes that arrive. The body is not collected."""
    size = 0
    while True:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body"):
            break
    await respond(send, b"%d" % size)


async def needs_upgrade(scope: Scope, receive: Receive, send: Send) -> None:
    await respond(send, b"this is a WebSocket\n", [*TEXT, (b"upgrade", b"websocket")], 426)


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    if scope["path"] != "/ws":
        await send({"type": "websocket.close"})
        return
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        message["type"] = "websocket.send"
        await send(message)


# The endpoints with a database: async-db, crud, and production-stack's /api.


async def by_price(scope: Scope, receive: Receive, send: Send) -> None:
    wanted = query(scope)
    lowest, highest = int(wanted.get("min", "10")), int(wanted.get("max", "50"))
    try:
        found = await items.by_price(lowest, highest, min(max(int(wanted.get("limit", "50")), 1), 50))
    except items.UNAVAILABLE:
        found = []  # as the arena wants it
    await respond(send, encode({"items": found, "count": len(found)}), JSON)


async def by_category(scope: Scope, receive: Receive, send: Send) -> None:
    wanted = query(scope)
    page = max(int(wanted.get("page", "1")), 1)
    limit = min(max(int(wanted.get("limit", "10")), 1), 50)
    found = await items.by_category(wanted.get("category", "electronics"), page, limit)
    await respond(send, encode({"items": found, "total": len(found), "page": page, "limit": limit}), JSON)


def cached(read: Callable[[int], Awaitable[Any]], key: str, ttl: float) -> Callable[..., Awaitable[None]]:
    """Responds from the cache, which all workers share, or reads from the database and fills it."""

    async def handler(scope: Scope, receive: Receive, send: Send) -> None:
        number = number_of(scope)
        body = await items.cache.get(f"{key}:{number}")
        if body is not None:
            await respond(send, body, HIT)
        elif (found := await read(number)) is None:
            await missing(scope, receive, send)
        else:
            body = encode(found)
            await items.cache.set(f"{key}:{number}", body, ttl)
            await respond(send, body, MISS)

    return handler


def number_of(scope: Scope) -> int:
    """The number at the end of the path, or that of the user, whom the proxy in front has authenticated."""
    if scope["path"] != "/api/me":
        return int(scope["path"].rpartition("/")[2])
    return int(next((value for name, value in scope["headers"] if name == b"x-user-id"), b""))


async def create(scope: Scope, receive: Receive, send: Send) -> None:
    item = new_item(await body_of(receive))
    await items.create(item)
    await respond(send, encode(item), JSON, 201)


async def update(scope: Scope, receive: Receive, send: Send) -> None:
    number, item = number_of(scope), changed_item(await body_of(receive))
    if not await items.update(number, item):
        await missing(scope, receive, send)
    elif scope["method"] == "PUT":
        await respond(send, encode({"id": number, **msgspec.structs.asdict(item)}), JSON)
    else:
        await respond(send, b"", [], 204)


ROUTES: dict[tuple[str, str], Callable[..., Awaitable[None]]] = {
    ("GET", "/baseline11"): add,
    ("POST", "/baseline11"): add_with_body,
    ("GET", "/baseline2"): add,
    ("GET", "/pipeline"): pipeline,
    ("GET", "/json/"): dataset,
    ("POST", "/upload"): upload,
    ("GET", "/ws"): needs_upgrade,
    ("GET", "/async-db"): by_price,
    ("GET", "/crud/items"): by_category,
    ("POST", "/crud/items"): create,
    ("GET", "/crud/items/"): cached(items.by_id, "item", 0.2),
    ("PUT", "/crud/items/"): update,
    ("GET", "/public/baseline"): add,
    ("GET", "/public/json/"): dataset,
    ("GET", "/api/items/"): cached(items.by_id, "item", 1),
    ("POST", "/api/items/"): update,
    ("GET", "/api/me"): cached(items.user, "user", 30),
    ("POST", "/benchmark.BenchmarkService/GetSum"): rpc.get_sum,
    ("POST", "/benchmark.BenchmarkService/StreamSum"): rpc.stream_sum,
}
