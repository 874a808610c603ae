"""Request and response bodies at the same time: the upload goes on while the response is read."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import towline

from tests.support.asyncio_client import BACKENDS, run
from tests.support.client_fixtures import Make, backend
from tests.support.http1_peer import OK, Peer, scripted
from tests.support.http2_server import CANCEL, ReceivedRequest, always, serving
from tests.support.http2_server import Peer as Http2Peer
from tests.support.http3 import servers
from tests.support.server_processes import MAX_WAIT
from tests.support.waiting import until

# ruff: noqa: F401, F811 - the fixture `backend` is imported

PIECE = bytes(range(256)) * 256
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PROTOCOLS: dict[str, dict[str, Any]] = {
    "HTTP/1.1": {},
    "HTTP/2": {"http1": False, "http2": True},
    "HTTP/3": {"http1": False, "http3": True},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Running]:
    """Towline, with every protocol."""
    site = servers.Site(tmp_path_factory.mktemp("duplex"))
    bind = ["--bind", f"127.0.0.1:{site.port}", "--ssl-certfile", site.cert, "--ssl-keyfile", site.key]
    command = [sys.executable, "-m", "towline", "serve", "tests.support.interop_app:app", "--http3"]
    with servers.run(site, [*command, *bind]) as running:
        yield running


def options_for(server: servers.Running, protocol: str) -> dict[str, Any]:
    verify = towline.TLS(trust=server.trust)
    return {"verify": verify, "base_url": server.url, "timeout": MAX_WAIT, **PROTOCOLS[protocol]}


def pieces(backend: Any, *parts: Any) -> Any:
    """A generated body; an exception among the parts is raised."""

    def generate() -> Iterator[bytes]:
        for part in parts:
            if isinstance(part, Exception):
                raise part
            yield part

    async def agenerate() -> AsyncIterator[bytes]:
        for part in generate():
            await asyncio.sleep(0)
            yield part

    return generate() if backend.name == "sync" else agenerate()


def echo(peer: Peer) -> None:
    """Sends the head, then each chunk of the body as it comes."""
    while peer.head():
        peer.send(CHUNKED)
        for chunk in peer.iter_chunks():
            peer.send(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        peer.send(b"0\r\n\r\n")


@pytest.mark.parametrize("kind", ["generator", "bytes"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_echo_larger_than_every_buffer(
    server: servers.Running, backend: Make, protocol: str, kind: str
) -> None:
    """The server reads on only when the client reads."""
    caller = backend(**options_for(server, protocol))
    for _ in range(2):
        body = PIECE * 160 if kind == "bytes" else pieces(caller, *[PIECE] * 160)
        response = caller.call("POST", "/talk", content=body)
        assert (response.http_version, len(response.content)) == (protocol, 160 * len(PIECE))
        assert hashlib.sha256(response.content).digest() == hashlib.sha256(PIECE * 160).digest()
        assert caller.client.pool_status()["active"] == 0
    assert response.reused


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("loop", BACKENDS)
def test_each_piece_depends_on_the_response_to_the_last(
    server: servers.Running, loop: str, protocol: str
) -> None:
    async def main() -> None:
        from towline._aio import Signal

        seen: list[bytes] = []
        arrived = Signal()

        async def questions() -> AsyncIterator[bytes]:
            for number in range(20):
                while len(seen) < number:
                    await arrived.wait()
                yield b"%d" % number

        async with towline.AsyncClient(**options_for(server, protocol)) as client:
            async with client.stream("POST", "/talk", content=questions()) as response:
                while piece := await response.aread(100):
                    seen.append(piece)
                    arrived.fire()
            assert seen == [b"%d" % number for number in range(20)]
            assert (await client.get("/small")).reused

    run(loop, main)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_blocking_upload_goes_on_in_the_reads(server: servers.Running, protocol: str) -> None:
    steps: list[str] = []

    def body() -> Iterator[bytes]:
        for _ in range(100_000):
            yield PIECE
            if "head" in steps:
                break
        steps.append("body")

    with towline.Client(**options_for(server, protocol)) as client:
        with client.stream("POST", "/talk", content=body()) as response:
            steps.append("head")
            content = response.read()
        assert steps == ["head", "body"]
        assert len(content) % len(PIECE) == 0
        assert client.get("/small").reused


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_exception_of_the_iterator_reaches_the_reader(
    server: servers.Running, backend: Make, protocol: str
) -> None:
    caller = backend(**options_for(server, protocol))
    for parts in ([KeyError("mine")], [b"1", KeyError("mine")], [PIECE] * 100 + [KeyError("mine")]):
        with pytest.raises(KeyError, match="mine"):
            caller.call("POST", "/talk", content=pieces(caller, *parts))
        assert caller.client.pool_status()["active"] == 0
    assert caller.get("/small").status_code == 200


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_closing_the_response_ends_an_endless_upload(
    server: servers.Running, backend: Make, protocol: str
) -> None:
    caller = backend(**options_for(server, protocol))
    ended: list[bool] = []

    def endless() -> Iterator[bytes]:
        try:
            while True:
                yield PIECE
        finally:
            ended.append(True)

    async def aendless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield PIECE
        finally:
            ended.append(True)

    body = endless() if caller.name == "sync" else aendless()
    with caller.opened("POST", "/talk", content=body) as response:
        assert PIECE.startswith(response.read(10))
        body = None
    assert ended == [True]
    assert caller.client.pool_status()["active"] == 0
    assert caller.get("/small").status_code == 200


class Early:
    """Responds completely after the head of a request, and then reads the body."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.seen = threading.Event()

    def __call__(self, peer: Peer) -> None:
        while head := peer.head().lower():
            peer.send(OK)
            self.seen.wait(MAX_WAIT)
            chunked = b"transfer-encoding: chunked" in head
            length = 0 if chunked else int(head.split(b"content-length: ")[1].split(b"\r")[0])
            self.bodies.append(b"".join(peer.chunks()) if chunked else peer.body(length))


