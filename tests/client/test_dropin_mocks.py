"""respx, pytest-httpx, responses and VCR.py see the requests of the drop-ins: a mocked request reaches no server."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import responses
import respx
import towline.httpx
import towline.requests
import vcr
from pytest_httpx import HTTPXMock, IteratorStream
from towline.testing import serve


class Origin:
    """A server that counts: a request that a mock does not see arrives here."""

    url = ""
    hits = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.hits += 1
        while (await receive())["more_body"]:
            pass
        headers = [(b"x-served", b"yes"), (b"content-length", b"6")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"served"})


@pytest.fixture
def origin() -> Iterator[Origin]:
    app = Origin()
    with serve(app, lifespan="off") as server:
        app.url = server.url
        yield app


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        for scheme in ("http://", "https://"):
            session.mount(scheme, towline.requests.Adapter())
        yield session


CORE = respx.mocks.HTTPCoreMocker.name
MOCKERS = pytest.mark.parametrize("mocker", [CORE, "httpx"])


@MOCKERS
def test_respx(origin: Origin, mocker: str) -> None:
    with towline.httpx.Client() as client, respx.mock(using=mocker) as mock:
        route = mock.post(f"{origin.url}/a", json={"q": 1}).respond(201, json={"id": 7}, headers={"x-a": "b"})
        response = client.post(f"{origin.url}/a", json={"q": 1})
        assert (response.status_code, response.json(), response.headers["x-a"]) == (201, {"id": 7}, "b")
        assert route.call_count == 1
        with pytest.raises(respx.models.AllMockedAssertionError):
            client.get(f"{origin.url}/unknown")
    assert origin.hits == 0


@MOCKERS
def test_respx_async(origin: Origin, mocker: str) -> None:
    async def main() -> None:
        async with towline.httpx.AsyncClient() as client:
            with respx.mock(using=mocker) as mock:
                route = mock.get(f"{origin.url}/a").respond(200, text="mocked")
                assert (await client.get(f"{origin.url}/a")).text == "mocked"
                assert route.called
            assert origin.hits == 0
            assert (await client.get(f"{origin.url}/a")).text == "served"

    asyncio.run(main())


@MOCKERS
def test_exceptions_of_respx(origin: Origin, mocker: str) -> None:
    async def main() -> None:
        async with towline.httpx.AsyncClient() as client:
            with pytest.raises(httpx.ReadTimeout) as caught:
                await client.get(origin.url)
            assert str(caught.value.request.url) == origin.url

    with respx.mock(using=mocker) as mock:
        mock.get(origin.url).mock(side_effect=httpx.ReadTimeout)
        with towline.httpx.Client() as client, pytest.raises(httpx.ReadTimeout):
            client.get(origin.url)
        asyncio.run(main())
    assert origin.hits == 0


@MOCKERS
def test_streams_of_respx(origin: Origin, mocker: str) -> None:
    async def chunks() -> Any:
        yield b"one,"
        yield b"two"

    async def main() -> None:
        async with towline.httpx.AsyncClient() as client:
            with respx.mock(using=mocker) as mock:
                mock.get(origin.url).mock(
                    return_value=httpx.Response(200, stream=httpx._content.AsyncIteratorByteStream(chunks()))
                )
                async with client.stream("GET", origin.url) as response:
                    assert [part async for part in response.aiter_raw()] == [b"one,", b"two"]

    asyncio.run(main())
    with towline.httpx.Client() as client, respx.mock(using=mocker) as mock:
        mock.get(origin.url).respond(200, content=iter([b"one,", b"two"]))
        with client.stream("GET", origin.url) as response:
            assert list(response.iter_raw()) == [b"one,", b"two"]
    assert origin.hits == 0


@MOCKERS
def test_a_request_that_respx_lets_through_uses_the_engine(origin: Origin, mocker: str) -> None:
    async def main() -> None:
        async with towline.httpx.AsyncClient() as client:
            response = await client.post(origin.url, content=b"body")
            assert response.text == "served"
            assert client._transport.pool_status()["idle"] == 1

    with respx.mock(using=mocker) as mock:
        mock.route(host="127.0.0.1").pass_through()
        with towline.httpx.Client() as client:
            for _ in range(3):
                assert client.post(origin.url, content=b"body").headers["x-served"] == "yes"
            assert client._transport.pool_status()["idle"] == 1
        asyncio.run(main())
    assert origin.hits == 4


def test_an_error_of_a_request_that_is_let_through(closed_port: int) -> None:
    with respx.mock() as mock, towline.httpx.Client() as client:
        mock.route(host="127.0.0.1").pass_through()
        with pytest.raises(httpx.ConnectError) as caught:
            client.get(f"http://127.0.0.1:{closed_port}/")
        assert caught.value.request.method == "GET"


@pytest.fixture
def closed_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def test_pytest_httpx(origin: Origin, httpx_mock: HTTPXMock) -> None:
    httpx_mock.add_response(url=origin.url, json={"a": 1})
    httpx_mock.add_response(url=f"{origin.url}/s", stream=IteratorStream([b"one,", b"two"]))
    httpx_mock.add_exception(httpx.ConnectError("refused"), url=f"{origin.url}/e")
    with towline.httpx.Client() as client:
        assert client.get(origin.url).json() == {"a": 1}
        with client.stream("GET", f"{origin.url}/s") as response:
            assert list(response.iter_bytes()) == [b"one,", b"two"]
        with pytest.raises(httpx.ConnectError, match="refused"):
            client.get(f"{origin.url}/e")
    assert len(httpx_mock.get_requests()) == 3
    assert origin.hits == 0


def test_pytest_httpx_async(origin: Origin, httpx_mock: HTTPXMock) -> None:
    httpx_mock.add_response(url=f"{origin.url}/s", stream=IteratorStream([b"one,", b"two"]))
    httpx_mock.add_exception(httpx.ReadTimeout("slow"), url=f"{origin.url}/e")

    async def main() -> None:
        async with towline.httpx.AsyncClient() as client:
            async with client.stream("GET", f"{origin.url}/s") as response:
                assert [part async for part in response.aiter_bytes()] == [b"one,", b"two"]
            with pytest.raises(httpx.ReadTimeout):
                await client.get(f"{origin.url}/e")

    asyncio.run(main())
    assert origin.hits == 0


@pytest.mark.httpx_mock(should_mock=lambda request: request.url.path != "/real")
def test_pytest_httpx_lets_a_request_through(origin: Origin, httpx_mock: HTTPXMock) -> None:
    httpx_mock.add_response(url=f"{origin.url}/a", text="mocked")

    async def main() -> None:
        async with towline.httpx.AsyncClient() as client:
            assert (await client.get(f"{origin.url}/real")).text == "served"

    with towline.httpx.Client() as client:
        assert client.get(f"{origin.url}/a").text == "mocked"
        assert client.get(f"{origin.url}/real").text == "served"
    asyncio.run(main())
    assert origin.hits == 2


@pytest.mark.parametrize("package", ["httpx", "httpx2"])
def test_a_replaced_method_of_the_package_is_called(
    package: str, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = pytest.importorskip(package)
    ours = importlib.import_module(f"towline.{package}")
    original = theirs.HTTPTransport.handle_request
    seen = []

    def spy(transport: Any, request: Any) -> Any:
        seen.append(type(transport))
        return original(transport, request)

    with ours.Client() as client:
        assert client.get(origin.url).text == "served"  # a connection from before
        monkeypatch.setattr(theirs.HTTPTransport, "handle_request", spy)
        events = []
        trace = {"trace": lambda name, info: events.append(name)}
        assert client.get(origin.url, extensions=trace).text == "served"
        assert seen == [ours.Transport]
        assert "http11.send_request_headers.started" in events
        monkeypatch.undo()
        assert client.get(origin.url).text == "served"
        assert (len(seen), client._transport.pool_status()["idle"]) == (1, 1)


@pytest.mark.parametrize("package", ["httpx", "httpx2"])
def test_a_replaced_method_of_the_pool_is_called(
    package: str, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(package)
    ours = importlib.import_module(f"towline.{package}")
    core = importlib.import_module(package.replace("httpx", "httpcore"))

    async def respond(pool: Any, request: Any) -> Any:
        return core.Response(418, content=request.url.target)

    monkeypatch.setattr(
        core.ConnectionPool, "handle_request", lambda *args: core.Response(418, content=b"pot")
    )
    monkeypatch.setattr(core.AsyncConnectionPool, "handle_async_request", respond)

    async def main() -> None:
        async with ours.AsyncClient() as client:
            assert (await client.get(f"{origin.url}/pot")).content == b"/pot"

    with ours.Client() as client:
        assert client.get(origin.url).content == b"pot"
    asyncio.run(main())
    assert origin.hits == 0


def test_a_mock_that_is_older_than_the_import_is_seen() -> None:
    program = """
