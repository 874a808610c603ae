"""MockTransport, ASGITransport and WSGITransport: streaming, backpressure, disconnects, errors."""

from __future__ import annotations

import asyncio

import pytest
import trio
from towline import (
    ASGITransport,
    AsyncClient,
    Client,
    ConfigError,
    MockTransport,
    RemoteProtocolError,
    Response,
    ServerDisconnected,
    UsageError,
    WSGITransport,
)
from towline import _aio as aio


@pytest.fixture(params=["asyncio", "trio"])
def run(request):
    return (lambda main: asyncio.run(main())) if request.param == "asyncio" else trio.run


def start(status=200, *headers):
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(data=b"", more=False):
    return {"type": "http.response.body", "body": data, "more_body": more}


def asgi(app, **settings):
    return AsyncClient(transport=ASGITransport(app, **settings), base_url="http://h.example:8000")


def test_mock_handlers(run):
    async def handler(request):
        return Response(200, content=request.content)

    async def main():
        async with AsyncClient(transport=MockTransport(handler)) as client:
            assert (await client.post("http://h/", content=b"x")).content == b"x"
        async with AsyncClient(transport=MockTransport(lambda request: Response(201))) as client:
            assert (await client.get("http://h/")).status_code == 201
        async with AsyncClient(transport=MockTransport(lambda request: None)) as client:
            with pytest.raises(UsageError, match="NoneType"):
                await client.get("http://h/")

    run(main)
    with Client(transport=MockTransport(handler)) as client, pytest.raises(UsageError, match="asynchronous"):
        client.get("http://h/")


# --- ASGI ---


def test_asgi_scope(run):
    seen = {}

    async def app(scope, receive, send):
        seen.update(scope)
        await send(start(204, (b"x-a", b"1"), (b"x-a", b"2")))
        await send(body())

    async def main():
        async with asgi(app, root_path="/app", client=("10.0.0.1", 5)) as client:
            response = await client.get("/ü%20x?q=1#f", headers={"X-Case": "Y"})
        assert response.headers.get_list("x-a") == ["1", "2"]

    run(main)
    assert seen["type"] == "http"
    assert (seen["method"], seen["scheme"], seen["http_version"]) == ("GET", "http", "1.1")
    assert (seen["path"], seen["raw_path"], seen["query_string"]) == ("/ü x", b"/%C3%BC%20x", b"q=1")
    assert (seen["root_path"], seen["client"], seen["server"]) == (
        "/app",
        ("10.0.0.1", 5),
        ("h.example", 8000),
    )
    assert (b"x-case", b"Y") in seen["headers"]
    assert (b"host", b"h.example:8000") in seen["headers"]


def test_asgi_streams_both_ways(run):
    async def app(scope, receive, send):
        await send(start())
        more = True
        while more:
            message = await receive()
            more = message["more_body"]
            await send(body(message["body"], True))
        await send(body())

    async def pieces():
        for number in range(3):
            yield b"%d" % number

    async def main():
        async with asgi(app) as client:
            response = await client.post("/", content=pieces())
            assert response.content == b"012"
            async with client.stream("POST", "/", content=b"abc") as response:
                assert [piece async for piece in response.aiter_bytes()] == [b"abc"]

    run(main)


def test_asgi_backpressure(run):
    sent = []

    async def app(scope, receive, send):
        await send(start())
        for number in range(100):
            await send(body(b"x" * 1000, True))
            sent.append(number)
        await send(body())

    async def main():
        async with asgi(app) as client, client.stream("GET", "/") as response:
            await aio.sleep(0.02)
            assert len(sent) <= 1
            assert await response.aread(1000) == b"x" * 1000
            await aio.sleep(0.02)
            assert len(sent) <= 2
            assert len(b"".join([piece async for piece in response.aiter_bytes()])) == 99_000

    run(main)
    assert len(sent) == 100


@pytest.mark.parametrize("listens", [True, False])
def test_asgi_disconnects_on_close(run, listens):
    events = []

    async def app(scope, receive, send):
        try:
            await receive()
            await send(start())
            await send(body(b"x", True))
            if listens:
                events.append((await receive())["type"])
            else:
                await aio.sleep(60)
        finally:
            events.append("over")

    async def main():
        async with asgi(app) as client:
            async with client.stream("GET", "/") as response:
                assert await response.aread(1) == b"x"
            for _ in range(200):
                if "over" in events:
                    break
                await aio.sleep(0.01)

    run(main)
    assert events == (["http.disconnect", "over"] if listens else ["over"])


def test_asgi_send_after_close_raises(run):
    raised = []

    async def app(scope, receive, send):
        await send(start())
        try:
            while True:
                await send(body(b"x", True))
        except OSError as error:
            raised.append(type(error).__name__)
            raise

    async def main():
        async with asgi(app) as client, client.stream("GET", "/") as response:
            await response.aread(1)

    run(main)
    assert raised == ["ClientDisconnected"]