@pytest.mark.parametrize("kind", ["generator", "bytes", "file"])
def test_a_complete_success_does_not_cut_the_upload(backend: Make, kind: str, tmp_path: Path) -> None:
    """The response is there before the body is sent; the connection is free, and the call over, when both are done."""
    early = Early()
    path = tmp_path / "body"
    path.write_bytes(PIECE * 200)
    with scripted(early) as peer:
        caller = backend(base_url=peer.url, timeout=MAX_WAIT)
        for _ in range(2):
            early.seen.clear()
            threading.Timer(0.1, early.seen.set).start()
            with path.open("rb") as file:
                content = {"generator": pieces(caller, *[PIECE] * 200), "bytes": PIECE * 200, "file": file}[
                    kind
                ]
                assert caller.call("PUT", "/", content=content).content == b"hello"
        until(lambda: len(early.bodies) == 2)
        assert peer.connections == 1
    assert early.bodies == [PIECE * 200] * 2


def test_a_server_that_closes_after_a_complete_success(backend: Make) -> None:
    """The response counts, though the rest of the upload cannot be sent."""

    def serve(peer: Peer) -> None:
        peer.head()
        peer.send(OK)

    with scripted(serve) as peer:
        caller = backend(base_url=peer.url, timeout=3 * MAX_WAIT)
        # Whether the client meets the end of input or the failed write first differs from call to call.
        for _ in range(30):
            begun = time.monotonic()
            body = pieces(caller, *[PIECE] * 1000)
            assert caller.call("PUT", "/", content=body).content == b"hello"
            assert time.monotonic() - begun < MAX_WAIT / 2, (
                "the failed upload must end the call, not its timeout"
            )
        assert caller.client.pool_status() == {"active": 0, "idle": 0, "connecting": 0, "waiting": 0}


def test_a_server_that_does_not_read_after_a_complete_success(backend: Make) -> None:
    done = threading.Event()

    def serve(peer: Peer) -> None:
        peer.head()
        peer.send(OK)
        done.wait(MAX_WAIT)

    with scripted(serve) as peer:
        caller = backend(base_url=peer.url, timeout=towline.Timeout(MAX_WAIT, write=0.2))
        for body in (pieces(caller, *[PIECE] * 1000), PIECE * 1000):
            assert caller.call("PUT", "/", content=body).content == b"hello"
            assert caller.client.pool_status()["idle"] == 0
        done.set()


@pytest.mark.parametrize("status", [307, 413, 503])
def test_a_refusal_ends_the_upload(backend: Make, status: int) -> None:
    pulled: list[int] = []

    def serve(peer: Peer) -> None:
        peer.head()
        peer.send(b"HTTP/1.1 %d No\r\nContent-Length: 2\r\n\r\nno" % status)
        peer.closed_by_client()

    with scripted(serve) as peer:
        caller = backend(base_url=peer.url, timeout=MAX_WAIT)
        parts = (pulled.append(1) or PIECE for _ in range(100_000))  # type: ignore[func-returns-value]
        response = caller.call("POST", "/", content=_lazily(caller, parts))
        assert (response.status_code, response.content) == (status, b"no")
        assert len(pulled) < 100_000
        assert caller.client.pool_status()["idle"] == 0


