"""WebSocket in the ASGI front end: how much is held, compression, clocks, the end of the server, what is counted."""

from __future__ import annotations

import asyncio
import contextlib
import re
import resource
import select
import ssl
import struct
import subprocess
import sys
import threading
import time
import urllib.request
import zlib
from pathlib import Path
from typing import Any

import pytest
import trustme
from towline.testing import Running, serve
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.support.asgi_server import Receive, Scope, Send, serving
from tests.support.feature_server import fetch
from tests.support.feature_server import serving as serving_features
from tests.support.waiting import until
from tests.support.websocket_server import (
    BINARY,
    BOTH_VERSIONS,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    Raw,
    close_frame,
    connect_to,
    echo,
    frame,
    open_ws,
    request,
)
from tests.support.websocket_tunnel import tunnel

MIB = 1024 * 1024
MOST = {"1.1": 24 * MIB, "2": 4 * MIB}
"""More than the kernel keeps for both ends of a local connection, or a window, and what the server may add."""


class Slow:
    """Accepts, and receives when told to."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.sizes: list[int] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await asyncio.get_running_loop().run_in_executor(None, self.go.wait, 30)
        while (message := await receive())["type"] == "websocket.receive":
            self.sizes.append(len(message["bytes"]))


@pytest.mark.parametrize("size", [1000, 1 * MIB])
@BOTH_VERSIONS
def test_a_slow_application_holds_the_client_up(size: int, version: str) -> None:
    app = Slow()
    with serving(app) as server, Raw(server, version=version) as client:
        whole = frame(BINARY, b"x" * size)
        client.sock.setblocking(False)
        sent, rest = 0, b""
        while select.select([], [client.sock], [], 1)[1]:
            rest = rest or whole
            taken = client.sock.send(rest)
            sent, rest = sent + taken, rest[taken:]
            assert sent < MOST[version]
        client.sock.setblocking(True)
        app.go.set()
        client.send(rest, close_frame(1000))
        assert client.close_code() == 1000
        assert set(app.sizes) == {size}
        assert len(app.sizes) == -(-sent // len(whole))


@BOTH_VERSIONS
def test_a_slow_client_holds_the_application_up(version: str) -> None:
    sent = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal sent
        await receive()
        await send({"type": "websocket.accept"})
        for _ in range(1000):
            await send({"type": "websocket.send", "bytes": b"x" * 65536})
            sent += 65536

    with serving(app) as server, open_ws(server, version=version, compression=None) as ws:
        before = -1
        while sent == 0 or sent != before:
            before = sent
            time.sleep(0.5)
        assert 0 < sent < MOST[version]
        assert sum(len(ws.recv()) for _ in range(1000)) == 1000 * 65536


@BOTH_VERSIONS
def test_pings_are_answered_while_the_application_is_busy(version: str) -> None:
    app = Slow()
    with serving(app) as server, Raw(server, version=version) as client:
        client.send(frame(PING, b"one"), frame(BINARY, b"held"))
        assert client.frame() == (0x80 | PONG, b"one")
        app.go.set()
        client.send(frame(PING, b"two"), close_frame(1000))
        assert client.frame() == (0x80 | PONG, b"two")
        assert client.close_code() == 1000
        assert app.sizes == [4]


@pytest.mark.parametrize(
    "wire",
    [
        # Heads only: nothing of the message has come.
        struct.pack("!BBH", 0x80 | BINARY, 0x80 | 126, 1001) + b"\0\0\0\0",
        struct.pack("!BBQ", 0x80 | BINARY, 0x80 | 127, 1 << 40) + b"\0\0\0\0",
        frame(BINARY, b"x" * 600, fin=False) + frame(CONTINUATION, b"x" * 401)[:8],
    ],
)
@BOTH_VERSIONS
def test_a_message_over_the_limit(wire: bytes, version: str) -> None:
    with serving(echo, ws_max_size=1000) as server, Raw(server, version=version) as client:
        client.send(frame(BINARY, b"x" * 1000))
        assert client.frame() == (0x80 | BINARY, b"x" * 1000)
        client.send(wire)
        assert client.close_code() == 1009


DEFLATE = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-12)
    return (packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH))[:-4]


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_a_compressed_message_is_not_expanded_before_it_is_received() -> None:
    """The read-ahead counts plain bytes: 16 KB of the wire can stand for 16 MB."""
    app, size = Slow(), 15 * MIB
    packed = frame(BINARY, deflated(bytes(size)), rsv=4)
    assert len(packed) < 20_000
    with serving(app) as server, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Raw(server, DEFLATE)) for _ in range(20)]
        before = resident()
        for client in clients:
            client.send(packed)
        time.sleep(1)
        assert resident() - before < 60 * MIB
        app.go.set()
        for client in clients:
            client.send(close_frame(1000))
            assert client.close_code() == 1000
        assert app.sizes == [size] * 20


@BOTH_VERSIONS
def test_a_bomb_is_no_message(version: str) -> None:
    with serving(echo, ws_max_size=100_000) as server, Raw(server, DEFLATE, version=version) as client:
        client.send(frame(BINARY, deflated(bytes(100_000)), rsv=4))
        first, response = client.frame()
        assert first == 0xC0 | BINARY
        assert zlib.decompressobj(-12).decompress(response + b"\0\0\xff\xff") == bytes(100_000)
        client.send(frame(BINARY, deflated(bytes(100_001)), rsv=4))
        assert client.close_code() == 1009


@BOTH_VERSIONS
def test_compression_is_an_option(version: str) -> None:
    with serving(echo) as server, Raw(server, DEFLATE, version=version) as client:
        assert b"permessage-deflate" in client.head
    with (
        serving(echo, ws_per_message_deflate=False) as server,
        Raw(server, DEFLATE, version=version) as client,
    ):
        assert b"permessage-deflate" not in client.head
        client.send(frame(TEXT, b"x" * 1000))
        assert client.frame() == (0x80 | TEXT, b"x" * 1000)


@BOTH_VERSIONS
def test_contexts_are_kept_from_message_to_message(version: str) -> None:
    text = "".join(f"{number:08x}" for number in range(0, 2**31, 2**31 // 100))
    with serving(echo) as server, open_ws(server, version=version, compression="deflate") as ws:
        for _ in range(5):
            ws.send(text)
            assert ws.recv() == text
    with serving(echo) as server, Raw(server, DEFLATE, version=version) as client:
        packed = deflated(text.encode())
        sizes = []
        for _ in range(2):
            # No window is needed for what refers to nothing before it.
            client.send(frame(TEXT, packed, rsv=4))
            sizes.append(len(client.frame()[1]))
        assert sizes[1] < sizes[0] / 4


@BOTH_VERSIONS
def test_a_client_that_does_not_answer_pings(version: str) -> None:
    with (
        serving(echo, ws_ping_interval=0.05, ws_ping_timeout=0.05) as server,
        Raw(server, version=version) as client,
    ):
        first, _ = client.frame()
        assert first == 0x80 | PING
        assert client.close_code() == 1011


@BOTH_VERSIONS
def test_a_client_that_answers_pings(version: str) -> None:
    with (
        serving(echo, ws_ping_interval=0.02, ws_ping_timeout=30) as server,
        Raw(server, version=version) as client,
    ):
        for _ in range(5):
            first, payload = client.frame()
            assert first == 0x80 | PING
            client.send(frame(PONG, payload))
        client.send(close_frame())


@BOTH_VERSIONS
def test_pings_without_a_time_for_the_answer(version: str) -> None:
    with (
        serving(echo, ws_ping_interval=0.02, ws_ping_timeout=None) as server,
        Raw(server, version=version) as client,
    ):
        payloads = {client.frame()[1] for _ in range(5)}
        assert len(payloads) == 5


@BOTH_VERSIONS
def test_no_pings(version: str) -> None:
    with serving(echo, ws_ping_interval=None) as server, Raw(server, version=version) as client:
        client.send(frame(TEXT, b"x"))
        assert client.frame() == (0x80 | TEXT, b"x")


@BOTH_VERSIONS
def test_the_server_ends(version: str) -> None:
    """Waiting ones are closed with 1012, and so is one that is accepted only then."""
    notified: list[Any] = []
    requested, go = threading.Event(), threading.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        if scope["path"] == "/late":
            requested.set()
            await asyncio.get_running_loop().run_in_executor(None, go.wait, 30)
        await send({"type": "websocket.accept"})
        message = await receive()
        notified.append((message["type"], message["code"]))
        with pytest.raises(OSError):
            await send({"type": "websocket.send", "text": ""})

    with serving(app) as server, Raw(server, version=version) as client, connect_to(server, version) as late:
        late.sendall(request("/late"))
        assert requested.wait(10)
        server.call(server.server.drain)
        assert client.frame() == (0x88, struct.pack("!H", 1012))
        client.send(close_frame(1012))
        client.expect_end()
        go.set()
        received = b""
        while not received.endswith(struct.pack("!BBH", 0x88, 2, 1012)):
            received += late.recv(65536)
        late.sendall(close_frame(1012))
        assert late.recv(65536) == b""
        # The server would wait for it for a while, as for any client that may still read.
        late.close()
        client.sock.close()
        assert notified == [("websocket.disconnect", 1012)] * 2
        until(lambda: server.server.connections == 0)


@BOTH_VERSIONS
def test_a_stopping_server_closes_and_ends(version: str) -> None:
    with serve(echo, interface="asgi") as server:
        ws = open_ws(server, version=version, legacy=True)
    with pytest.raises(ConnectionClosed):
        ws.recv()
    assert ws.close_code == 1012


@BOTH_VERSIONS
def test_a_server_that_ends_at_once_takes_everything_with_it(version: str) -> None:
    with serving(echo) as server, Raw(server, version=version) as client:
        server.call(server.server.cancel_all)
        with pytest.raises((ConnectionResetError, EOFError)):
            client.frame()


@BOTH_VERSIONS
def test_nothing_stays_behind(version: str) -> None:
    with serving(echo) as server:
        for _ in range(50):
            with Raw(server, version=version) as client:
                client.send(frame(TEXT, b"x"))
                client.frame()
        with open_ws(server, version=version) as ws:
            ws.send("x")
            ws.recv()
        until(lambda: server.server.connections == 0 and server.server.in_flight == 0)


@BOTH_VERSIONS
def test_access_log(version: str, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    with (
        serve(echo, interface="asgi", access_log=str(log)) as server,
        open_ws(server, "/chat?room=1", version) as ws,
    ):
        ws.send("x")
        ws.recv()
        # The line tells of the request, which is over.
        until(lambda: log.read_text())
    line = {"1.1": r'"GET /chat\?room=1 HTTP/1\.1" 101 - ', "2": r'"CONNECT /chat\?room=1 HTTP/2\.0" 200 - '}
    assert re.search(line[version], log.read_text())


@BOTH_VERSIONS
def test_metrics(version: str, tmp_path: Path) -> None:
    """The request is counted when it is answered, the connection for as long as it is open."""
    (tmp_path / "echoing.py").write_text("from tests.support.websocket_server import echo as app\n")
    command = [sys.executable, "-m", "towline", "serve", "echoing:app", "--port", "0", "--interface", "asgi"]
    command += ["--metrics", "--lifespan", "off", "--app-dir", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        while not (found := re.search(r"127\.0\.0\.1:(\d+)", process.stderr.readline())):
            pass
        url = f"http://127.0.0.1:{found[1]}"
        running = Running(url, "127.0.0.1", int(found[1]), f"127.0.0.1:{found[1]}")
        with open_ws(running, version=version) as ws:
            ws.send("x")
            ws.recv()
            page = urllib.request.urlopen(f"{url}/metrics").read().decode()
    finally:
        process.terminate()
        process.communicate(timeout=20)
    counted = {
        "1.1": 'method="GET",version="1.1",status="101"',
        "2": 'method="other",version="2",status="200"',
    }
    assert f"towline_requests_total{{{counted[version]}}} 1" in page
    assert "\ntowline_requests_in_flight 0" in page
    assert "\ntowline_connections_open 2" in page


@pytest.mark.parametrize("kind", ["wsgi", "wsgi-threads"])
def test_wsgi_answers_as_to_any_request(kind: str) -> None:
    with serving_features(kind) as server:
        response = fetch(
            server, "/a", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"
        )
        assert (response.status, response.body) == (200, b"/a")


@BOTH_VERSIONS
def test_tls(version: str, tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = tmp_path / "cert.pem"
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    context = ssl.create_default_context()
    authority.configure_trust(context)
    scopes: list[tuple[str, str]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append((scope["http_version"], scope["scheme"]))
        assert "tls" in scope["extensions"]
        await echo(scope, receive, send)

    with serve(app, interface="asgi", ssl_certfile=str(certificate)) as server:
        if version == "1.1":
            ws = connect(f"wss://localhost:{server.port}/", ssl=context, proxy=None)
        else:
            context.set_alpn_protocols(["h2"])
            near = tunnel(("localhost", server.port), tls=context)
            ws = connect("ws://localhost/", sock=near, proxy=None)
        with ws:
            ws.send("x" * 100_000)
            assert ws.recv() == "x" * 100_000
    assert scopes == [(version, "wss")]
