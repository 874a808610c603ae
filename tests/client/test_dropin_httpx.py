"""httpx and httpx2 on Towline, over real sockets: the contract of a transport, sync and async alike."""

from __future__ import annotations

import asyncio
import gzip
import importlib
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.support.http1_peer import OK, Peer, respond_with, scripted

PACKAGES = ["httpx", "httpx2"]


@pytest.fixture(params=PACKAGES)
def package(request: pytest.FixtureRequest) -> ModuleType:
    return pytest.importorskip(request.param)


@pytest.fixture
def ours(package: ModuleType) -> ModuleType:
    return importlib.import_module(f"towline.{package.__name__}")


class Sync:
    """One exchange through the transport itself, its body read to the end."""

    name = "sync"

    def __init__(self, ours: ModuleType, **options: Any) -> None:
        self.transport = ours.Transport(**options)

    def exchange(self, request: Any) -> Any:
        response = self.transport.handle_request(request)
        try:
            response.body = b"".join(response.stream)
        finally:
            response.close()
        return response

    def close(self) -> None:
        self.transport.close()


class Async:
    """Exchanges of the asynchronous client, each in a new event loop."""

    name = "async"

    def __init__(self, ours: ModuleType, **options: Any) -> None:
        self.transport = ours.AsyncTransport(**options)

    def exchange(self, request: Any) -> Any:
        async def run() -> Any:
            response = await self.transport.handle_async_request(request)
            try:
                response.body = b"".join([part async for part in response.stream])
            finally:
                await response.aclose()
            return response

        return asyncio.run(run())

    def close(self) -> None:
        asyncio.run(self.transport.aclose())


@pytest.fixture(params=[Sync, Async], ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest, ours: ModuleType) -> Iterator[Any]:
    created = []

    def make(**options: Any) -> Any:
        created.append(request.param(ours, **options))
        return created[-1]

    yield make
    for one in created:
        one.close()


def test_the_classes_are_subclasses_of_the_packages(package: ModuleType, ours: ModuleType) -> None:
    assert issubclass(ours.Client, package.Client)
    assert issubclass(ours.AsyncClient, package.AsyncClient)
    assert issubclass(ours.Transport, package.HTTPTransport)
    assert issubclass(ours.AsyncTransport, package.AsyncHTTPTransport)
    assert ours.__all__ == ["AsyncClient", "AsyncTransport", "Client", "Transport"]