def _lazily(backend: Any, parts: Iterator[bytes]) -> Any:
    async def agenerate() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    return parts if backend.name == "sync" else agenerate()


def test_http2_resets_the_stream_of_a_refused_upload(backend: Make) -> None:
    codes: list[int] = []

    def script(peer: Http2Peer, number: int) -> None:
        request = peer.head()
        peer.respond(request, b"no", 413)
        codes.append(peer.until_reset(request))
        always(lambda peer, request: peer.respond(request, b"good"))(peer, number)

    with serving(script) as server:
        caller = backend(base_url=server.url, http1=False, http2=True, timeout=MAX_WAIT)
        response = caller.call("POST", "/", content=_lazily(caller, iter([PIECE] * 100_000)))
        assert (response.status_code, response.content) == (413, b"no")
        assert caller.get("/").text == "good"
    assert codes == [CANCEL]
    assert len(server.peers) == 1


def test_http2_no_error_ends_the_upload_of_a_complete_response(backend: Make) -> None:
    """RFC 9113 8.1: the response is not discarded, and nothing more is sent."""

    def script(peer: Http2Peer, number: int) -> None:
        request = peer.head()
        peer.respond(request, b"enough")
        peer.reset(request, 0)
        always(lambda peer, request: peer.respond(request, b"good"))(peer, number)

    with serving(script) as server:
        caller = backend(base_url=server.url, http1=False, http2=True, timeout=MAX_WAIT)
        response = caller.call("POST", "/", content=_lazily(caller, iter([PIECE] * 100_000)))
        assert (response.status_code, response.content) == (200, b"enough")
        assert caller.get("/").text == "good"
    assert len(server.peers) == 1


@pytest.mark.parametrize("kind", ["generator", "bytes"])
def test_http2_sends_the_rest_after_a_complete_success(backend: Make, kind: str) -> None:
    received: list[ReceivedRequest] = []

    def script(peer: Http2Peer, number: int) -> None:
        request = peer.head()
        peer.respond(request, b"early")
        peer.until(lambda: request.ended or request.reset is not None)
        received.append(request)
        always(lambda peer, request: peer.respond(request, b"good"))(peer, number)

    with serving(script) as server:
        caller = backend(base_url=server.url, http1=False, http2=True, timeout=MAX_WAIT)
        body = PIECE * 50 if kind == "bytes" else pieces(caller, *[PIECE] * 50)
        assert caller.call("POST", "/", content=body).content == b"early"
        until(lambda: caller.rest(0.01) or received)  # no other call sends the rest
        assert caller.get("/").text == "good"
    assert [(len(each.body), each.ended, each.reset) for each in received] == [(50 * len(PIECE), True, None)]
    assert len(server.peers) == 1


def test_a_slow_iterator_is_no_read_timeout() -> None:
    """While the iterator owes the next piece, the server may wait for it."""

    async def slow() -> AsyncIterator[bytes]:
        yield b"one"
        await asyncio.sleep(0.7)
        yield b"two"

    async def main(url: str) -> None:
        async with towline.AsyncClient(timeout=towline.Timeout(MAX_WAIT, read=0.2)) as client:
            assert (await client.post(url, content=slow())).content == b"onetwo"

    with scripted(echo) as peer:
        asyncio.run(main(peer.url))


def test_no_write_timeout_while_the_program_does_not_read(backend: Make) -> None:
    """The server waits for the program with its own reading."""

    with scripted(echo) as peer:
        caller = backend(base_url=peer.url, timeout=towline.Timeout(MAX_WAIT, write=0.3))
        with caller.opened("POST", "/", content=pieces(caller, *[PIECE] * 320)) as response:
            caller.rest(1.0)
            length = 0
            while piece := response.read(1 << 20):
                length += len(piece)
        assert length == 320 * len(PIECE)


def test_a_read_timeout_states_what_arrived(backend: Make) -> None:
    done = threading.Event()

    def stalling(peer: Peer) -> None:
        path = peer.head().split(b" ")[1]
        peer.send(
            {b"/body": CHUNKED + b"3\r\nabc\r\n", b"/head": b"HTTP/1.1 200 OK\r\n", b"/none": b""}[path]
        )
        done.wait(MAX_WAIT)

    with scripted(stalling) as peer:
        caller = backend(base_url=peer.url, timeout=towline.Timeout(MAX_WAIT, read=0.2))
        for path, text in (("/body", "no further byte"), ("/head", "no further byte"), ("/none", "no byte")):
            for content in (None, pieces(caller, b"x")):
                with pytest.raises(towline.ReadTimeout, match=text):
                    caller.call("POST", path, content=content)
        done.set()