import httpx
original = httpx.HTTPTransport.handle_request
httpx.HTTPTransport.handle_request = lambda transport, request: httpx.Response(418)
import towline.httpx
client = towline.httpx.Client()
assert client.get("http://127.0.0.1:1/").status_code == 418
httpx.HTTPTransport.handle_request = original
try:
    client.get("http://127.0.0.1:1/")
except httpx.ConnectError:
    print("engine", towline.httpx._PACKAGE.seams.are_replaced())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "engine False\n"


def test_httpcore_is_not_imported_for_it() -> None:
    program = """
import sys, towline.httpx, httpx
client = towline.httpx.Client()
try:
    client.get("http://127.0.0.1:1/")
except httpx.ConnectError:
    print("httpcore" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_responses(origin: Origin, session: requests.Session) -> None:
    assert session.get(origin.url).text == "served"
    with responses.RequestsMock() as mock:
        mock.post(f"{origin.url}/a", json={"id": 7}, status=201, headers={"x-a": "b"})
        mock.get(f"{origin.url}/e", body=requests.ReadTimeout("slow"))
        mock.get(f"{origin.url}/s", body=b"one\ntwo\n")
        response = session.post(f"{origin.url}/a", json={"q": 1})
        assert (response.status_code, response.json(), response.headers["x-a"]) == (201, {"id": 7}, "b")
        with pytest.raises(requests.ReadTimeout, match="slow"):
            session.get(f"{origin.url}/e")
        with session.get(f"{origin.url}/s", stream=True) as streamed:
            assert list(streamed.iter_lines()) == [b"one", b"two"]
        with pytest.raises(requests.ConnectionError, match="Connection refused by Responses"):
            session.get(f"{origin.url}/unknown")
    assert origin.hits == 1
    assert session.get(origin.url).text == "served"


def test_a_request_that_responses_lets_through_uses_the_engine(
    origin: Origin, session: requests.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **options: Any) -> Any:
        raise AssertionError("urllib3 is used")

    monkeypatch.setattr("urllib3.HTTPConnectionPool.urlopen", refuse)
    with responses.RequestsMock() as mock:
        mock.add_passthru(origin.url)
        assert session.post(origin.url, data=iter([b"a", b"b"]), timeout=(3, 5)).text == "served"
        assert session.get(origin.url, headers={"x": "y"}).headers["x-served"] == "yes"
        mock.add_passthru("http://127.0.0.1")
        with pytest.raises(requests.ConnectionError):
            session.get("http://127.0.0.1:1/")
    assert origin.hits == 2


@pytest.mark.parametrize("package", ["httpx", "httpx2"])
def test_a_cassette_is_recorded_and_played_back(package: str, origin: Origin, tmp_path: Path) -> None:
    pytest.importorskip(package)
    ours = importlib.import_module(f"towline.{package}")
    cassette = str(tmp_path / "cassette.yaml")

    async def main() -> None:
        async with ours.AsyncClient() as client:
            assert (await client.get(f"{origin.url}/async")).text == "served"

    for _ in range(2):
        with vcr.use_cassette(cassette) as tape:
            with ours.Client() as client:
                assert client.post(origin.url, content=b"body").text == "served"
            asyncio.run(main())
    assert (tape.play_count, origin.hits) == (2, 2)


def test_a_cassette_of_requests(origin: Origin, session: requests.Session, tmp_path: Path) -> None:
    cassette = str(tmp_path / "cassette.yaml")
    for _ in range(2):
        with vcr.use_cassette(cassette) as tape:
            assert session.post(origin.url, data=b"body").text == "served"
            with contextlib.closing(session.get(f"{origin.url}/s", stream=True)) as response:
                assert b"".join(response.iter_content(3)) == b"served"
    assert (tape.play_count, origin.hits) == (2, 2)
    assert session.get(origin.url).text == "served"
    assert origin.hits == 3


def test_pytest_httpx_distinguishes_proxies(httpx_mock: HTTPXMock) -> None:
    """pytest-httpx reads the URL of the proxy and its credentials from the pool of the transport."""
    proxy = "http://user:secret@127.0.0.1:9/"
    httpx_mock.add_response(url="http://a.test/", proxy_url=proxy, text="through")
    httpx_mock.add_response(url="http://a.test/", text="direct")
    for settings, text in (({"proxy": proxy}, "through"), ({}, "direct")):
        with towline.httpx.Client(trust_env=False, **settings) as client:
            assert client.get("http://a.test/").text == text


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:9", "socks5://127.0.0.1:9"])
def test_respx_sees_requests_through_a_proxy(proxy: str) -> None:
    with respx.mock, towline.httpx.Client(proxy=proxy, trust_env=False) as client:
        respx.get("http://a.test/").respond(text="mocked")
        assert client.get("http://a.test/").text == "mocked"


def test_the_pool_has_the_settings_of_the_original() -> None:
    """Test suites read them, that of elastic-transport among others."""
    context = ssl.create_default_context()
    limits = httpx.Limits(max_connections=3)
    for ours, theirs in (
        (towline.httpx.Client, httpx.Client),
        (towline.httpx.AsyncClient, httpx.AsyncClient),
    ):
        pools = [made(verify=context, limits=limits)._transport._pool for made in (ours, theirs)]
        assert pools[0]._ssl_context is context
        assert [pool._max_connections for pool in pools] == [3, 3]
        assert isinstance(pools[0], type(pools[1]))
        proxied = ours(proxy="http://127.0.0.1:9")._mounts
        assert {type(one._pool).__mro__[1].__name__ for one in proxied.values()} <= {
            "HTTPProxy",
            "AsyncHTTPProxy",
        }
    with requests.Session() as session:
        adapter = towline.requests.Adapter()
        adapter.init_poolmanager(1, 2, ssl_context=context)
        session.mount("https://", adapter)
        assert adapter.poolmanager.connection_pool_kw["ssl_context"] is context
        adapter.poolmanager.pool_classes_by_scheme["https"] = object
    with pytest.raises(TypeError, match="assert_fingerprint cannot be used"):
        adapter.init_poolmanager(1, 1, assert_fingerprint="00")


def test_an_error_of_tls_has_the_cause_that_programs_look_for(origin: Origin) -> None:
    with towline.httpx.Client() as client, pytest.raises(httpx.ConnectError) as caught:
        client.get(origin.url.replace("http:", "https:"))
    cause = caught.value.__cause__
    assert cause is not None
    assert isinstance(cause.__context__, ssl.SSLError)
