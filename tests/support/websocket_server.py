"""WebSocket applications under the ASGI server, and a client that sends exactly the bytes given."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from towline.testing import Running
from websockets.sync.client import ClientConnection, connect

from tests.support.asgi_server import AsgiRunningServer, Receive, Scope, Send, respond, serving
from tests.support.websocket_tunnel import tunnel

BOTH_VERSIONS = pytest.mark.parametrize("version", ["1.1", "2"])
"""Over HTTP/1.1, and through `tunnel` over a stream of HTTP/2."""

TEXT, BINARY, CONTINUATION, CLOSE, PING, PONG = 1, 2, 0, 8, 9, 10


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Every message back, until the client closes."""
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({**message, "type": "websocket.send"})


def late_reader(received: list[int]) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """Reads messages, whose lengths it notes, only after the first HTTP request. Echoes at /echo."""
    go = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            go.set()
            return await respond(send)
        if scope["path"] == "/echo":
            return await echo(scope, receive, send)
        await receive()
        await send({"type": "websocket.accept"})
        await go.wait()
        while (message := await receive())["type"] == "websocket.receive":
            received.append(len(message["bytes"]))
        return None

    return app


def connect_to(
    server: AsgiRunningServer | Running, version: str = "1.1", timeout: float = 10
) -> socket.socket:
    """Opens a connection for an HTTP/1.1 client; over HTTP/2 it is tunnelled."""
    address = ("127.0.0.1", server.port)
    near = socket.create_connection(address) if version == "1.1" else tunnel(address)
    near.settimeout(timeout)
    return near


def open_ws(
    server: AsgiRunningServer | Running, path: str = "/", version: str = "1.1", **options: Any
) -> ClientConnection:
    options.setdefault("max_size", None)
    sock = connect_to(server, version)
    return connect(f"ws://127.0.0.1:{server.port}{path}", sock=sock, proxy=None, **options)


@contextlib.contextmanager
def echoing(app: Any = echo, **options: Any) -> Iterator[AsgiRunningServer]:
    with serving(app, **options) as server:
        yield server


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True, rsv: int = 0, masked: bool = True) -> bytes:
    """One frame as a client sends it; the mask is made of zeros."""
    first = bytes([fin << 7 | rsv << 4 | opcode])
    bit = 0x80 if masked else 0
    if len(payload) < 126:
        length = bytes([bit | len(payload)])
    elif len(payload) < 65536:
        length = struct.pack("!BH", bit | 126, len(payload))
    else:
        length = struct.pack("!BQ", bit | 127, len(payload))
    return first + length + (b"\0\0\0\0" if masked else b"") + payload


def close_frame(code: int | None = None, reason: str = "") -> bytes:
    return frame(CLOSE, b"" if code is None else struct.pack("!H", code) + reason.encode())


def request(path: str = "/", *lines: str, key: str | None = None, version: str = "1.1") -> bytes:
    """The handshake, with `lines` added."""
    key = key or base64.b64encode(os.urandom(16)).decode()
    head = [
        f"GET {path} HTTP/{version}",
        "Host: test",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {key}",
        *lines,
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n"


class Raw:
    """A client that writes its own frames."""

    def __init__(
        self,
        server: AsgiRunningServer,
        *lines: str,
        path: str = "/",
        version: str = "1.1",
        timeout: float = 10,
    ) -> None:
        self.sock: socket.socket = connect_to(server, version, timeout)
        self.buffer = b""
        self.sock.sendall(request(path, *lines))
        self.head = self._until(b"\r\n\r\n")

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    @property
    def status(self) -> int:
        return int(self.head.split()[1])

    def send(self, *frames: bytes) -> None:
        self.sock.sendall(b"".join(frames))

    def _more(self) -> None:
        data = self.sock.recv(262144)
        if not data:
            raise EOFError
        self.buffer += data

    def _until(self, mark: bytes) -> bytes:
        while mark not in self.buffer:
            self._more()
        head, _, self.buffer = self.buffer.partition(mark)
        return head

    def _take(self, count: int) -> bytes:
        while len(self.buffer) < count:
            self._more()
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        return taken

    def frame(self) -> tuple[int, bytes]:
        """Returns the first byte and the payload of the next frame. Raises `EOFError` at the end."""
        first, length = self._take(2)
        assert not length & 0x80, "a server masks nothing"
        if length == 126:
            (length,) = struct.unpack("!H", self._take(2))
        elif length == 127:
            (length,) = struct.unpack("!Q", self._take(8))
        return first, self._take(length)

    def close_code(self) -> int | None:
        """Expects a close frame (`None`: without a code), then the end of the connection."""
        return self.close_frame()[0]

    def close_frame(self) -> tuple[int | None, str]:
        """The code and the reason of the next frame, which closes."""
        first, payload = self.frame()
        assert first == 0x80 | CLOSE, (first, payload)
        self.expect_end()
        return struct.unpack("!H", payload[:2])[0] if payload else None, payload[2:].decode()

    def expect_end(self) -> None:
        with contextlib.suppress(EOFError):
            self._more()
            raise AssertionError(self.buffer)
