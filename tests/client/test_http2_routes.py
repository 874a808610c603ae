"""HTTP version and route of a call: ALPN, HTTP_1_1_REQUIRED, proxies, the drop-ins."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import socket
import ssl
from collections.abc import Callable
from typing import Any

import pytest
import towline

from tests.support import http1_peer
from tests.support.http1_peer import scripted, tunnel
from tests.support.http2_clients import Open, h2_client  # noqa: F401
from tests.support.http2_server import (
    HTTP_1_1_REQUIRED,
    ClosedError,
    Peer,
    ReceivedRequest,
    always,
    offering,
    serving,
)
from tests.support.tls import Trust


@pytest.fixture(scope="module")
def trust(tmp_path_factory: pytest.TempPathFactory) -> Trust:
    return Trust(tmp_path_factory.mktemp("tls"))


def good(peer: Peer, request: ReceivedRequest) -> None:
    peer.respond(request, b"two")


ONE = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none"


class Either:
    """Uses the protocol that ALPN has chosen; HTTP/2 only to `refuse` it (RFC 9113 7), except for /two."""

    def __init__(self, context: ssl.SSLContext, refuse: Callable[[Peer, ReceivedRequest], None]) -> None:
        self.context = offering(context, "h2", "http/1.1")
        self.refuse = refuse
        self.protocols: list[str] = []

    def __call__(self, raw: http1_peer.Peer) -> None:
        assert isinstance(raw.sock, ssl.SSLSocket)
        if raw.sock.selected_alpn_protocol() != "h2":
            self.protocols.append("one")
            return http1_peer.respond_with(ONE)(raw)
        peer = Peer(raw.sock, {})
        while True:
            request = peer.next_request()
            self.protocols.append("two")
            if request[":path"] == "/two":
                peer.respond(request, b"two")
            else:
                self.refuse(peer, request)


@pytest.mark.parametrize("offered", [("h2", "http/1.1"), ("http/1.1",), ()])
def test_the_server_chooses_by_alpn(h2_client: Open, trust: Trust, offered: tuple[str, ...]) -> None:  # noqa: F811
    context = trust.server()
    if offered:
        offering(context, *offered)

    def handler(raw: http1_peer.Peer) -> None:
        if raw.sock.selected_alpn_protocol() == "h2":  # type: ignore[attr-defined]
            return always(good)(Peer(raw.sock, {}), 0)
        return http1_peer.respond_with(ONE)(raw)

    with scripted(handler, context) as server:
        response = h2_client(http1=True, verify=trust.path).get(server.url)
        expected = ("HTTP/2", "two") if "h2" in offered else ("HTTP/1.1", "one")
        assert (response.http_version, response.text) == expected
        assert h2_client(http1=True, http2=False, verify=trust.path).get(
            server.url
        ).text == "one" or offered == ("h2",)
        if "h2" not in offered:
            with pytest.raises(towline.TLSError, match="ALPN"):
                h2_client(verify=trust.path).get(server.url)


def test_many_calls_to_a_server_of_http1_have_connections_of_their_own(h2_client: Open, trust: Trust) -> None:  # noqa: F811
    with scripted(http1_peer.respond_with(ONE), trust.server()) as server:
        backend = h2_client(http1=True, verify=trust.path)
        responses = backend.at_once(*(("GET", server.url, {}) for _ in range(12)))
        assert {(response.http_version, response.text) for response in responses} == {("HTTP/1.1", "one")}
        assert server.connections > 1


def test_without_tls_http2_is_used_only_if_nothing_else_is_allowed(h2_client: Open) -> None:  # noqa: F811
    with scripted(http1_peer.respond_with(ONE)) as server:
        assert h2_client(http1=True).get(server.url).http_version == "HTTP/1.1"
    with serving(always(good)) as other:
        assert h2_client().get(other.url).http_version == "HTTP/2"


def test_http_1_1_required_resends_over_http1(h2_client: Open, trust: Trust) -> None:  # noqa: F811
    either = Either(trust.server(), lambda peer, request: peer.reset(request, HTTP_1_1_REQUIRED))
    with scripted(either, either.context) as server:
        backend = h2_client(http1=True, verify=trust.path)
        for method, content in (("GET", b""), ("POST", b"body")):
            response = backend.call(method, server.url, content=content or None)
            assert (response.http_version, response.text) == ("HTTP/1.1", "one")
        # The code is about the request, not about the server.
        assert backend.get(f"{server.url}/two").http_version == "HTTP/2"
        # A request that cannot or must not be sent twice fails.
        for content, more in ((backend.body(b"x"), {}), (b"x", {"retries": None})):
            with pytest.raises(towline.RemoteProtocolError, match="HTTP_1_1_REQUIRED"):
                backend.call("POST", server.url, content=content, **more)
        with pytest.raises(towline.RemoteProtocolError, match="HTTP_1_1_REQUIRED"):
            h2_client(verify=trust.path).get(server.url)
    assert (either.protocols.count("one"), server.connections) == (1, 3)


def close_tls(sock: socket.socket) -> None:
    """Ends TLS without closing at once: unread data of the client would cause a reset, and the client would lose data."""
    assert isinstance(sock, ssl.SSLSocket)
    with contextlib.suppress(OSError):
        sock.unwrap()
    with contextlib.suppress(OSError):
        while socket.socket.recv(sock, 65536):
            pass
    raise ClosedError


@pytest.mark.parametrize("processed", [False, True])
def test_goaway_with_http_1_1_required(h2_client: Open, trust: Trust, processed: bool) -> None:  # noqa: F811
    def refuse(peer: Peer, request: ReceivedRequest) -> None:
        peer.send_goaway(request.stream if processed else 0, HTTP_1_1_REQUIRED)
        if processed:
            close_tls(peer.socket)
        peer.until_closed()
        raise ClosedError

    either = Either(trust.server(), refuse)
    with scripted(either, either.context) as server:
        backend = h2_client(http1=True, verify=trust.path)
        response = backend.get(server.url)
        assert (response.http_version, response.text) == ("HTTP/1.1", "one")
        if processed:
            # The request may have had its effect (RFC 9113 6.8).
            with pytest.raises(towline.RemoteProtocolError, match="HTTP_1_1_REQUIRED") as caught:
                backend.call("POST", server.url, content=b"body")
            assert not caught.value.retryable
        else:
            assert backend.call("POST", server.url, content=b"body").http_version == "HTTP/1.1"
        # Sent once, since HTTP/2 would be refused each time.
        before = len(either.protocols)
        with pytest.raises(towline.RemoteProtocolError, match="HTTP_1_1_REQUIRED") as caught:
            h2_client(verify=trust.path).get(server.url)
        assert caught.value.retryable
        assert either.protocols[before:] == ["two"]


def test_through_the_tunnel_of_a_proxy(h2_client: Open, trust: Trust) -> None:  # noqa: F811
    context = offering(trust.server(), "h2")
    with serving(always(good), tls=context) as server, scripted(tunnel) as proxy:
        backend = h2_client(http1=True, verify=trust.path, proxy=f"http://user:pass@127.0.0.1:{proxy.port}")
        responses = backend.at_once(*(("GET", server.url, {}) for _ in range(20)))
        assert {(response.http_version, response.text) for response in responses} == {("HTTP/2", "two")}
    assert (len(server.peers), proxy.connections) == (1, 1)
    assert proxy.heads[0].lower().startswith(b"connect 127.0.0.1:%d http/1.1" % server.port)


def test_http_through_an_http_proxy_is_http1(h2_client: Open) -> None:  # noqa: F811
    with scripted(http1_peer.respond_with(ONE)) as proxy:
        url = f"http://127.0.0.1:{proxy.port}"
        assert h2_client(http1=True, proxy=url).get("http://a.test/").http_version == "HTTP/1.1"
        with pytest.raises(towline.LocalProtocolError, match="proxy"):
            h2_client(proxy=url).get("http://a.test/")


@pytest.mark.parametrize("name", ["httpx", "httpx2"])
def test_the_drop_ins_use_http2(name: str, trust: Trust) -> None:
    pytest.importorskip(name)
    ours: Any = importlib.import_module(f"towline.{name}")

    async def main(url: str) -> None:
        transport = ours.AsyncTransport(verify=trust.path, http2=True)
        clients = (ours.AsyncClient(transport=transport), ours.AsyncClient(http2=True, verify=trust.path))
        for client in clients:
            async with client:
                responses = await asyncio.gather(*(client.get(url) for _ in range(5)))
                assert {response.http_version for response in responses} == {"HTTP/2"}
                assert responses[0].extensions["http_version"] == b"HTTP/2"
                assert (
                    responses[0].extensions["network_stream"].get_extra_info("server_addr")[0] == "127.0.0.1"
                )
                async with client.stream("POST", url, content=b"x" * 100_000) as streamed:
                    assert await streamed.aread() == b"two"

    with serving(always(good), tls=offering(trust.server(), "h2")) as server:
        asyncio.run(main(server.url))
    assert len(server.peers) == 2


@pytest.mark.parametrize("name", ["httpx", "httpx2"])
@pytest.mark.parametrize("offered", ["h2", "http/1.1"])
def test_the_events_of_a_trace(name: str, offered: str, trust: Trust) -> None:
    pytest.importorskip(name)
    ours: Any = importlib.import_module(f"towline.{name}")
    events: list[str] = []
    infos: dict[str, Any] = {}

    async def trace(name: str, info: dict[str, Any]) -> None:
        events.append(name)
        infos[name] = info

    async def main(url: str) -> None:
        async with ours.AsyncClient(http2=True, verify=trust.path) as client:
            await client.get(url, extensions={"trace": trace})

    def handler(raw: http1_peer.Peer) -> None:
        always(good)(Peer(raw.sock, {}), 0) if offered == "h2" else http1_peer.respond_with(ONE)(raw)

    with scripted(handler, offering(trust.server(), offered)) as server:
        asyncio.run(main(server.url))
    wire = "http2" if offered == "h2" else "http11"
    steps = ("send_request_headers", "send_request_body", "receive_response_headers", "receive_response_body")
    for step in (*steps, "response_closed"):
        assert [event for event in events if event.startswith(f"{wire}.{step}.")] == [
            f"{wire}.{step}.started",
            f"{wire}.{step}.complete",
        ]
    # Expected before the server has chosen, and reported before anything is sent.
    assert events[0] == "http2.send_request_headers.started"
    assert sum(event.startswith("http2.") for event in events) == (10 if offered == "h2" else 1)
    head = infos[f"{wire}.receive_response_headers.complete"]["return_value"]
    assert head[0] == (200 if offered == "h2" else b"HTTP/1.1")
