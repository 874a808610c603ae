"""Right and wrong uses of the client and of `towline.serve`, checked by tests/client/test_typing.py. This file is never run.

A line with `# error` must be reported by each type checker, every other line by none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import towline
from typing_extensions import assert_type

URL = "http://localhost/"


def serving() -> None:
    towline.serve("main:app", port=8000, workers=4, ssl_certfile="cert.pem", http3=True)
    towline.run("main:app", access_log=False, http="h11", reload_dirs=["src"], log_level="info")
    towline.serve("main:app", prt=8000)  # error: the name
    towline.run("main:app", port="8000")  # error: the type
    towline.ServerConfig("main:app", port=8000, prt=1)  # error: the name


class Tracing(towline.Client):
    """Subclasses keep their type in a `with` block."""

    def own(self) -> int:
        return 1


def blocking() -> None:
    with towline.Client(base_url=URL, timeout=3.0, retries=2, http2=True) as client:
        assert_type(client, towline.Client)
        response = client.get(
            "/", params={"page": 1, "tag": ["a", "b"]}, headers={"accept": "*/*"}, timeout=2
        )
        assert_type(response, towline.Response)
        assert_type(response.status_code, int)
        assert_type(response.text, str)
        assert_type(response.content, bytes)
        assert_type(response.headers["content-type"], str)
        assert_type(response.url, towline.URL)
        assert_type(response.request, towline.Request)
        assert_type(response.raise_for_status(), towline.Response)
        assert_type(response.is_success, bool)
        value: dict[str, int] = response.json()
        print(value)
        assert_type(client.post("/", json={"a": [1, None]}, auth=("user", "password")), towline.Response)
        assert_type(client.put("/", content=b"bytes", follow_redirects=True, retries=None), towline.Response)
        assert_type(client.patch("/", data={"a": "b"}, files={"f": ("name", b"content")}), towline.Response)
        assert_type(client.delete("/", timeout=(1, 2, None)), towline.Response)
        assert_type(client.head("/", cookies={"a": "b"}), towline.Response)
        assert_type(client.options("/", extensions={"sni_hostname": "a"}), towline.Response)
        assert_type(client.request("POST", towline.URL(URL), transport="httpx"), towline.Response)
        assert_type(client.send(client.build_request("GET", "/")), towline.Response)
        with client.stream("GET", "/", timeout=None, auth=None) as streamed:
            assert_type(streamed, towline.Response)
            assert_type(streamed.iter_bytes(), Iterator[bytes])
            assert_type(streamed.iter_lines(), Iterator[str])
        with client.sse("/", headers=[("a", "b")]) as events:
            for event in events:
                assert_type(event, towline.ServerSentEvent)
                assert_type(event.data, str)
        with client.websocket("ws://localhost", params="a=b") as socket:
            assert_type(socket, towline.WebSocket)

        client.get("/", tiemout=3)  # error: the name
        client.get("/", timeout="3")  # error: seconds are a number
        client.get("/", params=3)  # error
        client.get("/", follow_redirects="yes")  # error
        client.get("/", {"page": 1})  # error: arguments are named
        client.get()  # error: no URL
        client.post("/", headers="a: b")  # error
        client.post("/", retries="3")  # error
        client.stream("GET", "/", stream=True)  # error
        client.websocket("ws://localhost", content=b"")  # error: a handshake has no body
        response.status_code.upper()  # error
        response.nothing  # error
        length: int = response.text  # error
        print(length)
    with Tracing() as tracing:
        assert_type(tracing.own(), int)
    towline.Client(timout=3)  # error
    towline.Client("http://localhost")  # error
    towline.Client(http2="yes")  # error
    towline.Client(http3="prior", alt_svc="alternatives", early_data=True)
    towline.Client(http3=True, alt_svc={"example.org": 'h3=":443"'})
    towline.Client(http3="always")  # error


async def asynchronous() -> None:
    async with towline.AsyncClient(base_url=URL) as client:
        assert_type(client, towline.AsyncClient)
        response = await client.get("/", params=[("a", 1)], timeout=towline.Timeout(3, connect=1))
        assert_type(response, towline.Response)
        assert_type(await client.post("/", json=[1]), towline.Response)
        assert_type(await client.request("GET", "/"), towline.Response)
        assert_type(await client.send(towline.Request("GET", URL)), towline.Response)
        async with client.stream("GET", "/") as streamed:
            assert_type(streamed, towline.Response)
            assert_type(streamed.aiter_bytes(), AsyncIterator[bytes])
            assert_type(await streamed.aread(), bytes)
        async with client.sse("/") as events:
            async for event in events:
                assert_type(event, towline.ServerSentEvent)
        async with client.websocket("ws://localhost") as socket:
            assert_type(socket, towline.AsyncWebSocket)

        client.get("/").text  # error: not awaited
        await client.get("/", tiemout=3)  # error
        await client.post("/", json={}, alow_redirects=True)  # error
        with client.stream("GET", "/"):  # error: `async with`
            pass


def once() -> None:
    assert_type(towline.get(URL, verify=False, timeout=3), towline.Response)
    assert_type(towline.post(URL, json={}, proxy="http://localhost:3128"), towline.Response)
    with towline.stream("GET", URL, trust_env=False) as response:
        assert_type(response, towline.Response)
    towline.get(URL, tiemout=3)  # error
    towline.put(URL, verify=3)  # error


def handle(request: towline.Request) -> towline.Response:
    assert_type(request.method, str)
    assert_type(request.headers.get("host"), str | None)
    assert_type(request.content, bytes)
    body: Any = {"a": 1}
    return towline.Response(200, json=body)


def mocked() -> None:
    towline.Client(transport=towline.MockTransport(handle), auth=towline.BasicAuth("a", "b"))
    try:
        towline.get(URL)
    except towline.StatusError as error:
        assert_type(error.response, towline.Response)
    except towline.TransportError as error:
        assert_type(error.request, towline.Request | None)
