"""The ASGI application of HttpArena's profiles, the same for every server: what the arena's entries of uvicorn and fastpysgi do
in their applications, which gzip responses at level 1 and have the static files, coded beforehand, in memory.
"""

from __future__ import annotations

import gzip
import mimetypes
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import asgi, httparena_data
    from .asgi import Fields, Handler, Receive, Scope, Send, response, send_response
    from .roadrunner_data import items_of
else:  # servers run it with its folder on the path
    import asgi
    import httparena_data
    from asgi import response, send_response
    from roadrunner_data import items_of

GZIP, VARY = (b"content-encoding", b"gzip"), (b"vary", b"accept-encoding")
GRPC: Fields = [(b"content-type", b"application/grpc")]
OK = {"type": "http.response.trailers", "headers": [(b"grpc-status", b"0")]}


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        await asgi.other(scope, receive, send)
        return
    path = scope["path"]
    handler = HANDLERS.get(path) or HANDLERS.get(path[: path.rfind("/") + 1], not_found)
    await handler(scope, receive, send)


async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
    await send_response(send, asgi.NOT_FOUND)


def query(scope: Scope) -> dict[str, int]:
    pairs = (pair.split(b"=") for pair in scope["query_string"].split(b"&") if pair)
    return {name.decode(): int(value) for name, value in pairs}


def takes_gzip(scope: Scope) -> bool:
    return any(name == b"accept-encoding" and b"gzip" in value for name, value in scope["headers"])


async def add(scope: Scope, receive: Receive, send: Send) -> None:
    total = sum(query(scope).values())
    if scope["method"] == "POST":
        total += int(b"".join([data async for data in asgi.pieces(receive)]))
    await send_response(send, response(b"%d" % total, asgi.TEXT))


async def pipeline(scope: Scope, receive: Receive, send: Send) -> None:
    await send_response(send, response(b"ok", asgi.TEXT))


async def items(scope: Scope, receive: Receive, send: Send) -> None:
    body = items_of(int(scope["path"].rpartition("/")[2]), query(scope).get("m", 1))
    coding = (GZIP, VARY) if takes_gzip(scope) else ()
    await send_response(
        send, response(gzip.compress(body, 1, mtime=0) if coding else body, asgi.JSON, *coding)
    )


async def static(scope: Scope, receive: Receive, send: Send) -> None:
    found = FILES.get(scope["path"])
    await send_response(send, found[takes_gzip(scope)] if found else asgi.NOT_FOUND)


async def rpc(scope: Scope, receive: Receive, send: Send) -> None:
    """`GetSum(a, b)`, or `StreamSum(a, b, count)`: protobuf's fields are numbers, and so are their keys."""
    values, value, shift = [], 0, 0
    for byte in b"".join([data async for data in asgi.pieces(receive)])[5:]:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            values.append(value)
            value = shift = 0
    request = dict(zip(values[::2], values[1::2], strict=True))
    await send(asgi.start(200, GRPC) | {"trailers": True})
    for message in httparena_data.sums(request.get(8, 0) + request.get(16, 0), request.get(24, 1)):
        await send(asgi.piece(message, more=True))
    await send(asgi.NOTHING)
    await send(OK)


FILES = {}
for _name in httparena_data.SIZES:
    _content, _kind = httparena_data.static(_name), (mimetypes.guess_type(_name)[0] or "font/woff2").encode()
    _plain = response(_content, _kind, VARY)
    _coded = response(gzip.compress(_content, 9, mtime=0), _kind, GZIP, VARY)
    FILES[f"/static/{_name}"] = (_plain, _plain if _name.endswith(httparena_data.CODED_BEFORE) else _coded)

HANDLERS: dict[str, Handler] = {
    "/baseline11": add,
    "/baseline2": add,
    "/pipeline": pipeline,
    "/upload": asgi.upload,
    "/json/": items,
    "/static/": static,
    "/benchmark.BenchmarkService/": rpc,
}
