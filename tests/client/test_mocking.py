"""`towline.testing.Mock` and the pytest plugin: the network is replaced for every client, and nothing reaches it."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import towline
from towline.testing import Mock, UnexpectedRequest, serve

pytest_plugins = ["pytester"]


class Origin:
    url = ""
    hits = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.hits += 1
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"6")]})
        await send({"type": "http.response.body", "body": b"served"})


@pytest.fixture
def origin() -> Iterator[Origin]:
    app = Origin()
    with serve(app, lifespan="off") as server:
        app.url = server.url
        yield app


def test_every_client_is_mocked_and_afterwards_none(origin: Origin) -> None:
    async def main() -> None:
        async with towline.AsyncClient() as client:
            assert (await client.get(origin.url)).json() == {"a": 1}
            assert (await client.get(origin.url, headers={"x-a": "b"})).json() == {"a": 1}
            async with client.stream("GET", origin.url) as response:
                assert await response.aread() == b'{"a":1}'

    with towline.Client() as older:
        assert older.get(origin.url).text == "served"
        with Mock() as mock:
            route = mock.get(origin.url, json={"a": 1}, headers={"x-id": "7"})
            response = older.get(origin.url)
            assert (response.status_code, response.json(), response.headers["x-id"]) == (200, {"a": 1}, "7")
            assert towline.get(origin.url).json() == {"a": 1}
            with towline.Client(http2=True) as newer:
                assert newer.get(origin.url).json() == {"a": 1}
                with newer.stream("GET", origin.url) as streamed:
                    assert streamed.read() == b'{"a":1}'
            asyncio.run(main())
            assert len(route.calls) == len(mock.calls) == 7
        assert origin.hits == 1
        assert older.get(origin.url).text == "served"
    assert origin.hits == 2


@pytest.mark.parametrize("name", ["httpx", "urllib3", "aiohttp"])
def test_engines_of_others_are_mocked(origin: Origin, name: str) -> None:
    async def main() -> None:
        async with towline.AsyncClient(transport=name) as client:
            assert (await client.get(origin.url)).text == "mocked"

    with Mock() as mock:
        mock.get(origin.url, text="mocked")
        if name == "aiohttp":
            asyncio.run(main())
        else:
            with towline.Client(transport=name) as client:
                assert client.get(origin.url).text == "mocked"
    assert origin.hits == 0


def test_a_transport_of_the_program_is_not_replaced() -> None:
    mine = towline.MockTransport(lambda request: towline.Response(200, text="mine"))
    with Mock(assert_all_called=False), towline.Client(transport=mine) as client:
        assert client.get("http://a.example/").text == "mine"


def test_functions_exceptions_and_streams() -> None:
    async def respond(request: towline.Request) -> towline.Response:
        return towline.Response(201, json={"got": json.loads(request.content)})

    async def pieces() -> AsyncIterator[bytes]:
        yield b"one,"
        yield b"two"

    async def main() -> None:
        async with towline.AsyncClient() as client:
            response = await client.post("http://a.example/async", json=[1])
            assert (response.status_code, response.json()) == (201, {"got": [1]})
            async with client.stream("GET", "http://a.example/stream") as streamed:
                assert [piece async for piece in streamed.aiter_raw()] == [b"one,", b"two"]
            with pytest.raises(towline.ConnectError) as caught:
                await client.get("http://a.example/down")
            assert str(caught.value.request.url) == "http://a.example/down"

    with Mock() as mock:
        mock.post("http://a.example/async", respond)
        mock.get("http://a.example/stream", lambda request: towline.Response(200, content=pieces()))
        mock.get("http://a.example/down", towline.ConnectError("refused"))
        mock.get("http://a.example/slow", towline.ReadTimeout)
        mock.get("http://a.example/sync", lambda request: towline.Response(200, content=iter([b"1", b"2"])))
        asyncio.run(main())
        with towline.Client() as client:
            with pytest.raises(towline.ReadTimeout):
                client.get("http://a.example/slow")
            with client.stream("GET", "http://a.example/sync") as streamed:
                assert list(streamed.iter_raw()) == [b"1", b"2"]
            with pytest.raises(towline.UsageError, match="asynchronous"):
                client.post("http://a.example/async", json=[1])


def test_redirects_retries_and_cookies_are_the_clients() -> None:
    with Mock() as mock:
        mock.get("http://a.example/", status_code=302, headers={"location": "/b", "set-cookie": "c=1"})
        mock.get("http://a.example/b", status_code=503, times=1)
        final = mock.get("http://a.example/b", text="end")
        retries = towline.Retry(status=(503,), backoff=0)
        with towline.Client(follow_redirects=True, retries=retries) as client:
            response = client.get("http://a.example/")
    assert (response.text, len(response.history), final.calls[0].headers["cookie"]) == ("end", 1, "c=1")


@pytest.mark.parametrize(
    ("pattern", "url", "matches"),
    [
        ("http://a.example", "http://a.example/", True),
        ("http://a.example/b", "http://a.example/b?c=1", True),
        ("http://a.example/b?c=1", "http://a.example/b?c=1", True),
        ("http://a.example/b?c=1", "http://a.example/b?c=2", False),
        ("http://a.example/b?c=*", "http://a.example/b?c=2", True),
        ("http://*.example/users/*", "http://a.example/users/7/posts", True),
        ("http://a.example/b", "http://a.example/bc", False),
        ("http://a.example/[1]", "http://a.example/1", False),
        ("http://a.example/x", "https://a.example/x", False),
        (re.compile(r"/users/\d+$"), "http://a.example/users/7", True),
        (re.compile(r"/users/\d+$"), "http://a.example/users/x", False),
    ],
)
def test_patterns(pattern: Any, url: str, matches: bool) -> None:
    with Mock(assert_all_called=False) as mock:
        mock.route("*", pattern, text="yes")
        mock.route("*", "*", text="no")
        assert towline.delete(url).text == ("yes" if matches else "no")


def test_a_response_is_given_to_several_requests() -> None:
    with Mock() as mock:
        mock.get("http://a.example/", towline.Response(418, json={"a": 1}, headers={"x-a": "b"}), times=3)
        for _ in range(3):
            response = towline.get("http://a.example/")
            assert (response.status_code, response.json(), response.headers["x-a"]) == (418, {"a": 1}, "b")


def test_an_unexpected_request_is_an_error_even_if_it_is_caught(origin: Origin) -> None:
    def caught() -> None:
        with Mock() as mock:
            mock.post(f"{origin.url}/other")
            with pytest.raises(UnexpectedRequest, match="POST"):
                towline.get(f"{origin.url}/other")

    with pytest.raises(UnexpectedRequest, match=r"no route matched: GET http://127.0.0.1:\d+/other"):
        caught()
    with pytest.raises(UnexpectedRequest), Mock():
        towline.get(origin.url)
    assert origin.hits == 0


def test_routes_that_were_not_called() -> None:
    def once_of_twice() -> None:
        with Mock() as mock:
            mock.get("http://a.example/b", times=2)
            towline.get("http://a.example/b")

    def broken() -> None:
        with Mock() as mock:
            mock.get("http://a.example/b")
            raise KeyError

    with pytest.raises(AssertionError, match=r"GET http://a.example/b: called 0 of 1 times"), Mock() as mock:
        mock.get("http://a.example/b")
    with pytest.raises(AssertionError, match=r"called 1 of 2 times"):
        once_of_twice()
    with pytest.raises(KeyError):  # the error of the test, not of the routes
        broken()
    with Mock(assert_all_called=False) as mock:
        mock.get("http://a.example/b")


def test_a_mock_may_be_inside_another_one() -> None:
    with Mock() as outer:
        outer.get("http://a.example/", text="outer")
        with Mock() as inner:
            inner.get("http://a.example/", text="inner")
            assert towline.get("http://a.example/").text == "inner"
        assert towline.get("http://a.example/").text == "outer"


def test_prewarm_and_websocket_are_refused(origin: Origin) -> None:
    with Mock(), towline.Client() as client:
        with pytest.raises(towline.UsageError, match="prewarm"):
            client.prewarm(origin.url, 1)
        with pytest.raises(towline.UsageError):
            client.websocket(origin.url.replace("http", "ws")).__enter__()


def test_wrong_arguments() -> None:
    mock = Mock()
    with pytest.raises(towline.UsageError, match="either"):
        mock.get("http://a.example/", towline.Response(200), text="a")
    with pytest.raises(towline.UsageError, match="times"):
        mock.get("http://a.example/", times=0)
    with pytest.raises(towline.UsageError, match="expected a Response"):
        mock.get("http://a.example/", "text")  # type: ignore[arg-type]


PLUGIN_TESTS = """
import urllib.request
import pytest, towline

async def asgi(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"asgi"})

def wsgi(environ, start_response):
    start_response("200 OK", [])
    return [b"wsgi"]

def test_server(towline_server):
    first = towline_server(asgi, lifespan="off")
    second = towline_server(wsgi, interface="wsgi")
    assert towline.get(first.url).text == "asgi"
    assert urllib.request.urlopen(second.url).read() == b"wsgi"

def test_mock(towline_mock):
    towline_mock.get("https://api.example/users", json=[1])
    assert towline.get("https://api.example/users").json() == [1]

def test_not_called(towline_mock):
    towline_mock.get("https://api.example/users")

def test_unexpected(towline_mock):
    towline.get("https://api.example/users")
"""


def test_the_fixtures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(PLUGIN_TESTS)
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    done.assert_outcomes(passed=3, failed=1, errors=2)
    done.stdout.fnmatch_lines(["*GET https://api.example/users: called 0 of 1 times*"])


def test_the_plugin_imports_nothing_heavy(tmp_path: Path) -> None:
    program = """
import sys, pytest
before = set(sys.modules)
import towline._pytest_plugin
print(sorted(name for name in set(sys.modules) - before))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout == "['towline', 'towline._pytest_plugin']\n"
