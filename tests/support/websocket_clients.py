"""One test body for the WebSockets of both clients, and the servers that they talk to."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import towline
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

from tests.support.http1_peer import read_head

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class SyncSockets:
    name = "sync"

    def __init__(self, **settings: Any) -> None:
        self.client: Any = towline.Client(**settings)

    @contextlib.contextmanager
    def open(self, url: str, **options: Any) -> Iterator[Any]:
        with self.client.websocket(url, **options) as ws:
            yield ws

    def close(self) -> None:
        self.client.close()


class AsyncSockets:
    name = "async"

    def __init__(self, **settings: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.client: Any = towline.AsyncClient(**settings)

    @contextlib.contextmanager
    def open(self, url: str, **options: Any) -> Iterator[Any]:
        block = self.client.websocket(url, **options)
        ws = self.loop.run_until_complete(block.__aenter__())
        error: BaseException | None = None
        try:
            yield Driven(self.loop, ws)
        except BaseException as raised:
            error = raised
            raise
        finally:
            self.loop.run_until_complete(block.__aexit__(type(error) if error else None, error, None))

    def close(self) -> None:
        self.loop.run_until_complete(self.client.aclose())
        self.loop.close()


class Driven:
    """`AsyncWebSocket` whose methods run in its loop until they complete."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ws: Any) -> None:
        self._loop, self._ws = loop, ws

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ws, name)
        if not callable(found):
            return found
        return lambda *args, **kwargs: self._loop.run_until_complete(found(*args, **kwargs))

    def __iter__(self) -> Iterator[Any]:
        messages = self._ws.__aiter__()
        while True:
            try:
                yield self._loop.run_until_complete(messages.__anext__())
            except StopAsyncIteration:
                return


BACKENDS: dict[str, Callable[..., Any]] = {"sync": SyncSockets, "async": AsyncSockets}


@contextlib.contextmanager
def peer(handler: Callable[[ServerConnection], None], **options: Any) -> Iterator[str]:
    """The `websockets` package as server; its URL."""
    options.setdefault("max_size", None)
    server: Server
    with serve(handler, "127.0.0.1", 0, **options) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join()


def echo(ws: ServerConnection) -> None:
    for message in ws:
        ws.send(message)


def drained(ws: ServerConnection) -> None:
    """Receives until the end, with or without a close frame."""
    with contextlib.suppress(ConnectionClosed):
        for _ in ws:
            pass


def handshake(connection: socket.socket, *fields: str, accept: bytes | None = None) -> bytes:
    """Accepts a WebSocket handshake by hand; returns the request head."""
    head = read_head(connection)
    key = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key"))
    digest = base64.b64encode(hashlib.sha1(key.split(b": ")[1] + GUID).digest())
    lines = [
        b"HTTP/1.1 101 Switching Protocols",
        b"Upgrade: websocket",
        b"Connection: Upgrade",
        b"Sec-WebSocket-Accept: " + (accept or digest),
        *(field.encode() for field in fields),
    ]
    connection.sendall(b"\r\n".join(lines) + b"\r\n\r\n")
    return head


def frame(opcode: int, payload: bytes = b"", fin: bool = True) -> bytes:
    """One frame of a server."""
    first = bytes([fin << 7 | opcode])
    if len(payload) < 126:
        return first + bytes([len(payload)]) + payload
    return first + struct.pack("!BH", 126, len(payload)) + payload


def next_frame(connection: socket.socket) -> tuple[int, bytes]:
    """Returns the opcode and the payload of the next client frame. Raises ConnectionResetError at the end."""
    first, second = _exactly(connection, 2)
    assert second & 0x80, "a client masks everything (RFC 6455 5.1)"
    length = second & 0x7F
    if length == 126:
        (length,) = struct.unpack("!H", _exactly(connection, 2))
    mask = _exactly(connection, 4)
    payload = bytes(byte ^ mask[place % 4] for place, byte in enumerate(_exactly(connection, length)))
    return first & 0x0F, payload


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise ConnectionResetError
        data += piece
    return data