def test_a_success_instead_of_100_continue(backend: Make) -> None:
    """The body is sent at once: the server takes it all the same."""

    with scripted(echo) as peer:
        caller = backend(base_url=peer.url, timeout=MAX_WAIT)
        for _ in range(2):
            headers = {"Expect": "100-continue"}
            body = pieces(caller, b"one", b"two")
            assert caller.call("POST", "/", content=body, headers=headers).content == b"onetwo"
        assert peer.connections == 1


@pytest.mark.parametrize("name", ["httpx", "httpx2"])
def test_through_the_dropins_of_httpx(name: str) -> None:
    import importlib

    pytest.importorskip(name)
    ours = importlib.import_module(f"towline.{name}")

    async def main(url: str) -> None:
        pulled: list[int] = []

        async def body(count: int) -> AsyncIterator[bytes]:
            for _ in range(count):
                await asyncio.sleep(0)
                yield PIECE
            pulled.append(count)

        async def failing() -> AsyncIterator[bytes]:
            yield b"1"
            raise KeyError("mine")

        async with ours.AsyncClient(timeout=MAX_WAIT) as client:
            async with client.stream("POST", url, content=body(2)) as response:
                assert pulled == [2], "httpx has sent all when it returns the response"
                assert len(await response.aread()) == 2 * len(PIECE)
            async with client.stream("POST", url, content=body(320)) as response:
                assert pulled == [2], "the server takes no more before it is read"
                assert len(await response.aread()) == 320 * len(PIECE)
            with pytest.raises(KeyError, match="mine"):
                await client.post(url, content=failing())

    with scripted(echo) as peer:
        asyncio.run(main(peer.url))
        with ours.Client(timeout=MAX_WAIT) as client:
            response = client.post(peer.url, content=iter([PIECE] * 320))
            assert len(response.content) == 320 * len(PIECE)
            with client.stream("POST", peer.url, content=iter([PIECE] * 320)) as response:
                assert len(b"".join(response.iter_bytes())) == 320 * len(PIECE)


def test_through_the_dropin_of_requests() -> None:
    pytest.importorskip("requests")
    import requests
    import towline.requests

    def failing() -> Iterator[bytes]:
        yield from [PIECE] * 100
        raise KeyError("mine")

    with scripted(echo) as peer, requests.Session() as session:
        session.mount("http://", towline.requests.Adapter())
        response = session.post(peer.url, data=iter([PIECE] * 320), timeout=MAX_WAIT)
        assert len(response.content) == 320 * len(PIECE)
        with session.post(peer.url, data=iter([PIECE] * 320), stream=True, timeout=MAX_WAIT) as response:
            assert sum(map(len, response.iter_content(10_000))) == 320 * len(PIECE)
        with pytest.raises(KeyError, match="mine"):
            session.post(peer.url, data=failing(), timeout=MAX_WAIT)


def test_a_response_before_the_request_is_an_error() -> None:
    sent = threading.Event()

    def serve(peer: Peer) -> None:
        peer.send(OK)
        sent.set()
        peer.closed_by_client()

    async def main(url: str) -> None:
        async with towline.AsyncClient(timeout=MAX_WAIT) as client:
            for method in ("GET", "POST"):
                sent.clear()
                call = client.request(method, url)  # connects; the request is sent when the loop turns
                assert sent.wait(MAX_WAIT)
                with pytest.raises(towline.RemoteProtocolError, match="without a request"):
                    await call
                assert client.pool_status() == {"active": 0, "idle": 0, "connecting": 0, "waiting": 0}

    with scripted(serve) as peer:
        asyncio.run(main(peer.url))


def test_a_prewarmed_connection_with_a_response_is_not_used(backend: Make) -> None:
    def serve(peer: Peer) -> None:
        if peer.number == 0:
            peer.send(OK.replace(b"hello", b"wrong"))
            peer.closed_by_client()
        while peer.head():
            peer.send(OK)

    with scripted(serve) as peer:
        caller = backend(base_url=peer.url, timeout=MAX_WAIT)
        warming = caller.client.prewarm(peer.url, 1)
        if caller.name == "async":
            caller.loop.run_until_complete(warming)
        caller.rest(0.3)
        assert caller.get("/").text == "hello"
