"""Rate limits and idempotency keys with real Starlette and FastAPI, and as middleware of a bare ASGI application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from towline import state as towline_state
from towline.errors import StateUnavailable, UsageError
from towline.state.adapters.starlette import IdempotencyMiddleware, RateLimit, RateLimitMiddleware

Sent = dict[str, Any]


async def call(
    app: Any,
    method: str = "GET",
    path: str = "/",
    body: bytes = b"",
    client: str = "192.0.2.1",
    **headers: str,
) -> Response:
    """One request, without a server. Underscores in names of headers are dashes."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        "client": (client, 1),
        "server": ("test", 80),
        "scheme": "http",
        "root_path": "",
        "extensions": {},
    }
    sent: list[Sent] = []
    given = False

    async def receive() -> Sent:
        nonlocal given
        if given:
            await asyncio.sleep(60)
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(dict(message))

    await app(scope, receive, send)
    response = Response(b"".join(each.get("body", b"") for each in sent), sent[0]["status"])
    response.raw_headers = list(sent[0]["headers"])
    return response


def run(main: Callable[[Any], Awaitable[None]], url: str) -> None:
    async def body() -> None:
        async with towline_state.open_async(url) as state:
            await main(state)

    asyncio.run(body())


async def hello(request: Request) -> Response:
    return PlainTextResponse("hello")


def test_requests_over_the_limit_get_429(url: str) -> None:
    async def main(state: Any) -> None:
        app = Starlette(
            routes=[Route("/", hello)],
            middleware=[Middleware(RateLimitMiddleware, limit=3, seconds=1000, state=state, name="all")],
        )
        allowed = [await call(app) for _ in range(3)]
        assert [each.status_code for each in allowed] == [200, 200, 200]
        assert [each.headers["ratelimit"] for each in allowed] == [
            f'"all";r={left};t=1000' for left in (2, 1, 0)
        ]
        assert allowed[0].headers["ratelimit-policy"] == '"all";q=3;w=1000'
        assert "retry-after" not in allowed[0].headers
        refused = await call(app)
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 2000
        assert refused.headers["content-type"] == "application/problem+json"
        assert json.loads(bytes(refused.body))["violated-policies"] == ["all"]
        assert (await call(app, client="192.0.2.2")).status_code == 200

    run(main, url)


def test_a_token_bucket_and_a_key_of_ones_own(url: str) -> None:
    def user(scope: Any) -> str | None:
        return dict(scope["headers"]).get(b"authorization", b"").decode() or None

    async def main(state: Any) -> None:
        app = RateLimitMiddleware(
            Starlette(routes=[Route("/", hello)]),
            2,
            1000,
            state=state,
            key=user,
            algorithm="token_bucket",
        )
        assert [(await call(app, authorization="a")).status_code for _ in range(3)] == [200, 200, 429]
        assert [(await call(app, authorization="b" * 5000)).status_code for _ in range(3)] == [200, 200, 429]
        unlimited = [await call(app) for _ in range(5)]
        assert {each.status_code for each in unlimited} == {200}
        assert "ratelimit" not in unlimited[0].headers

    run(main, url)


def test_concurrent_requests_pass_the_limit_exactly(url: str) -> None:
    async def main(state: Any) -> None:
        apps = [
            RateLimitMiddleware(Starlette(routes=[Route("/", hello)]), 20, 1000, state=state)
            for _ in range(4)
        ]
        responses = await asyncio.gather(*(call(apps[number % 4]) for number in range(60)))
        assert sorted(each.status_code for each in responses) == [200] * 20 + [429] * 40

    run(main, url)


