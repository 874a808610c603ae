"""Litestar: the routes of the comparison."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from litestar import Litestar, Request, Response, get, post
from litestar.response import Redirect, Stream


@get("/text", media_type="text/plain", sync_to_thread=False)
def text() -> str:
    return "hello"


@get("/json")
async def json(request: Request[Any, Any, Any], q: int = 3) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"q": q, "path": request.url.path}


@post("/echo", status_code=200)
async def echo(request: Request[Any, Any, Any]) -> Response[bytes]:
    return Response(await request.body(), media_type=request.headers.get("content-type", "text/plain"))


@get("/stream")
async def stream() -> Stream:
    async def pieces() -> AsyncIterator[str]:
        for number in range(5):
            yield f"piece {number}\n"

    return Stream(pieces(), media_type="text/plain")


@get("/redirect", status_code=302)
async def redirect() -> Redirect:
    return Redirect("/text")


@get("/cookies")
async def cookies(request: Request[Any, Any, Any]) -> Response[dict[str, str]]:
    response = Response(dict(request.cookies))
    response.set_cookie("seen", "1")
    return response


@get("/error")
async def error() -> None:
    raise RuntimeError("as asked")


app = Litestar([text, json, echo, stream, redirect, cookies, error])
