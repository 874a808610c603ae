"""Applications of benches/soak.py. Every response has the worker's process id in `x-worker`.

| path        | response                                                                     |
|-------------|------------------------------------------------------------------------------|
| /length     | the number of bytes of the request's body                                    |
| /parts      | `PARTS` parts of `PART` bytes, as fast as the server takes them              |

A WebSocket at any path sends every message back (ASGI only).
"""

import os

PART = b"p" * 65536
PARTS = 32
WORKER = "x-worker"


async def asgi(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
    elif scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept", "headers": [(WORKER.encode(), b"%d" % os.getpid())]})
        while (message := await receive())["type"] == "websocket.receive":
            await send({**message, "type": "websocket.send"})
    else:
        await respond(scope["path"], receive, send)


async def respond(path, receive, send):
    length, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        length += len(message.get("body", b""))
        more = message.get("more_body", False)
    headers = [(WORKER.encode(), b"%d" % os.getpid())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if path == "/parts":
        for _ in range(PARTS):
            await send({"type": "http.response.body", "body": PART, "more_body": True})
        await send({"type": "http.response.body"})
    else:
        await send({"type": "http.response.body", "body": b"%d" % length})


def wsgi(environ, start_response):
    length = 0
    while part := environ["wsgi.input"].read(65536):
        length += len(part)
    start_response("200 OK", [(WORKER, str(os.getpid()))])
    if environ["PATH_INFO"] == "/parts":
        return (PART for _ in range(PARTS))
    return [b"%d" % length]
