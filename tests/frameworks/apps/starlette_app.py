"""Starlette: every route of the comparison."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator

import anyio
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route

seen: contextvars.ContextVar[str] = contextvars.ContextVar("seen", default="clean")
done: list[str] = []


async def text(request: Request) -> Response:
    return PlainTextResponse("hello", headers={"X-Mixed-Case": "Kept"})


async def json(request: Request) -> Response:
    return JSONResponse({"query": dict(request.query_params), "path": request.url.path})


async def echo(request: Request) -> Response:
    try:
        body = await request.body()
    except ClientDisconnect:
        done.append("disconnected")
        raise
    return Response(body, media_type=request.headers.get("content-type"))


async def form(request: Request) -> Response:
    async with request.form() as fields:
        out = {}
        for name, value in fields.items():
            out[name] = value if isinstance(value, str) else [value.filename, len(await value.read())]
    return JSONResponse(out)


async def stream(request: Request) -> Response:
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(5):
            yield f"piece {number}\n".encode()
            await asyncio.sleep(0)

    return StreamingResponse(pieces(), media_type="text/plain")


async def sse(request: Request) -> Response:
    async def events() -> AsyncIterator[str]:
        for number in range(3):
            await asyncio.sleep(0.001)
            yield f"event: tick\ndata: {number}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


async def redirect(request: Request) -> Response:
    return RedirectResponse("/text", status_code=302)


async def cookies(request: Request) -> Response:
    response = JSONResponse(request.cookies)
    response.set_cookie("a", "1", httponly=True)
    response.set_cookie("b", "2", path="/cookies")
    return response


async def error(request: Request) -> Response:
    raise RuntimeError("as asked")


async def context(request: Request) -> Response:
    before = seen.get()
    seen.set("dirty")
    return PlainTextResponse(before)


async def background(request: Request) -> Response:
    async def later() -> None:
        await asyncio.sleep(0.01)
        done.append("background")

    return PlainTextResponse("started", background=BackgroundTask(later))


async def tally(request: Request) -> Response:
    return JSONResponse(done)


async def task_tools(request: Request) -> Response:
    task = asyncio.current_task()
    assert task is not None
    with anyio.move_on_after(0.01) as scope:
        await anyio.sleep(5)
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, 0)
    return JSONResponse({"timed_out": scope.cancelled_caught, "done": task.done()})


async def empty(request: Request) -> Response:
    return Response(status_code=204)


async def state(request: Request) -> Response:
    return JSONResponse({"started": request.state.started})


class Outer(BaseHTTPMiddleware):
    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        response = await call_next(request)
        response.headers["x-outer"] = "1"
        return response


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[dict[str, str]]:
    yield {"started": "yes"}


ROUTES = [
    Route("/text", text),
    Route("/json", json),
    Route("/päth/ü", json),
    Route("/echo", echo, methods=["POST", "PUT"]),
    Route("/form", form, methods=["POST"]),
    Route("/stream", stream),
    Route("/sse", sse),
    Route("/redirect", redirect),
    Route("/cookies", cookies),
    Route("/error", error),
    Route("/context", context),
    Route("/background", background),
    Route("/tally", tally),
    Route("/tasks", task_tools),
    Route("/empty", empty),
    Route("/state", state),
]
app = Starlette(routes=[*ROUTES, Mount("/mounted", routes=ROUTES)], lifespan=lifespan)
app.add_middleware(Outer)
