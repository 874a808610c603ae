"""WebSockets of the clients over HTTP/2 (RFC 8441), and where they go when it does not allow them."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import towline
import trustme
from h2.config import H2Configuration
from h2.connection import H2Connection

from tests.support.asgi_server import Receive, Scope, Send, respond, serving
from tests.support.http1_peer import serving as scripted
from tests.support.websocket_checks import application, check
from tests.support.websocket_clients import BACKENDS, frame, handshake, next_frame

MAX_WAIT = 10.0
MIB = 1 << 20


@pytest.fixture(params=sorted(BACKENDS))
def make(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Clients of either kind."""
    created: list[Any] = []

    def make(**settings: Any) -> Any:
        created.append(BACKENDS[request.param](**settings))
        return created[-1]

    yield make
    for backend in created:
        backend.close()


@contextmanager
def secure(folder: Path, **options: Any) -> Iterator[tuple[str, str]]:
    """Returns the URL of a server with TLS, and the CA file for its clients."""
    authority = trustme.CA()
    chain, trust = folder / "chain.pem", folder / "ca.pem"
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(str(chain))
    authority.cert_pem.write_to_path(str(trust))
    with serving(application, ssl_certfile=str(chain), **options) as server:
        yield f"wss://127.0.0.1:{server.port}", str(trust)


def test_on_a_new_and_on_an_existing_connection(make: Any, tmp_path: Path) -> None:
    with secure(tmp_path) as (url, trust):
        check(make(verify=trust, http2=True), url, "2")
        check(make(verify=trust, http2=True, http1=False), url, "2")
        check(make(verify=trust), url, "1.1")


def test_with_prior_knowledge_and_without(make: Any) -> None:
    with serving(application) as server:
        check(make(http2=True, http1=False), f"ws://127.0.0.1:{server.port}", "2")
        # Without TLS nothing announces HTTP/2 (RFC 9113 3.3).
        check(make(http2=True), f"ws://127.0.0.1:{server.port}", "1.1")


def test_together_with_other_calls_on_one_connection(tmp_path: Path) -> None:
    async def main(url: str, trust: str) -> None:
        async with towline.AsyncClient(verify=trust, http2=True) as client:
            async with client.websocket(url) as one, client.websocket(url) as other:
                plain = await client.get(url.replace("wss", "https"))
                assert (plain.http_version, plain.text) == ("HTTP/2", "2")
                for number in range(20):
                    await asyncio.gather(one.send(f"one {number}"), other.send(b"x" * 100_000))
                    assert await one.recv(timeout=MAX_WAIT) == f"one {number}"
                    assert len(await other.recv(timeout=MAX_WAIT)) == 100_000
                pool = client.pool_status()
                assert pool["active"] + pool["idle"] <= 2
            assert (await client.get(url.replace("wss", "https"))).text == "2"
            # A cancelled one ends only its own stream.
            ws = await client.websocket(url)
            await ws.send("x")
            del ws
            assert (await client.get(url.replace("wss", "https"))).text == "2"

    with secure(tmp_path) as (url, trust):
        asyncio.run(main(url, trust))


def test_a_slow_reader_does_not_stop_the_others(tmp_path: Path) -> None:
    async def flood(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await respond(send, b"ok")
            return
        await receive()
        await send({"type": "websocket.accept"})
        for _ in range(64):
            await send({"type": "websocket.send", "bytes": bytes(MIB)})

    async def main(url: str) -> None:
        async with towline.AsyncClient(http1=False, http2=True, base_url=url) as client:
            async with client.websocket("/", compression=False) as ws:
                for number in range(64):
                    if number % 8 == 0:
                        assert (await client.get("/")).text == "ok"
                    assert len(await ws.recv(timeout=MAX_WAIT)) == MIB

    with serving(flood) as server:
        asyncio.run(main(f"http://127.0.0.1:{server.port}"))


def test_a_server_that_does_not_allow_it_gets_another_connection(make: Any, tmp_path: Path) -> None:
    authority = trustme.CA()
    trust = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(trust))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    context.set_alpn_protocols(["h2", "http/1.1"])
    protocols: list[str | None] = []

    def serve(connection: socket.socket, number: int) -> None:
        with context.wrap_socket(connection, server_side=True) as tls:
            protocols.append(tls.selected_alpn_protocol())
            if protocols[-1] == "h2":
                conn = H2Connection(H2Configuration(client_side=False))
                conn.initiate_connection()
                tls.sendall(conn.data_to_send())
                while data := tls.recv(65536):
                    conn.receive_data(data)
                    tls.sendall(conn.data_to_send())
            else:
                handshake(tls)
                tls.sendall(frame(1, b"over HTTP/1.1"))
                next_frame(tls)
                tls.sendall(frame(8))

    with scripted(serve) as server:
        url = f"wss://127.0.0.1:{server.port}"
        with make(verify=str(trust), http2=True).open(url) as ws:
            assert ws.response.http_version == "HTTP/1.1"
            assert ws.recv(timeout=MAX_WAIT) == "over HTTP/1.1"
        assert protocols == ["h2", "http/1.1"]
        strict = make(verify=str(trust), http2=True, http1=False)
        with pytest.raises(towline.RemoteProtocolError, match="RFC 8441"), strict.open(url):
            pass
