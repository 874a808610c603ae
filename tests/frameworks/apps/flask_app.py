"""Flask: the routes of the comparison, as WSGI."""

from __future__ import annotations

import io
from collections.abc import Iterator

from flask import Flask, Response, jsonify, make_response, redirect, request, send_file
from flask.typing import ResponseReturnValue

app = Flask(__name__)


@app.get("/text")
def text() -> ResponseReturnValue:
    return Response("hello", mimetype="text/plain")


@app.get("/json")
def json() -> ResponseReturnValue:
    return jsonify(query=request.args.to_dict(), path=request.path, scheme=request.scheme)


@app.get("/päth/ü")
def unicode_path() -> ResponseReturnValue:
    return json()


@app.post("/echo")
def echo() -> ResponseReturnValue:
    return Response(request.get_data(), content_type=request.content_type)


@app.post("/form")
def form() -> ResponseReturnValue:
    files = {name: [f.filename, len(f.read())] for name, f in request.files.items()}
    return jsonify(request.form.to_dict() | files)


@app.get("/stream")
def stream() -> ResponseReturnValue:
    def pieces() -> Iterator[bytes]:
        for number in range(5):
            yield f"piece {number}\n".encode()

    return Response(pieces(), mimetype="text/plain")


@app.get("/file")
def file() -> ResponseReturnValue:
    return send_file(io.BytesIO(b"x" * 100_000), mimetype="application/octet-stream")


@app.get("/redirect")
def away() -> ResponseReturnValue:
    return redirect("/text")


@app.get("/cookies")
def cookies() -> ResponseReturnValue:
    response = make_response(jsonify(dict(request.cookies)))
    response.set_cookie("seen", "1")
    return response


@app.get("/error")
def error() -> ResponseReturnValue:
    raise RuntimeError("as asked")
