"""A small ASGI application without a framework: `towline serve asgi_app:app --app-dir examples/hello`."""

import json

GREETING = b"Hello from Towline\n"


async def read_body(receive):
    """The complete request body; each `receive` reads a part of it from the socket."""
    parts, more = [], True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError("the client left before its body was complete")
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


async def respond(send, status, body, content_type=b"text/plain; charset=utf-8"):
    headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def stream(send):
    """Sends a body without Content-Length: each part leaves as a chunk at once."""
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for part in (b"one\n", b"two\n", b"three\n"):
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def app(scope, receive, send):
    if scope["type"] != "http":
        # ASGI lets an application refuse a protocol with an exception: the server continues without lifespan.
        raise NotImplementedError(f"this example supports http only, not {scope['type']}")
    match scope["method"], scope["path"]:
        case _, "/":
            await respond(send, 200, GREETING)
        case "POST", "/echo":
            await respond(send, 200, await read_body(receive), b"application/octet-stream")
        case _, "/stream":
            await stream(send)
        case _, "/scope":
            seen = {"method": scope["method"], "path": scope["path"], "query": scope["query_string"].decode()}
            seen |= {"http_version": scope["http_version"], "client": scope["client"]}
            await respond(send, 200, json.dumps(seen, indent=2).encode() + b"\n", b"application/json")
        case _:
            await respond(send, 404, b"no such page\n")
