"""A response and an error say what was sent, whatever the program does with its objects afterwards."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import towline
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import http1_peer

PATH = "/path"
NAMES = st.text("abcdefgh", min_size=1, max_size=8)
VALUES = st.text("abcdefgh 0189", max_size=8).map(str.strip)
KINDS = ["Client", "AsyncClient", "stream", "astream", "httpx", "httpx-async", "requests"]


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    with http1_peer.scripted(echo, None) as running:
        yield running.url


def echo(peer: http1_peer.Peer) -> None:
    """Responds to each request with its head and its body, as JSON."""
    file = peer.sock.makefile("rb")
    while line := file.readline():
        method, target, _ = line.decode().split()
        fields: list[tuple[str, str]] = []
        while (field := file.readline().decode("latin-1").rstrip("\r\n")) != "":
            name, _, value = field.partition(":")
            fields.append((name.lower(), value.strip()))
        length = int(dict(fields).get("content-length", "0"))
        body = file.read(length).decode("latin-1")
        told = json.dumps({"method": method, "target": target, "fields": fields, "body": body}).encode()
        peer.sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(told), told))


@st.composite
def calls(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of a call, mutable as far as possible."""
    arguments: dict[str, Any] = {}
    if draw(st.booleans()):
        arguments["params"] = draw(st.dictionaries(NAMES, VALUES, max_size=3))
    if draw(st.booleans()):
        arguments["headers"] = {
            f"x-{n}": v for n, v in draw(st.dictionaries(NAMES, VALUES, max_size=3)).items()
        }
    if draw(st.booleans()):
        arguments["cookies"] = draw(st.dictionaries(NAMES, NAMES, min_size=1, max_size=2))
    body = draw(st.sampled_from(["json", "data", "content", "array", None]))
    if body == "json":
        arguments["json"] = draw(st.dictionaries(NAMES, st.lists(VALUES, max_size=2), max_size=3))
    elif body == "data":
        arguments["data"] = draw(st.dictionaries(NAMES, VALUES, min_size=1, max_size=3))
    elif body == "content":
        arguments["content"] = draw(st.binary(max_size=20))
    elif body == "array":
        arguments["content"] = bytearray(draw(st.binary(min_size=1, max_size=20)))
    return arguments


def spoil(value: Any) -> None:
    """Changes an object and all that it contains."""
    if isinstance(value, dict):
        for item in list(value.values()):
            spoil(item)
        value.clear()
        value["spoiled"] = "spoiled"
    elif isinstance(value, list):
        value.append("spoiled")
    elif isinstance(value, bytearray):
        value[:] = b"#" * len(value)


def sent(response: Any) -> dict[str, Any]:
    """Returns the request as the response has it, in the form of the echo."""
    request = response.request
    fields = request.headers.raw if hasattr(request.headers, "raw") else request.headers.items()
    text = [
        (n if isinstance(n, str) else n.decode(), v if isinstance(v, str) else v.decode("latin-1"))
        for n, v in fields
    ]
    body = request.body if hasattr(request, "body") else request.content
    body = body if isinstance(body, (bytes, bytearray)) else (body or "").encode()
    parts = urlsplit(str(request.url))
    return {
        "method": request.method,
        "path": parts.path,
        "query": parse_qsl(parts.query, keep_blank_values=True),
        "fields": sorted((name.lower(), value) for name, value in text if name.lower() != "host"),
        "body": bytes(body).decode("latin-1"),
    }


def received(told: dict[str, Any]) -> dict[str, Any]:
    parts = urlsplit(told["target"])
    return {
        "method": told["method"],
        "path": parts.path,
        "query": parse_qsl(parts.query, keep_blank_values=True),
        "fields": sorted(tuple(field) for field in told["fields"] if field[0] != "host"),
        "body": told["body"],
    }


def call(kind: str, url: str, arguments: dict[str, Any]) -> Any:
    """Sends the request; then spoils the arguments and the client. Returns the response, which is read."""
    if kind in ("Client", "stream"):
        client = towline.Client(headers={"x-client": "1"}, base_url=url)
        if kind == "Client":
            response = client.post(PATH, **arguments)
        else:
            with client.stream("POST", PATH, **arguments) as response:
                response.read()
        client.headers["x-client"] = "spoiled"
        client.base_url = "http://spoiled.invalid/"  # type: ignore[assignment]
        client.cookies.set("spoiled", "spoiled")
        client.close()
        return response
    if kind in ("AsyncClient", "astream"):

        async def main() -> Any:
            async with towline.AsyncClient(headers={"x-client": "1"}, base_url=url) as client:
                if kind == "AsyncClient":
                    response = await client.post(PATH, **arguments)
                else:
                    async with client.stream("POST", PATH, **arguments) as response:
                        await response.aread()
                client.headers["x-client"] = "spoiled"
                client.base_url = "http://spoiled.invalid/"  # type: ignore[assignment]
                return response

        return asyncio.run(main())
    if kind == "requests":
        import requests
        from towline.requests import Adapter

        arguments = {"data" if name == "content" else name: value for name, value in arguments.items()}
        if isinstance(arguments.get("data"), bytearray):
            arguments["data"] = bytes(arguments["data"])  # requests keeps the object itself
        with requests.Session() as session:
            session.mount("http://", Adapter())
            response = session.post(url + PATH, **arguments)
            session.headers["x-client"] = "spoiled"
            return response
    import towline.httpx as httpx

    arguments = {**arguments}
    cookies = arguments.pop("cookies", None)
    if isinstance(arguments.get("content"), bytearray):
        arguments["content"] = bytes(arguments["content"])
    if kind == "httpx":
        with httpx.Client(base_url=url, cookies=cookies) as theirs:
            response = theirs.post(PATH, **arguments)
            theirs.headers["x-client"] = "spoiled"
            return response

    async def run() -> Any:
        async with httpx.AsyncClient(base_url=url, cookies=cookies) as theirs:
            return await theirs.post(PATH, **arguments)

    return asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(arguments=calls())
