"""Raw ASGI without a framework, to measure the server itself."""

import asyncio

HELLO = b"Hello, world!\n"
LARGE = b"x" * 65536


def start(length, status=200):
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(length).encode())]
    return {"type": "http.response.start", "status": status, "headers": headers}


HELLO_START, HELLO_BODY = start(len(HELLO)), {"type": "http.response.body", "body": HELLO}
LARGE_START, LARGE_BODY = start(len(LARGE)), {"type": "http.response.body", "body": LARGE}


async def hello(receive, send):
    await send(HELLO_START)
    await send(HELLO_BODY)


async def large(receive, send):
    await send(LARGE_START)
    await send(LARGE_BODY)


async def echo(receive, send):
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    body = b"".join(parts)
    await send(start(len(body)))
    await send({"type": "http.response.body", "body": body})


async def sleep(receive, send):
    await asyncio.sleep(0.001)
    await hello(receive, send)


async def upload(receive, send):
    """Counts the body and discards it."""
    received, more = 0, True
    while more:
        message = await receive()
        received += len(message.get("body", b""))
        more = message.get("more_body", False)
    body = str(received).encode()
    await send(start(len(body)))
    await send({"type": "http.response.body", "body": body})


async def wait(receive, send):
    """Reads nothing and never responds."""
    await asyncio.Event().wait()


async def download(receive, send, megabytes):
    await send(start(megabytes << 20))
    for _ in range(megabytes * 16):
        await send({"type": "http.response.body", "body": LARGE, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


ROUTES = {"/": hello, "/large": large, "/echo": echo, "/sleep": sleep, "/upload": upload, "/wait": wait}


async def websocket_echo(receive, send):
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({**message, "type": "websocket.send"})


async def app(scope, receive, send):
    if scope["type"] == "websocket":
        await websocket_echo(receive, send)
        return
    if scope["type"] != "http":
        # ASGI lets an application refuse a protocol with an exception: the server continues without lifespan.
        raise NotImplementedError(f"this application speaks http and websocket, not {scope['type']}")
    path = scope["path"]
    if route := ROUTES.get(path):
        await route(receive, send)
    elif path.startswith("/download/"):
        await download(receive, send, int(path.removeprefix("/download/")))
    else:
        await send(start(0, 404))
        await send({"type": "http.response.body", "body": b""})
