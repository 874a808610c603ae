"""Quart: the routes of the comparison."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from quart import Quart, Response, jsonify, make_response, redirect, request
from quart.typing import ResponseReturnValue

app = Quart(__name__)


@app.get("/text")
async def text() -> ResponseReturnValue:
    return Response("hello", mimetype="text/plain")


@app.get("/json")
async def json() -> ResponseReturnValue:
    await asyncio.sleep(0)
    return jsonify(query=request.args.to_dict(), path=request.path)


@app.post("/echo")
async def echo() -> ResponseReturnValue:
    return Response(await request.get_data(as_text=False), content_type=request.content_type)


@app.post("/form")
async def form() -> ResponseReturnValue:
    fields, files = await request.form, await request.files
    return jsonify(fields.to_dict() | {name: [f.filename, len(f.read())] for name, f in files.items()})


@app.get("/stream")
async def stream() -> ResponseReturnValue:
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(5):
            yield f"piece {number}\n".encode()

    return Response(pieces(), mimetype="text/plain")


@app.get("/redirect")
async def away() -> ResponseReturnValue:
    return redirect("/text")


@app.get("/cookies")
async def cookies() -> ResponseReturnValue:
    response = await make_response(jsonify(dict(request.cookies)))
    response.set_cookie("seen", "1")
    return response


@app.get("/error")
async def error() -> ResponseReturnValue:
    raise RuntimeError("as asked")
