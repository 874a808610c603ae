"""The small API that the examples of docs/call.md call.

towline serve app:app --app-dir examples/api
"""

import json


async def app(scope, receive, send):
    if scope["type"] == "websocket":
        await chat(scope, receive, send)
    elif scope["type"] == "http":
        body = await read_body(receive)
        status, content_type, pieces = respond(scope["method"], scope["path"], body)
        headers = [(b"content-type", content_type)]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})


async def read_body(receive):
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


def respond(method, path, body):
    """Returns status, content type and the pieces of the body."""
    if path == "/events":
        return 200, b"text/event-stream", [b"id: %d\ndata: token %d\n\n" % (n, n) for n in range(3)]
    if path == "/export":
        return 200, b"application/x-ndjson", [b'{"row": %d}\n' % n * 1000 for n in range(10)]
    if path == "/missing":
        return 404, b"text/plain", [b"not found\n"]
    if method != "GET":
        return 201, b"application/json", [json.dumps({"received_bytes": len(body)}).encode()]
    return 200, b"application/json", [json.dumps({"path": path}).encode()]


async def chat(scope, receive, send):
    """Sends every message back, and closes after "bye"."""
    await receive()
    chosen = next(iter(scope["subprotocols"]), None)
    await send({"type": "websocket.accept", "subprotocol": chosen})
    while (message := await receive())["type"] == "websocket.receive":
        text, data = message.get("text"), message.get("bytes")
        await send({"type": "websocket.send", "text": text, "bytes": data})
        if text == "bye":
            await send({"type": "websocket.close", "code": 1000})
            return
