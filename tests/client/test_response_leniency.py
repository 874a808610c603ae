"""HTTP/1 responses that clients and drop-ins accept although a server would refuse the same in a request, and bounds.

`conformance/http1/response_leniency.md` has each rule at every cut of the bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import towline

from tests.support.client_backends import BACKENDS
from tests.support.http1_peer import respond_with, scripted
from tests.support.http2_clients import Open, h2_client  # noqa: F401
from tests.support.http2_server import Peer, ReceivedRequest, always, serving

LENGTH = b"Content-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: a b\r\n\r\n"

# Each response has the body `ok` and a field `X-A: a b`.
ACCEPTED = {
    "fold": b"HTTP/1.1 200 OK\r\nX-A: a\r\n b\r\n" + LENGTH,
    "fold of tabs": b"HTTP/1.1 200 OK\r\nX-A:\r\n\ta \r\n\t \tb\r\n" + LENGTH,
    "LF only": b"HTTP/1.1 200 OK\nX-A: a b\nContent-Length: 2\n\nok",
    "LF at the end of the head": b"HTTP/1.1 200 OK\r\nX-A: a b\r\nContent-Length: 2\n\nok",
    "two equal lengths": b"HTTP/1.1 200 OK\r\nX-A: a b\r\nContent-Length: 2\r\n" + LENGTH,
    "list of equal lengths": b"HTTP/1.1 200 OK\r\nX-A: a b\r\nContent-Length: 2, 2\r\n\r\nok",
    "space after a chunk size": CHUNKED + b"2 \r\nok\r\n0\r\n\r\n",
    "odd chunk extension": CHUNKED + b'2;a b "\r\nok\r\n0;\r\n\r\n',
    "LF in trailers": CHUNKED + b"2\r\nok\r\n0\r\nX-T: a\n\n",
    "space before the colon": b"HTTP/1.1 200 OK\r\nX-A : a b\r\n" + LENGTH,
    "spaces in the status line": b"HTTP/1.1  200\tOK \r\nX-A: a b\r\n" + LENGTH,
    "HTTP/1.2": b"HTTP/1.2 200 OK\r\nX-A: a b\r\n" + LENGTH,
    "empty line first": b"\r\nHTTP/1.1 200 OK\r\nX-A: a b\r\n" + LENGTH,
    "control byte": b"HTTP/1.1 200 OK\r\nX-B: a\x01b\r\nX-A: a b\r\n" + LENGTH,
    "150 fields": b"HTTP/1.1 200 OK\r\n" + b"X-B: b\r\n" * 150 + b"X-A: a b\r\n" + LENGTH,
    "100 interim responses": b"HTTP/1.1 102 Processing\r\n\r\n" * 100
    + b"HTTP/1.1 200 OK\r\nX-A: a b\r\n"
    + LENGTH,
}
REFUSED = {
    "folded length": (b"HTTP/1.1 200 OK\r\nContent-Length:\r\n 2\r\n\r\nok", "folded"),
    "spaced length": (b"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nok", "colon"),
    "different lengths": (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok", "several"),
    "both framings": (CHUNKED[:-2] + LENGTH, "6.1"),
    "LF after a chunk size": (CHUNKED + b"2\nok\r\n0\r\n\r\n", "chunk size"),
    "CR": (b"HTTP/1.1 200 OK\r\nX-A: a\rb\r\n" + LENGTH, "control byte"),
}


def _httpx(url: str) -> Any:
    httpx = pytest.importorskip("towline.httpx")
    with httpx.Client(trust_env=False) as client:
        return client.get(url)


def _httpx_async(url: str) -> Any:
    httpx = pytest.importorskip("towline.httpx")

    async def call() -> Any:
        async with httpx.AsyncClient(trust_env=False) as client:
            return await client.get(url)

    return asyncio.run(call())


def _requests(url: str) -> Any:
    requests = pytest.importorskip("requests")
    adapter = pytest.importorskip("towline.requests").Adapter()
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", adapter)
        return session.get(url)


DROPINS: dict[str, Callable[[str], Any]] = {
    "httpx": _httpx,
    "httpx, async": _httpx_async,
    "requests": _requests,
}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[Any]:
    created = BACKENDS[request.param](trust_env=False)
    yield created
    created.close()


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_harmless_response_is_accepted(backend: Any, name: str) -> None:
    with scripted(respond_with(ACCEPTED[name])) as server:
        for _ in range(2):
            response = backend.get(server.url)
            assert (response.status_code, response.content) == (200, b"ok")
            assert response.headers["x-a"] == "a b"
    assert server.connections == 1


@pytest.mark.parametrize("dropin", DROPINS)
def test_drop_ins_accept_the_same(dropin: str) -> None:
    for data in ACCEPTED.values():
        with scripted(respond_with(data)) as server:
            response = DROPINS[dropin](server.url)
            assert (response.content, response.headers["x-a"]) == (b"ok", "a b")


@pytest.mark.parametrize("name", REFUSED)
def test_doubtful_framing_is_refused(backend: Any, name: str) -> None:
    data, rule = REFUSED[name]
    with scripted(respond_with(data)) as server, pytest.raises(towline.RemoteProtocolError, match=rule):
        backend.get(server.url)


def test_the_number_of_fields_is_bounded() -> None:
    for fields, most in ((3, 2), (5001, 5000)):
        data = b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * (fields - 1)
        for name in BACKENDS:
            backend = BACKENDS[name](trust_env=False, max_header_count=most)
            with scripted(respond_with(data + b"a: b\r\n" + LENGTH)) as server:
                with pytest.raises(towline.RemoteProtocolError, match="too many fields"):
                    backend.get(server.url)
            with scripted(respond_with(data[:-6] + LENGTH)) as server:
                assert backend.get(server.url).content == b"ok"
            backend.close()


@pytest.mark.parametrize("most", [0, 2, 100])
def test_interim_responses_are_bounded(most: int) -> None:
    interim = b"HTTP/1.1 104 Upload Resumption Supported\r\nUpload-Offset: 1\r\n\r\n"
    final = b"HTTP/1.1 200 OK\r\n" + LENGTH
    for name in BACKENDS:
        backend = BACKENDS[name](trust_env=False, max_interim_responses=most)
        with scripted(respond_with(interim * most + final)) as server:
            assert backend.get(server.url).content == b"ok"
        with scripted(respond_with(interim * (most + 1) + final)) as server:
            with pytest.raises(towline.RemoteProtocolError, match="too many interim responses"):
                backend.get(server.url)
        backend.close()


@pytest.mark.parametrize("most", [2, 100])
def test_http2_has_the_same_bounds(h2_client: Open, most: int) -> None:  # noqa: F811
    def respond(peer: Peer, request: ReceivedRequest) -> None:
        for _ in range(int(request[":path"][1:])):
            peer.begin(request, 104, [("upload-offset", "1")])
        peer.respond(request, b"ok", fields=[("a", "b")] * 200)

    with serving(always(respond)) as server:
        backend = h2_client(base_url=server.url, max_interim_responses=most)
        assert backend.get(f"/{most}").content == b"ok"
        with pytest.raises(towline.RemoteProtocolError, match="too many interim responses"):
            backend.get(f"/{most + 1}")
        strict = h2_client(base_url=server.url, max_header_count=100)
        with pytest.raises(towline.RemoteProtocolError, match="header list too long"):
            strict.get("/0")


@pytest.mark.parametrize("name", ["max_header_count", "max_interim_responses"])
def test_bounds_are_whole_numbers(name: str) -> None:
    for value in (-1, True, "5", 1.5):
        with pytest.raises(towline.ConfigError, match=name):
            towline.Client(**{name: value})
