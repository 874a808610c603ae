"""A client that leaves is one DEBUG line of the server, whatever the framework makes of it; an error is one ERROR line
that names the request, with the application's traceback."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from towline.testing import serve

from tests.support.waiting import until


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield b"data: x\n\n"
        await asyncio.sleep(0.01)


def starlette() -> Any:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Route, WebSocketRoute
    from starlette.websockets import WebSocket

    async def stream(request: Request) -> Response:
        return StreamingResponse(endless(), media_type="text/event-stream")

    async def upload(request: Request) -> Response:
        return PlainTextResponse(str(len(await request.body())))

    async def error(request: Request) -> Response:
        raise ValueError("as planned")

    async def socket(websocket: WebSocket) -> None:
        await websocket.accept()
        while True:
            await websocket.receive_text()

    return Starlette(
        routes=[
            Route("/stream", stream),
            Route("/upload", upload, methods=["POST"]),
            Route("/error", error),
            WebSocketRoute("/socket", socket),
        ]
    )


def starlette_middleware() -> Any:
    """BaseHTTPMiddleware runs the application in an anyio task group."""
    from starlette.middleware.base import BaseHTTPMiddleware

    async def dispatch(request: Any, call_next: Any) -> Any:
        return await call_next(request)

    return BaseHTTPMiddleware(starlette(), dispatch=dispatch)


def fastapi() -> Any:
    from fastapi import FastAPI, Request
    from fastapi.responses import StreamingResponse

    app = FastAPI()

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        return StreamingResponse(endless(), media_type="text/event-stream")

    async def upload(request: Request) -> int:
        return len(await request.body())

    upload.__annotations__["request"] = Request
    app.post("/upload")(upload)

    @app.get("/error")
    async def error() -> None:
        raise ValueError("as planned")

    return app


def sse_starlette() -> Any:
    from sse_starlette.sse import EventSourceResponse
    from starlette.applications import Starlette
    from starlette.routing import Route

    async def events() -> AsyncIterator[dict[str, str]]:
        while True:
            yield {"data": "x"}
            await asyncio.sleep(0.01)

    async def stream(request: Any) -> EventSourceResponse:
        return EventSourceResponse(events())

    return Starlette(routes=[Route("/stream", stream)])


def anyio_group() -> Any:
    """A task group in which several tasks fail at the same time."""
    import anyio

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

        async def write() -> None:
            while True:
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
                await anyio.sleep(0.01)

        async with anyio.create_task_group() as outer:
            outer.start_soon(write)
            async with anyio.create_task_group() as inner:
                inner.start_soon(write)

    return app


def django() -> Any:
    from django.conf import settings
    from django.core.handlers.asgi import ASGIHandler
    from django.http import HttpResponse, StreamingHttpResponse
    from django.urls import path

    async def stream(request: Any) -> StreamingHttpResponse:
        return StreamingHttpResponse(endless(), content_type="text/event-stream")

    async def upload(request: Any) -> HttpResponse:
        return HttpResponse(str(len(request.body)))

    class Urls:
        urlpatterns = (path("stream", stream), path("upload", upload))

    if not settings.configured:
        import django as package

        settings.configure(ROOT_URLCONF=Urls, ALLOWED_HOSTS=["*"], SECRET_KEY="x")
        package.setup()
    settings.ROOT_URLCONF = Urls
    return ASGIHandler()


def quart() -> Any:
    from quart import Quart, request

    app = Quart(__name__)

    @app.get("/stream")
    async def stream() -> Any:
        return endless(), {"content-type": "text/event-stream"}

    @app.post("/upload")
    async def upload() -> str:
        return str(len(await request.get_data()))

    return app


def litestar() -> Any:
    from litestar import Litestar, Request, get, post
    from litestar.response import Stream

    @get("/stream")
    async def stream() -> Stream:
        return Stream(endless(), media_type="text/event-stream")

    async def upload(request: Request[Any, Any, Any]) -> int:
        return len(await request.body())

    stream.fn.__annotations__["return"] = Stream
    upload.__annotations__.update({"request": Request, "return": int})
    # Litestar's own logging configuration would replace that of the test.
    return Litestar([stream, post("/upload")(upload)], logging_config=None)


Make = Callable[[], Any]
STREAMING: list[Make] = [
    starlette,
    starlette_middleware,
    fastapi,
    sse_starlette,
    anyio_group,
    django,
    quart,
    litestar,
]
UPLOADS: list[Make] = [starlette, starlette_middleware, fastapi, django, quart, litestar]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    loggers = [logging.getLogger(name) for name in ("towline", "towline.server")]
    before = [(logger, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.propagate = True
        # Another test file of this process may have set them.
        caplog.set_level(logging.DEBUG, logger.name)
    caplog.set_level(logging.DEBUG)
    yield caplog
    for logger, propagate in before:
        logger.propagate = propagate


def running(make: Make) -> Any:
    return serve(make(), interface="asgi", lifespan="off", log_level="debug")


def check_one_debug_line(log: pytest.LogCaptureFixture, request: str) -> None:
    until(lambda: [line for line in log.records if "client disconnected" in line.getMessage()])
    records = [record for record in log.records if record.name.startswith("towline")]
    ours = [record for record in records if "client disconnected" in record.getMessage()]
    assert len(ours) == 1, log.text
    assert ours[0].levelno == logging.DEBUG
    assert ours[0].exc_info is None or ours[0].exc_info[0] is None
    assert re.search(rf": {request} from 127\.0\.0\.1:\d+$", ours[0].getMessage()), ours[0].getMessage()
    assert not [record for record in records if record.levelno > logging.INFO], log.text


@pytest.mark.parametrize("make", STREAMING, ids=lambda make: make.__name__)
def test_a_client_that_leaves_a_stream(make: Make, log: pytest.LogCaptureFixture) -> None:
    with running(make) as server:
        with socket.create_connection((server.host, server.port), timeout=10) as client:
            client.sendall(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n")
            assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
        check_one_debug_line(log, "GET /stream")


@pytest.mark.parametrize("make", UPLOADS, ids=lambda make: make.__name__)
def test_a_client_that_leaves_its_upload(make: Make, log: pytest.LogCaptureFixture) -> None:
    with running(make) as server:
        with socket.create_connection((server.host, server.port), timeout=10) as client:
            client.sendall(b"POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nhalf")
            time.sleep(0.1)  # the request is being read
        check_one_debug_line(log, "POST /upload")


def test_a_client_that_leaves_a_websocket_is_no_error(log: pytest.LogCaptureFixture) -> None:
    handshake = (
        b"GET /socket HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with running(starlette) as server:
        with socket.create_connection((server.host, server.port), timeout=10) as client:
            client.sendall(handshake)
            assert client.recv(65536).startswith(b"HTTP/1.1 101 ")
        check_one_debug_line(log, "WebSocket /socket")


@pytest.mark.parametrize("make", [starlette, fastapi], ids=lambda make: make.__name__)
def test_an_error_is_one_line_with_the_request_and_the_applications_traceback(
    make: Make, log: pytest.LogCaptureFixture
) -> None:
    with running(make) as server:
        with socket.create_connection((server.host, server.port), timeout=10) as client:
            client.sendall(b"GET /error?secret=1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            assert client.recv(65536).startswith(b"HTTP/1.1 500 ")
        until(lambda: log.records)
    [record] = [record for record in log.records if record.levelno >= logging.ERROR]
    message = r"Exception in ASGI application: GET /error from 127\.0\.0\.1:\d+"
    assert re.fullmatch(message, record.getMessage()), record.getMessage()
    assert record.exc_info is not None
    frames = traceback.extract_tb(record.exc_info[2])
    assert frames[-1].name == "error"
    assert not [frame for frame in frames if "/towline/" in frame.filename], "no frames of ours"


def test_an_error_of_the_application_is_reported_although_the_client_has_left(
    log: pytest.LogCaptureFixture,
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        raise KeyError("a defect of the application")

    with serve(app, interface="asgi", lifespan="off") as server:
        with socket.create_connection((server.host, server.port), timeout=10) as client:
            client.sendall(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
        until(lambda: "KeyError" in log.text)
    [record] = [record for record in log.records if record.levelno >= logging.ERROR]
    assert "GET /x from 127.0.0.1" in record.getMessage()