def test_asgi_errors_of_the_application(run):
    async def before(scope, receive, send):
        raise ValueError("before")

    async def within(scope, receive, send):
        await send(start())
        await send(body(b"x", True))
        raise ValueError("within")

    async def nothing(scope, receive, send):
        pass

    async def half(scope, receive, send):
        await send(start())

    async def main():
        for app, error in [(before, ValueError), (within, ValueError), (nothing, RemoteProtocolError)]:
            async with asgi(app) as client:
                with pytest.raises(error):
                    await client.get("/")
        async with asgi(before, raise_app_exceptions=False) as client:
            response = await client.get("/")
            assert (response.status_code, response.text) == (500, "Internal Server Error")
        for app in (within, half):
            async with asgi(app, raise_app_exceptions=False) as client:
                with pytest.raises(ServerDisconnected):
                    await client.get("/")

    run(main)


def test_asgi_waits_for_background_work_and_responds_to_head(run):
    done = []

    async def app(scope, receive, send):
        await send(start())
        await send(body(b"content"))
        await aio.sleep(0.01)
        assert (await receive())["type"] == "http.request"
        assert (await receive())["type"] == "http.disconnect"
        done.append(True)

    async def main():
        async with asgi(app) as client:
            assert (await client.get("/")).content == b"content"
            assert (await client.head("/")).content == b""

    run(main)
    assert done == [True, True]


# --- WSGI ---


def wsgi(app, **settings):
    return Client(transport=WSGITransport(app, **settings), base_url="http://h.example:8000")


def test_wsgi_environ():
    seen = {}

    def app(environ, start_response):
        seen.update(environ, body=environ["wsgi.input"].read())
        start_response("201 Made", [("X-A", "1"), ("X-A", "2")])
        return [b"a", b"", b"b"]

    with wsgi(app, script_name="/app", remote_addr="10.0.0.1") as client:
        response = client.post("/app/ü?q=1", content=iter([b"x", b"y"]), headers=[("X-B", "1"), ("X-B", "2")])
    assert (response.status_code, response.reason_phrase, response.content) == (201, "Made", b"ab")
    assert response.headers.get_list("x-a") == ["1", "2"]
    assert (seen["SCRIPT_NAME"], seen["PATH_INFO"]) == ("/app", "/ü".encode().decode("latin-1"))
    assert (seen["QUERY_STRING"], seen["REMOTE_ADDR"]) == ("q=1", "10.0.0.1")
    assert (seen["SERVER_NAME"], seen["SERVER_PORT"]) == ("h.example", "8000")
    assert (seen["HTTP_X_B"], seen["body"], seen["CONTENT_LENGTH"]) == ("1,2", b"xy", "2")


def test_wsgi_streams_and_closes():
    created, closed = [], []

    def app(environ, start_response):
        def pieces():
            try:
                start_response("200 OK", [])  # not before the first chunk
                for number in range(100):
                    created.append(number)
                    yield b"x"
            finally:
                closed.append(True)

        return pieces()

    with wsgi(app) as client, client.stream("GET", "/") as response:
        assert response.read(1) == b"x"
        assert len(created) <= 2
    assert closed == [True]


def test_wsgi_write_and_errors():
    def writes(environ, start_response):
        write = start_response("200 OK", [])
        write(b"a")
        return [b"b"]

    def raises(environ, start_response):
        raise ValueError("no")

    def replaces(environ, start_response):
        import sys

        start_response("200 OK", [("A", "1")])
        try:
            raise ValueError("late")
        except ValueError:
            start_response("500 Oops", [("B", "1")], sys.exc_info())
        return [b"sorry"]

    def twice(environ, start_response):
        start_response("200 OK", [])
        start_response("200 OK", [])
        return []

    assert wsgi(writes).get("/").content == b"ab"
    assert wsgi(writes).head("/").content == b""
    with pytest.raises(ValueError, match="no"):
        wsgi(raises).get("/")
    assert wsgi(raises, raise_app_exceptions=False).get("/").status_code == 500
    response = wsgi(replaces).get("/")
    assert (response.status_code, dict(response.headers)) == (500, {"b": "1"})
    for app in (twice, lambda environ, start_response: [b"x"]):
        with pytest.raises(UsageError, match="PEP 3333"):
            wsgi(app).get("/")


def test_the_wrong_backend_is_a_clear_error():
    with pytest.raises(ConfigError, match="AsyncClient"):
        Client(transport=ASGITransport(None))
    with pytest.raises(ConfigError, match="handle_request"):
        AsyncClient(transport=WSGITransport(None))
