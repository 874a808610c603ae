"""Quart with one JSON route."""

from quart import Quart, Response

app = Quart(__name__)


@app.get("/")
async def message():
    # As Starlette writes it: without spaces and line end.
    return Response('{"message":"Hello, world!"}', content_type="application/json")
