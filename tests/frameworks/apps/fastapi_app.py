"""FastAPI: every route of the comparison."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

from fastapi import BackgroundTasks, Cookie, Depends, FastAPI, Form, Request, Response, UploadFile
from fastapi.responses import PlainTextResponse, RedirectResponse, StreamingResponse
from pydantic import BaseModel

app = FastAPI()
done: list[str] = []


class Item(BaseModel):
    name: str
    price: float = 1.5


async def dependency() -> AsyncIterator[str]:
    await asyncio.sleep(0)
    yield "from a dependency"


@app.get("/text", response_class=PlainTextResponse)
def text() -> str:
    time.sleep(0.001)  # a sync endpoint runs in anyio's thread pool
    return "hello"


@app.get("/json")
async def json(request: Request, found: Annotated[str, Depends(dependency)], q: int = 3) -> dict[str, Any]:
    return {"q": q, "found": found, "path": request.url.path}


@app.post("/items")
async def items(item: Item) -> Item:
    return item


@app.post("/echo")
async def echo(request: Request) -> Response:
    return Response(await request.body(), media_type=request.headers.get("content-type"))


@app.post("/form")
async def form(a: Annotated[str, Form()], file: UploadFile | None = None) -> dict[str, Any]:
    return {"a": a, "file": None if file is None else [file.filename, len(await file.read())]}


@app.get("/stream")
def stream() -> Response:
    def pieces() -> Iterator[str]:
        for number in range(5):
            yield f"piece {number}\n"

    return StreamingResponse(pieces(), media_type="text/plain")


@app.get("/redirect")
async def redirect() -> Response:
    return RedirectResponse("/text", status_code=302)


@app.get("/cookies")
async def cookies(response: Response, a: Annotated[str | None, Cookie()] = None) -> dict[str, Any]:
    response.set_cookie("seen", "1")
    return {"a": a}


@app.get("/error")
async def error() -> None:
    raise RuntimeError("as asked")


@app.get("/background")
async def background(tasks: BackgroundTasks) -> str:
    tasks.add_task(done.append, "background")
    return "started"


@app.get("/tally")
async def tally() -> list[str]:
    return done
