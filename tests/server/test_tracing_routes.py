"""`http.route` in the spans of frameworks."""

from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode
from towline.testing import serve

from tests.support.feature_server import fetch
from tests.support.tracing import Spans, attributes, spans
from tests.support.websocket_server import open_ws

__all__ = ["spans"]


def fastapi_app() -> Any:
    pytest.importorskip("fastapi")
    from fastapi import APIRouter, FastAPI, WebSocket

    # FastAPI's own spans would be recorded as well.
    quiet = {"telemetry": {"tracing": False}} if "telemetry" in FastAPI.__init__.__annotations__ else {}
    app, inner = FastAPI(**quiet), FastAPI(**quiet)
    router = APIRouter()

    @app.get("/items/{item_id}")
    def item(item_id: int) -> int:
        with trace.get_tracer("application").start_as_current_span("in a thread"):
            return item_id

    @router.get("/orders/{order}")
    async def order(order: int) -> int:
        return order

    @inner.get("/users/{name}")
    async def user(name: str, tenant: str = "") -> str:
        return name

    @app.get("/broken/{part}")
    async def broken(part: str) -> None:
        raise LookupError(part)

    @app.websocket("/chat/{room}")
    async def chat(websocket: WebSocket, room: str) -> None:
        await websocket.accept()
        async for text in websocket.iter_text():
            await websocket.send_text(text)

    app.include_router(router, prefix="/shop")
    app.mount("/tenants/{tenant}", inner)
    return app


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/items/42", "/items/{item_id}"),
        ("/shop/orders/7", "/shop/orders/{order}"),
        ("/tenants/acme/users/ada", "/tenants/{tenant}/users/{name}"),
        ("/missing", None),
    ],
)
def test_fastapi(path: str, route: str | None, spans: Spans) -> None:
    with serve(fastapi_app(), otel=True) as server:
        fetch(server, path)
        span = spans.one()
        assert span.name == (f"GET {route}" if route else "GET")
        assert attributes(span).get("http.route") == route
        assert attributes(span)["url.path"] == path


def test_functions_in_threads_have_the_span(spans: Spans) -> None:
    with serve(fastapi_app(), otel=True) as server:
        assert fetch(server, "/items/1").body == b"1"
        span, (child,) = spans.one(), spans.of(SpanKind.INTERNAL)
        assert child.parent is not None
        assert span.context is not None
        assert child.parent.span_id == span.context.span_id


def test_fastapi_with_an_exception(spans: Spans) -> None:
    """The framework responds with 500 itself and raises again."""
    with serve(fastapi_app(), otel=True) as server:
        assert fetch(server, "/broken/x").status == 500
        span = spans.one()
        assert span.name == "GET /broken/{part}"
        assert attributes(span)["error.type"] == "LookupError"
        assert attributes(span)["http.response.status_code"] == 500
        assert [event.name for event in span.events] == ["exception"]


def test_a_websocket_of_fastapi(spans: Spans) -> None:
    with serve(fastapi_app(), otel=True) as server:
        with open_ws(server, "/chat/blue") as ws:
            ws.send("a")
            assert ws.recv() == "a"
        assert spans.one().name == "GET /chat/{room}"


def starlette_app(directory: Path) -> Any:
    pytest.importorskip("starlette")
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles

    async def page(request: Request) -> PlainTextResponse:
        return PlainTextResponse("page")

    inner = [Route("/", page), Route("/pages/{number:int}", page)]
    return Starlette(
        routes=[
            Route("/", page),
            Mount("/books/{book}", routes=inner),
            Mount("/files", StaticFiles(directory=directory)),
        ]
    )


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/", "/"),
        ("/books/emma/", "/books/{book}/"),
        ("/books/emma/pages/3", "/books/{book}/pages/{number}"),
        ("/files/a.txt", "/files/{path}"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "/site"])
def test_starlette(path: str, route: str, prefix: str, spans: Spans, tmp_path: Path) -> None:
    """With a prefix of --mount as well."""
    (tmp_path / "a.txt").write_text("text")
    app = starlette_app(tmp_path)
    mounted = {"mount": ((prefix, app),)} if prefix else {}
    with serve(starlette_app(tmp_path) if prefix else app, otel=True, **mounted) as server:
        assert fetch(server, prefix + path).status == 200
        span = spans.one()
        assert span.name == f"GET {prefix}{route}"
        assert attributes(span)["url.path"] == prefix + path


def test_litestar(spans: Spans) -> None:
    pytest.importorskip("litestar")
    from litestar import Litestar, get

    @get("/items/{item:int}")
    async def item(item: int) -> int:
        return item

    with serve(Litestar([item]), otel=True) as server:
        assert fetch(server, "/items/3").status == 200
        assert spans.one().name == "GET /items/{item}"


def flask_app() -> Any:
    pytest.importorskip("flask")
    from flask import Flask, stream_with_context

    app = Flask(__name__)

    @app.get("/items/<int:item>")
    def item(item: int) -> Any:
        def parts() -> Any:
            for _ in range(2):
                with trace.get_tracer("application").start_as_current_span("part"):
                    yield "part"

        return stream_with_context(parts())

    @app.get("/broken")
    def broken() -> str:
        raise LookupError("as planned")

    return app


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("prefix", ["", "/site"])
def test_flask(threads: int, prefix: str, spans: Spans) -> None:
    mounted = {"mount": ((prefix, flask_app()),)} if prefix else {}
    with serve(flask_app(), otel=True, threads=threads, **mounted) as server:
        assert fetch(server, f"{prefix}/items/3").body == b"partpart"
        span = spans.one()
        assert span.name == f"GET {prefix}/items/<int:item>"
        assert span.context is not None
        parents = [child.parent.span_id for child in spans.of(SpanKind.INTERNAL, 2) if child.parent]
        assert parents == [span.context.span_id] * 2
        assert span.status.status_code is StatusCode.UNSET


def test_flask_with_an_exception(spans: Spans) -> None:
    """Flask logs it and responds, so that only the status is known."""
    with serve(flask_app(), otel=True) as server:
        assert fetch(server, "/broken").status == 500
        span = spans.one()
        assert (span.name, attributes(span)["error.type"]) == ("GET /broken", "500")
        assert span.status.status_code is StatusCode.ERROR


def test_django(spans: Spans) -> None:
    """Django leaves no route, and a path is no substitute."""
    pytest.importorskip("django")
    from tests.frameworks.apps import django_app

    with serve(django_app.asgi, otel=True) as server:
        fetch(server, "/")
        assert spans.one().name == "GET"
