"""GET /N: a body of N bytes, which the client's network limits."""

PIECE = b"x" * 65536


async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    left = int(scope["path"][1:])
    headers = [(b"content-length", str(left).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    while left > len(PIECE):
        await send({"type": "http.response.body", "body": PIECE, "more_body": True})
        left -= len(PIECE)
    await send({"type": "http.response.body", "body": PIECE[:left]})
