"""Flask with one JSON route."""

from flask import Flask, Response

app = Flask(__name__)


@app.get("/")
def message():
    # As Starlette writes it: without spaces and line end.
    return Response('{"message":"Hello, world!"}', content_type="application/json")