def test_the_request_of_a_response(kind: str, origin: str, arguments: dict[str, Any]) -> None:
    response = call(kind, origin, arguments)
    for value in arguments.values():
        spoil(value)
    assert sent(response) == received(response.json())


def test_the_same_dictionary_for_three_calls(origin: str) -> None:
    page = {"page": 0}
    responses = []
    with towline.Client() as client:
        for number in range(3):
            page["page"] = number
            responses.append(client.get(origin, params=page, timeout=number + 1))
        client.timeout = 99  # type: ignore[assignment]
    assert [response.url.query for response in responses] == [b"page=0", b"page=1", b"page=2"]
    assert [response.request.extensions["timeout"]["read"] for response in responses] == [1, 2, 3]


def test_through_a_proxy(origin: str) -> None:
    """The target is absolute and the head has the proxy's credentials, which are not of the request."""
    proxy = towline.Proxy(origin, auth=("user", "password"), headers={"x-proxy": "1"})
    with towline.Client(proxy=proxy) as client:
        response = client.get("http://example.org/path?a=b", headers={"x-a": "1"})
    told = dict(response.json()["fields"])
    assert response.json()["target"] == "http://example.org/path?a=b"
    assert told["x-proxy"] == "1"
    assert str(response.url) == "http://example.org/path?a=b"
    assert set(response.request.headers) == set(told) - {"x-proxy", "proxy-authorization"}


def fail(kind: str, url: str, arguments: dict[str, Any]) -> None:
    async def asynchronous() -> None:
        async with towline.AsyncClient() as client:
            if kind == "async":
                await client.get(url, **arguments)
            else:
                async with client.stream("GET", url, **arguments):
                    pass

    if kind == "towline.get":
        towline.get(url, **arguments)
    elif "async" in kind:
        asyncio.run(asynchronous())
    with towline.Client() as client:
        if kind == "get":
            client.get(url, **arguments)
        elif kind == "websocket":
            client.websocket(url.replace("http", "ws"), **arguments)
        with client.stream("GET", url, **arguments):
            pass


@pytest.mark.parametrize("arguments", [{}, {"auth": ("user", "password")}, {"transport": "httpx"}])
@pytest.mark.parametrize("kind", ["get", "stream", "async", "async stream", "towline.get", "websocket"])
def test_an_error_names_its_request(kind: str, arguments: dict[str, Any]) -> None:
    url = "http://127.0.0.1:1/path?token=secret&a=b"
    if kind == "websocket" and "transport" in arguments:
        pytest.skip("a WebSocket has no transport argument")

    with pytest.raises(towline.TransportError) as caught:
        fail(kind, url, arguments)
    assert str(caught.value).endswith(" (GET http://127.0.0.1:1/path?token=[secure]&a=b)")
    assert caught.value.request is not None
    assert caught.value.request.method == "GET"
    assert caught.value.request.url.path == "/path"


@pytest.mark.parametrize("plain", [True, False])
def test_an_error_of_a_body_names_its_request(plain: bool) -> None:
    def cut(peer: http1_peer.Peer) -> None:
        peer.sock.recv(65536)
        peer.sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart")
        peer.sock.shutdown(1)

    arguments: dict[str, Any] = {} if plain else {"auth": ("user", "password")}
    with http1_peer.scripted(cut, None) as running, towline.Client(retries=0) as client:
        url = f"{running.url}/x"
        with pytest.raises(towline.TransportError) as caught:
            client.post(url, json=1, **arguments)
        assert str(caught.value).endswith(f" (POST {url})")
        assert caught.value.request is not None
        assert caught.value.request.content == b"1"
        with (
            pytest.raises(towline.TransportError) as streamed,
            client.stream("GET", url, **arguments) as response,
        ):
            response.read()
        assert str(streamed.value).endswith(f" (GET {url})")

        async def asynchronous() -> None:
            async with towline.AsyncClient(retries=0) as client:
                with pytest.raises(towline.TransportError) as caught:
                    await client.post(url, json=1, **arguments)
                assert str(caught.value).endswith(f" (POST {url})")
                async with client.stream("GET", url, **arguments) as response:
                    with pytest.raises(towline.TransportError) as streamed:
                        await response.aread()
                assert str(streamed.value).endswith(f" (GET {url})")

        asyncio.run(asynchronous())
