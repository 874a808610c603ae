"""The application of README.md: `towline serve hello:app --app-dir examples/hello`."""


async def app(scope, receive, send):
    assert scope["type"] == "http"
    body = f"Hello from {scope['path']}\n".encode()
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