def test_a_websocket_over_the_limit_is_refused(url: str) -> None:
    async def echo(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.close()

    async def connect(app: Any, extensions: Any) -> list[Sent]:
        sent: list[Sent] = []

        async def receive() -> Sent:
            return {"type": "websocket.connect"}

        async def send(message: Any) -> None:
            sent.append(dict(message))

        scope = {
            "type": "websocket",
            "path": "/",
            "headers": [],
            "client": ("192.0.2.1", 1),
            "query_string": b"",
        }
        await app({**scope, "extensions": extensions, "subprotocols": []}, receive, send)
        return sent

    async def main(state: Any) -> None:
        app = RateLimitMiddleware(Starlette(routes=[WebSocketRoute("/", echo)]), 1, 1000, state=state)
        accepted = await connect(app, {})
        assert accepted[0]["type"] == "websocket.accept"
        assert b"ratelimit" in dict(accepted[0]["headers"])
        assert (await connect(app, {}))[0]["type"] == "websocket.close"
        refused = await connect(app, {"websocket.http.response": {}})
        assert [each["type"] for each in refused] == [
            "websocket.http.response.start",
            "websocket.http.response.body",
        ]
        assert refused[0]["status"] == 429

    run(main, url)


def test_a_lost_store_allows_or_raises() -> None:
    pytest.importorskip("redis")

    async def main() -> None:
        missing = "unix:///nonexistent/socket"
        inner = Starlette(routes=[Route("/", hello)])
        assert (await call(RateLimitMiddleware(inner, 1, 1, state=missing))).status_code == 200
        with pytest.raises(StateUnavailable):
            await call(RateLimitMiddleware(inner, 1, 1, state=missing, fail_open=False))

    asyncio.run(main())


def test_a_limit_must_be_possible() -> None:
    with pytest.raises(UsageError):
        RateLimitMiddleware(Starlette(), 0, 1)
    with pytest.raises(UsageError, match="algorithm"):
        RateLimit(1, 1, algorithm="leaky_bucket")


def test_the_dependency_of_fastapi(url: str) -> None:
    async def main(state: Any) -> None:
        app = FastAPI()
        limit = RateLimit(2, 1000, state=state, name="login")
        per_user = RateLimit(
            1, 1000, state=state, name="user", key=lambda request: request.headers.get("user")
        )

        @app.post("/login", dependencies=[Depends(limit), Depends(per_user)])
        async def login() -> dict[str, bool]:
            return {"ok": True}

        first = await call(app, "POST", "/login")
        assert (first.status_code, json.loads(bytes(first.body))) == (200, {"ok": True})
        assert first.headers["ratelimit"] == '"login";r=1;t=1000'
        assert (await call(app, "POST", "/login", user="a")).status_code == 200
        refused = await call(app, "POST", "/login")
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert (await call(app, "POST", "/login", client="192.0.2.9", user="a")).status_code == 429
        assert "/login" in app.openapi()["paths"]

    run(main, url)


class Payments:
    """An application that counts what it does."""

    def __init__(self, state: Any, **options: Any) -> None:
        self.runs = 0
        self.release = asyncio.Event()
        self.release.set()
        self.status = 201
        routes = [
            Route("/pay", self.pay, methods=["GET", "POST"]),
            Route("/stream", self.stream, methods=["POST"]),
        ]
        self.app = IdempotencyMiddleware(Starlette(routes=routes), state=state, **options)

    async def pay(self, request: Request) -> Response:
        body = await request.body()
        self.runs += 1
        number = self.runs
        await self.release.wait()
        if self.status == 0:
            raise RuntimeError("broken")
        return JSONResponse({"run": number, "body": body.decode()}, self.status, {"x-run": str(number)})

    async def stream(self, request: Request) -> Response:
        self.runs += 1

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(10):
                yield b"x" * 10

        return StreamingResponse(pieces())


def test_a_repetition_gets_the_stored_response(url: str) -> None:
    async def main(state: Any) -> None:
        payments = Payments(state)
        first = await call(payments.app, "POST", "/pay", b"5 EUR", idempotency_key="k1")
        again = await call(payments.app, "POST", "/pay", b"5 EUR", idempotency_key="k1")
        assert (first.status_code, again.status_code, payments.runs) == (201, 201, 1)
        assert again.body == first.body == b'{"run":1,"body":"5 EUR"}'
        assert again.headers["x-run"] == "1"
        assert again.headers["idempotent-replayed"] == "true"
        assert "idempotent-replayed" not in first.headers
        other_worker = Payments(state)
        assert (
            await call(other_worker.app, "POST", "/pay", b"5 EUR", idempotency_key="k1")
        ).body == first.body
        assert other_worker.runs == 0

    run(main, url)


def test_other_requests_run(url: str) -> None:
    async def main(state: Any) -> None:
        payments = Payments(state)
        for headers in ({}, {}, {"idempotency_key": "a"}, {"idempotency_key": "b"}):
            assert (await call(payments.app, "POST", "/pay", b"1", **headers)).status_code == 201
        assert (await call(payments.app, "GET", "/pay", idempotency_key="a")).status_code == 201
        # Another caller with the same key never sees the response.
        assert (
            await call(payments.app, "POST", "/pay", b"1", idempotency_key="a", authorization="x")
        ).status_code == 201
        assert payments.runs == 6

    run(main, url)


def test_another_request_with_the_same_key_is_422(url: str) -> None:
    async def main(state: Any) -> None:
        payments = Payments(state)
        await call(payments.app, "POST", "/pay", b"5 EUR", idempotency_key="k")
        refused = await call(payments.app, "POST", "/pay", b"9 EUR", idempotency_key="k")
        assert (refused.status_code, payments.runs) == (422, 1)
        assert refused.headers["content-type"] == "application/problem+json"

    run(main, url)


def test_many_at_once_run_once(url: str) -> None:
    async def main(state: Any) -> None:
        payments = Payments(state)
        payments.release.clear()
        tasks = [
            asyncio.create_task(call(payments.app, "POST", "/pay", b"1", idempotency_key="k"))
            for _ in range(20)
        ]
        done, pending = await asyncio.wait(tasks, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        while len(pending) > 1:
            more, pending = await asyncio.wait(pending, timeout=20, return_when=asyncio.FIRST_COMPLETED)
            done |= more
        payments.release.set()
        assert {each.result().status_code for each in done} == {409}
        assert [(await each).status_code for each in pending] == [201]
        assert payments.runs == 1

    run(main, url)


def test_a_failed_request_runs_again(url: str) -> None:
    async def main(state: Any) -> None:
        payments = Payments(state)
        payments.status = 503
        assert (await call(payments.app, "POST", "/pay", b"1", idempotency_key="k")).status_code == 503
        payments.status = 0
        with pytest.raises(RuntimeError):
            await call(payments.app, "POST", "/pay", b"1", idempotency_key="k")
        payments.status = 400
        assert (await call(payments.app, "POST", "/pay", b"1", idempotency_key="k")).status_code == 400
        payments.status = 201
        assert (await call(payments.app, "POST", "/pay", b"1", idempotency_key="k")).status_code == 400
        assert payments.runs == 3

    run(main, url)


def test_bodies_have_bounds(url: str) -> None:
    async def main(state: Any) -> None:
        payments = Payments(state, max_bytes=50, required=True)
        assert (await call(payments.app, "POST", "/pay", b"x" * 51, idempotency_key="k")).status_code == 413
        assert (await call(payments.app, "POST", "/pay", b"x")).status_code == 400
        assert payments.runs == 0
        long = await call(payments.app, "POST", "/stream", idempotency_key="k")
        assert (long.status_code, len(bytes(long.body))) == (200, 100)
        assert (await call(payments.app, "POST", "/stream", idempotency_key="k")).status_code == 409
        assert payments.runs == 1

    run(main, url)