def test_a_client_has_our_transport_for_itself_and_for_proxies(
    ours: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with ours.Client() as client:
        assert type(client._transport) is ours.Transport
        assert [type(mount) for mount in client._mounts.values() if mount is not None] == [ours.Transport]
    with ours.Client(trust_env=False) as client:
        assert not client._mounts
    client = ours.AsyncClient(proxy="http://127.0.0.1:9", trust_env=False)
    assert [type(mount) for mount in client._mounts.values()] == [ours.AsyncTransport]
    asyncio.run(client.aclose())


def test_a_given_transport_is_used(package: ModuleType, ours: ModuleType) -> None:
    mock = package.MockTransport(lambda request: package.Response(204))
    with ours.Client(transport=mock, mounts={"all://other": ours.Transport()}) as client:
        assert client.get("http://any").status_code == 204


def test_fields_keep_their_order_and_case_both_ways(package: ModuleType, backend: Any) -> None:
    sent = [(b"Host", b"a.test"), (b"x-LOWER", b"1"), (b"X-Upper", b"2"), (b"x-lower", b"3")]
    got = [(b"X-zeta", b"1"), (b"x-Alpha", b"2"), (b"X-ZETA", b"3"), (b"Content-Length", b"0")]
    head = b"".join(b"%b: %b\r\n" % field for field in got)
    with scripted(respond_with(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n")) as server:
        response = backend().exchange(package.Request("GET", server.url + "/p?q=%41", headers=sent))
    assert server.heads == [b"GET /p?q=%41 HTTP/1.1\r\n" + b"\r\n".join(b"%b: %b" % field for field in sent)]
    assert response.headers.raw == got


def test_fields_about_framing_keep_their_place_and_case(package: ModuleType, backend: Any) -> None:
    sent = [
        (b"Connection", b"keep-alive"),
        (b"CONTENT-Length", b"2"),
        (b"Host", b"a.test"),
        (b"x-last", b"1"),
    ]
    streamed = [(b"Transfer-Encoding", b"chunked"), (b"Host", b"a.test"), (b"x-last", b"1")]

    def handler(peer: Peer) -> None:
        while head := peer.head():
            peer.body(2) if b"CONTENT-Length" in head else peer.chunks()
            peer.send(OK)

    class Body(package.SyncByteStream, package.AsyncByteStream):  # type: ignore[name-defined, misc]
        def __iter__(self) -> Iterator[bytes]:
            yield b"hi"

        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"hi"

    with scripted(handler) as server:
        one = backend()
        one.exchange(package.Request("POST", server.url, headers=sent, content=b"hi"))
        one.exchange(package.Request("POST", server.url, headers=streamed, stream=Body()))
    lines = [b"\r\n".join(b"%b: %b" % field for field in fields) for fields in (sent, streamed)]
    assert server.heads == [b"POST / HTTP/1.1\r\n" + fields for fields in lines]


def test_redirects_codings_and_cookies_are_left_to_the_package(package: ModuleType, backend: Any) -> None:
    coded = gzip.compress(b"text")
    fields = b"Location: /other\r\nSet-Cookie: a=1\r\nContent-Encoding: gzip\r\nContent-Length: %d" % len(
        coded
    )
    with scripted(respond_with(b"HTTP/1.1 302 Found\r\n" + fields + b"\r\n\r\n" + coded)) as server:
        one = backend()
        responses = [one.exchange(package.Request("GET", server.url)) for _ in range(2)]
    assert [(response.status_code, response.body) for response in responses] == [(302, coded)] * 2
    assert len(server.heads) == 2
    assert not any(b"cookie" in head.lower() for head in server.heads)


def test_extensions_of_a_response(package: ModuleType, backend: Any) -> None:
    with scripted(respond_with(b"HTTP/1.1 200 Quite Fine\r\nContent-Length: 0\r\n\r\n")) as server:
        extensions = backend().exchange(package.Request("GET", server.url)).extensions
    assert extensions["http_version"] == b"HTTP/1.1"
    assert extensions["reason_phrase"] == b"Quite Fine"
    assert "stream_id" not in extensions  # HTTP/1.1 has none, and httpcore returns none
    stream = extensions["network_stream"]
    assert stream.get_extra_info("server_addr") == ("127.0.0.1", server.port)
    assert stream.get_extra_info("client_addr")[0] == "127.0.0.1"
    assert stream.get_extra_info("ssl_object") is None
    assert stream.get_extra_info("socket").getpeername() == ("127.0.0.1", server.port)
    assert stream.get_extra_info("socket").family == socket.AF_INET
    assert stream.get_extra_info("unheard-of") is None


def test_the_target_extension_is_the_target(package: ModuleType, backend: Any) -> None:
    with scripted(respond_with(OK)) as server:
        request = package.Request("OPTIONS", server.url, extensions={"target": b"*"})
        backend().exchange(request)
    assert server.heads[0].startswith(b"OPTIONS * HTTP/1.1\r\n")


def test_an_iterator_is_framed_by_its_content_length_or_chunked(package: ModuleType) -> None:
    bodies: list[Any] = []

    def handler(peer: Peer) -> None:
        while head := peer.head():
            bodies.append(peer.body(6) if b"content-length: 6" in head.lower() else peer.chunks())
            peer.send(OK)

    def parts() -> Iterator[bytes]:
        yield b"abc"
        yield b"def"

    async def aparts() -> AsyncIterator[bytes]:
        for part in parts():
            await asyncio.sleep(0)
            yield part

    ours = importlib.import_module(f"towline.{package.__name__}")
    with scripted(handler) as server:
        with ours.Client() as client:
            assert client.post(server.url, content=parts(), headers={"Content-Length": "6"}).text == "hello"
            assert client.post(server.url, content=parts()).text == "hello"

        async def run() -> None:
            async with ours.AsyncClient() as client:
                length = {"Content-Length": "6"}
                assert (await client.post(server.url, content=aparts(), headers=length)).text == "hello"
                assert (await client.post(server.url, content=aparts())).text == "hello"

        asyncio.run(run())
    assert [b"".join(body) if isinstance(body, list) else body for body in bodies] == [b"abcdef"] * 4


def test_an_error_in_the_iterator_reaches_the_caller(package: ModuleType, ours: ModuleType) -> None:
    def parts() -> Iterator[bytes]:
        yield b"abc"
        raise KeyError("mine")

    async def aparts() -> AsyncIterator[bytes]:
        yield b"abc"
        raise KeyError("mine")

    async def run(url: str) -> None:
        async with ours.AsyncClient() as client:
            with pytest.raises(KeyError, match="mine"):
                await client.post(url, content=aparts())
            assert (await client.get(url)).text == "hello"

    def handler(peer: Peer) -> None:
        while head := peer.head():
            if head.startswith(b"POST"):
                peer.closed_by_client()
                return
            peer.send(OK)

    with scripted(handler) as server:
        with ours.Client() as client:
            with pytest.raises(KeyError, match="mine"):
                client.post(server.url, content=parts())
            assert client.get(server.url).text == "hello"
        asyncio.run(run(server.url))


def test_complete_bodies_of_every_kind_arrive(package: ModuleType, ours: ModuleType) -> None:
    seen: list[bytes] = []

    def handler(peer: Peer) -> None:
        while head := peer.head():
            fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
            seen.append(peer.body(int(fields.get(b"content-length", b"0"))))
            peer.send(OK)

    with scripted(handler) as server, ours.Client() as client:
        client.post(server.url, content=b"bytes")
        client.post(server.url, json={"a": 1})
        client.post(server.url, data={"a": "b"})
        client.post(server.url, files={"f": ("name", b"in a file")})
        client.post(server.url)
    assert seen[0] == b"bytes"
    assert seen[1].replace(b" ", b"") == b'{"a":1}'
    assert seen[2] == b"a=b"
    assert b"in a file" in seen[3]
    assert seen[4] == b""


def test_a_body_is_delivered_as_it_arrives(ours: ModuleType) -> None:
    go = threading.Event()

    def handler(peer: Peer) -> None:
        while peer.head():
            peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
            assert go.wait(20)
            go.clear()
            peer.send(b"6\r\nsecond\r\n0\r\n\r\n")

    async def run(url: str) -> None:
        async with ours.AsyncClient() as client, client.stream("GET", url) as response:
            parts = response.aiter_raw()
            assert await anext(parts) == b"first"
            go.set()
            assert [part async for part in parts] == [b"second"]

    with scripted(handler) as server:
        with ours.Client() as client, client.stream("GET", server.url) as response:
            parts = response.iter_raw()
            assert next(parts) == b"first"
            go.set()
            assert list(parts) == [b"second"]
        asyncio.run(run(server.url))


def test_closing_early_frees_the_connection(package: ModuleType, ours: ModuleType) -> None:
    def handler(peer: Peer) -> None:
        while head := peer.head():
            if b"/endless" not in head:
                peer.send(OK)
                continue
            peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while True:
                peer.send(b"400\r\n" + bytes(1024) + b"\r\n")

    one = package.Limits(max_connections=1, max_keepalive_connections=1)

    async def run(url: str) -> None:
        async with ours.AsyncClient(limits=one, timeout=5) as client:
            async with client.stream("GET", url + "/endless") as response:
                async for _ in response.aiter_raw():
                    break
            assert (await client.get(url)).text == "hello"

    with scripted(handler) as server:
        with ours.Client(limits=one, timeout=5) as client:
            with client.stream("GET", server.url + "/endless") as response:
                next(response.iter_raw())
            assert client.get(server.url).text == "hello"
        asyncio.run(run(server.url))


def test_a_connection_is_used_again(package: ModuleType, backend: Any) -> None:
    with scripted(respond_with(OK)) as server:
        one = backend()
        if one.name == "sync":
            for _ in range(3):
                one.exchange(package.Request("GET", server.url))
            assert server.connections == 1


def test_successive_event_loops_and_trio(ours: ModuleType) -> None:
    trio = pytest.importorskip("trio")
    client = ours.AsyncClient()

    async def get(url: str) -> str:
        text: str = (await client.get(url)).text
        return text

    with scripted(respond_with(OK)) as server:
        assert [asyncio.run(get(server.url)) for _ in range(3)] == ["hello"] * 3
        assert trio.run(get, server.url) == "hello"
    asyncio.run(client.aclose())


def test_a_cancelled_call_leaves_the_pool_intact(package: ModuleType, ours: ModuleType) -> None:
    def handler(peer: Peer) -> None:
        while head := peer.head():
            if b"/stall" not in head:
                peer.send(OK)

    async def run(url: str) -> None:
        limits = package.Limits(max_connections=2, max_keepalive_connections=2)
        async with ours.AsyncClient(limits=limits, timeout=5) as client:
            for _ in range(10):
                with pytest.raises((asyncio.TimeoutError, TimeoutError)):
                    await asyncio.wait_for(client.get(url + "/stall"), 0.02)
            responses = await asyncio.gather(*(client.get(url) for _ in range(20)))
            assert [response.text for response in responses] == ["hello"] * 20

    with scripted(handler) as server:
        asyncio.run(run(server.url))


def test_a_unix_socket_and_a_local_address(package: ModuleType, backend: Any, tmp_path: Any) -> None:
    path = str(tmp_path / "s")
    with scripted(respond_with(OK), uds=path):
        assert backend(uds=path).exchange(package.Request("GET", "http://a.test/")).body == b"hello"
    with scripted(respond_with(OK)) as server:
        response = backend(local_address="127.0.0.1").exchange(package.Request("GET", server.url))
        assert response.extensions["network_stream"].get_extra_info("client_addr")[0] == "127.0.0.1"


def test_through_a_proxy(package: ModuleType, backend: Any) -> None:
    """A plain request in absolute form (RFC 9112 3.2.2), with the proxy's own fields."""
    with scripted(respond_with(OK)) as proxy:
        chosen = package.Proxy(f"http://user:pass@127.0.0.1:{proxy.port}", headers={"X-Proxy": "1"})
        response = backend(proxy=chosen).exchange(package.Request("GET", "http://a.test/path"))
        assert response.body == b"hello"
    head = proxy.heads[0].lower()
    assert head.startswith(b"get http://a.test/path http/1.1\r\n")
    assert b"proxy-authorization: basic dxnlcjpwyxnz" in head
    assert b"x-proxy: 1" in head


def test_trace_reports_httpcores_events(package: ModuleType, ours: ModuleType) -> None:
    events: list[str] = []
    infos: dict[str, Any] = {}

    def trace(name: str, info: dict[str, Any]) -> None:
        events.append(name)
        infos[name] = info

    async def atrace(name: str, info: dict[str, Any]) -> None:
        trace(name, info)

    async def run(url: str) -> None:
        async with ours.AsyncClient() as client:
            await client.get(url, extensions={"trace": atrace})

    def both(step: str) -> list[str]:
        return [f"{step}.started", f"{step}.complete"]

    expected = [
        "http11.send_request_headers.started",
        *both("connection.connect_tcp"),
        "http11.send_request_headers.complete",
        *both("http11.send_request_body"),
        *both("http11.receive_response_headers"),
        *both("http11.receive_response_body"),
        *both("http11.response_closed"),
    ]
    with scripted(respond_with(OK)) as server:
        with ours.Client() as client:
            client.get(server.url, extensions={"trace": trace})
            assert events == expected
            events.clear()
            client.get(server.url, extensions={"trace": trace})
            assert not any("connect" in name for name in events)
        events.clear()
        asyncio.run(run(server.url))
        assert events == expected
    version, status, reason, fields = infos["http11.receive_response_headers.complete"]["return_value"]
    assert (version, status, reason, fields) == (b"HTTP/1.1", 200, b"OK", [(b"Content-Length", b"5")])
    events.clear()
    with ours.Client() as client:
        with pytest.raises(package.ConnectError):
            client.get("http://127.0.0.1:1", extensions={"trace": trace})
    assert events[-1] == "connection.connect_tcp.failed"


def refused(peer: Peer) -> None:
    raise AssertionError("nobody should connect")


def silent(peer: Peer) -> None:
    peer.head()
    peer.closed_by_client()


def drip(peer: Peer) -> None:
    peer.head()
    peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
    peer.closed_by_client()


def cut(peer: Peer) -> None:
    peer.head()
    peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")


def close_at_once(peer: Peer) -> None:
    peer.head()


def invalid_response(peer: Peer) -> None:
    peer.head()
    peer.send(b"What is this?\r\n\r\n")
    peer.closed_by_client()


def reset(peer: Peer) -> None:
    peer.head()
    peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
    time.sleep(0.1)
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")


@pytest.mark.parametrize(
    ("handler", "names"),
    [
        (silent, ["ReadTimeout"]),
        (drip, ["ReadTimeout"]),
        (cut, ["RemoteProtocolError"]),
        (close_at_once, ["RemoteProtocolError"]),
        (invalid_response, ["RemoteProtocolError"]),
        (reset, ["ReadError"]),
    ],
    ids=["silence", "silence in the body", "cut body", "no response", "no HTTP", "reset in the body"],
)
def test_failures_raise_the_packages_exceptions(
    package: ModuleType, backend: Any, handler: Any, names: list[str]
) -> None:
    with scripted(handler) as server:
        read = 0.3 if names == ["ReadTimeout"] else 10.0
        request = package.Request("GET", server.url, extensions={"timeout": {"read": read, "connect": 5}})
        with pytest.raises(package.TransportError) as caught:
            backend().exchange(request)
    assert type(caught.value).__name__ in names, caught.value
    assert caught.value.request is request
    assert str(caught.value)


def test_failures_before_anything_is_sent(package: ModuleType, backend: Any) -> None:
    with pytest.raises(package.ConnectError) as caught:
        backend().exchange(package.Request("GET", "http://127.0.0.1:1/"))
    assert caught.value.request.url == "http://127.0.0.1:1/"
    with pytest.raises(package.ConnectError):
        backend().exchange(package.Request("GET", "http://no-such-name.invalid/"))
    with pytest.raises(package.UnsupportedProtocol, match="unsupported protocol 'ftp://'"):
        backend().exchange(package.Request("GET", "ftp://127.0.0.1/"))
    with pytest.raises(package.UnsupportedProtocol, match="missing an 'http://'"):
        backend().exchange(package.Request("GET", "//127.0.0.1/"))
    with pytest.raises(package.ConnectError, match="123456"):
        backend().exchange(package.Request("GET", "http://127.0.0.1:123456/"))
    with pytest.raises(package.ConnectError):
        backend(uds="/nowhere/s").exchange(package.Request("GET", "http://a.test/"))


def test_waiting_for_a_connection_ends_in_pool_timeout(package: ModuleType, ours: ModuleType) -> None:
    with scripted(drip) as server:
        limits = package.Limits(max_connections=1)
        with ours.Client(limits=limits, timeout=package.Timeout(5, pool=0.1)) as client:
            with client.stream("GET", server.url):
                with pytest.raises(package.PoolTimeout):
                    client.get(server.url)


def test_a_body_shorter_than_its_length_is_an_error_of_the_caller(
    package: ModuleType, ours: ModuleType
) -> None:
    with scripted(silent) as server, ours.Client(timeout=2) as client:
        with pytest.raises(package.LocalProtocolError):
            client.post(server.url, content=iter([b"abc"]), headers={"Content-Length": "6"})


def test_a_closed_transport_refuses(package: ModuleType, ours: ModuleType) -> None:
    transport = ours.Transport()
    transport.close()
    with pytest.raises(RuntimeError, match="closed"):
        transport.handle_request(package.Request("GET", "http://127.0.0.1:1/"))


def test_redirects_cookies_and_codings_are_handled_by_the_package(ours: ModuleType) -> None:
    coded = gzip.compress(b"decoded")

    def handler(peer: Peer) -> None:
        while head := peer.head():
            if b"GET /end" in head:
                peer.send(
                    b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(coded)
                    + coded
                )
            else:
                peer.send(
                    b"HTTP/1.1 302 Found\r\nLocation: /end\r\nSet-Cookie: a=1\r\nContent-Length: 0\r\n\r\n"
                )

    with scripted(handler) as server, ours.Client(follow_redirects=True) as client:
        response = client.get(server.url)
        assert (response.text, len(response.history), client.cookies["a"]) == ("decoded", 1, "1")
    assert b"Cookie: a=1" in server.heads[1]
    assert response.elapsed.total_seconds() > 0


def test_socket_options_become_keepalive(ours: ModuleType) -> None:
    on = (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle = (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 7)
    with scripted(respond_with(OK)) as server:
        with ours.Client(transport=ours.Transport(socket_options=[on, idle])) as client:
            assert client.get(server.url).text == "hello"
    with pytest.raises(ValueError, match="not supported"):
        ours.Transport(socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)])


def test_an_unsupported_option_is_refused(ours: ModuleType) -> None:
    with pytest.raises(ValueError, match="http1"):
        ours.Transport(http1=False)
    with pytest.raises(ValueError, match="proxy"):
        ours.Transport(proxy="ftp://127.0.0.1:1")
    with pytest.raises(TypeError, match="unheard_of"):
        ours.Client(unheard_of=True)


def test_an_unknown_release_is_refused_at_import() -> None:
    from towline._dropins import _httpx

    for version, message in (
        ("9.1.0", "does not know httpx 9.1.0"),
        ("0.22.0", "httpx 0.23 or later, not 0.22.0"),
    ):
        other = SimpleNamespace(Client=object, AsyncClient=object, __name__="httpx", __version__=version)
        with pytest.raises(ImportError, match=message):
            _httpx.Package(other, "0.23")  # type: ignore[arg-type]


def test_a_client_of_an_older_release_may_have_an_app(package: ModuleType) -> None:
    """Until httpx 0.27 a client takes `app=`, and passes it on with every transport."""
    ours = importlib.import_module(f"towline.{package.__name__}")
    with ours.Client() as client:
        made = client._init_transport(verify=True, transport=None, app=None)
        assert isinstance(made, ours.Transport)
        made.close()


def test_importing_towline_imports_none_of_them() -> None:
    import subprocess

    program = "import towline, sys; print([n for n in ('httpx', 'httpx2', 'requests', 'urllib3') if n in sys.modules])"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out == "[]\n"
