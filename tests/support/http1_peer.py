"""HTTP/1 server whose bytes the test decides, for every test of a client that needs one.

One listener with three ways to define the behaviour of a connection:

- `scripted(handler)`: `handler(peer)` reads requests from a `Peer` and writes bytes; the heads are recorded.
- `serving(serve)`: `serve(sock, number)` has the bare socket, for bytes below the level of a request.
- `PathServer(scripts)`: one script per path (`http1_scripts.py`), and a record of the requests of each connection.

Each connection has a thread. An `OSError` in a handler means that the client has closed, which tests do on purpose.
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CLOSE_TIMEOUT = 2.0
"""Seconds that `Listener.close` waits for the threads, whose sockets are shut down by then."""

Handler = Callable[["Peer"], None]
Script = Callable[[socket.socket], bool]
"""Writes a response; returns whether the connection stays open."""


class Listener:
    """Listens on 127.0.0.1 or a Unix socket, with or without TLS; runs `handler` on a thread per connection."""

    def __init__(
        self,
        handler: Handler,
        *,
        tls: ssl.SSLContext | None = None,
        uds: str | None = None,
        backlog: int = 512,
    ) -> None:
        self.heads: list[bytes] = []
        self.connections = 0
        self._handler, self._tls = handler, tls
        self._listener = (
            socket.create_server(("127.0.0.1", 0), backlog=backlog) if uds is None else _unix(uds)
        )
        self.port: int = self._listener.getsockname()[1] if uds is None else 0
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.port}"
        self._open: dict[socket.socket, threading.Thread] = {}
        self._lock = threading.Lock()
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops listening, shuts every connection down and waits for the threads."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._listener.close()
        self._acceptor.join(CLOSE_TIMEOUT)
        with self._lock:
            connections = list(self._open.items())
        for sock, _ in connections:
            with contextlib.suppress(OSError):
                # `SSLSocket.shutdown` would drop the TLS state under the thread that reads.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
        deadline = time.monotonic() + CLOSE_TIMEOUT
        for _, thread in connections:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            number, self.connections = self.connections, self.connections + 1
            thread = threading.Thread(target=self._run, args=(sock, number), daemon=True)
            with self._lock:
                self._open[sock] = thread
            thread.start()

    def _run(self, sock: socket.socket, number: int) -> None:
        try:
            with contextlib.suppress(OSError), sock:
                if self._tls is not None:
                    sock = self._handshake(sock, self._tls)
                with sock:
                    self._handler(Peer(sock, number, self.heads))
        finally:
            with self._lock:
                self._open.pop(sock, None)

    def _handshake(self, sock: socket.socket, tls: ssl.SSLContext) -> ssl.SSLSocket:
        secure = tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            # The TLS socket owns the descriptor from here on.
            self._open[secure] = self._open.pop(sock)
        try:
            secure.do_handshake()
        except OSError:
            with self._lock:
                self._open.pop(secure, None)
            secure.close()
            raise
        return secure


@dataclass
class Peer:
    """Server side of one connection. `heads` is shared by all connections of the listener."""

    sock: socket.socket
    number: int
    """Index of the connection on its listener, from 0."""
    heads: list[bytes]
    buffer: bytes = b""

    def head(self) -> bytes:
        """The next request head without its empty line; `b""` when the client has closed."""
        while b"\r\n\r\n" not in self.buffer:
            data = self.sock.recv(65536)
            if not data:
                return b""
            self.buffer += data
        head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        self.heads.append(head)
        return head

    def body(self, length: int) -> bytes:
        while len(self.buffer) < length:
            self.buffer += self.sock.recv(65536) or _closed()
        body, self.buffer = self.buffer[:length], self.buffer[length:]
        return body

    def chunks(self) -> list[bytes]:
        """Chunks of a chunked body, up to its last one."""
        return list(self.iter_chunks())

    def iter_chunks(self) -> Iterator[bytes]:
        """As `chunks`, as they come."""
        while True:
            while b"\r\n" not in self.buffer:
                self.buffer += self.sock.recv(65536) or _closed()
            size, self.buffer = self.buffer.split(b"\r\n", 1)
            data = self.body(int(size, 16))
            assert self.body(2) == b"\r\n"
            if not data:
                return
            yield data

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def closed_by_client(self) -> bool:
        self.sock.settimeout(5)
        try:
            while self.sock.recv(65536):
                pass
        except ConnectionError:
            pass
        except TimeoutError:
            return False
        return True


@contextlib.contextmanager
def scripted(
    handler: Handler, context: ssl.SSLContext | None = None, uds: str | None = None
) -> Iterator[Listener]:
    """Gives every connection to `handler`."""
    with Listener(handler, tls=context, uds=uds) as listener:
        yield listener


@contextlib.contextmanager
def serving(serve: Callable[[socket.socket, int], None]) -> Iterator[Listener]:
    """Gives every connection to `serve` as a bare socket, with its number."""
    with Listener(lambda peer: serve(peer.sock, peer.number)) as listener:
        yield listener


class PathServer:
    """`with PathServer() as server`: `server.url("endless_head")`, `server.requests` (connection, path).

    `/good` always has a correct response. A script gets the connection after the request has been read and
    returns whether the connection stays open.
    """

    def __init__(self, scripts: Mapping[str, Script], *, backlog: int = 512) -> None:
        self.scripts = scripts
        self.requests: list[tuple[int, str]] = []
        self._listener = Listener(self._serve, backlog=backlog)
        self.base = self._listener.url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def url(self, name: str) -> str:
        return f"{self.base}/{name}"

    def connection_of(self, name: str) -> int:
        """Number of the connection that carried the last request for `name`."""
        return next(number for number, path in reversed(self.requests) if path == name)

    def _serve(self, peer: Peer) -> None:
        peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for name in requests_on(peer.sock):
            self.requests.append((peer.number, name))
            if not self.scripts[name](peer.sock):
                return


# Reading requests.


def read_head(connection: socket.socket) -> bytes:
    """One request head; empty at the end of input."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte:
            return b""
        head += byte
    return head


def requests_on(connection: socket.socket) -> Iterator[str]:
    """Path of each request in turn. A body must have a Content-Length and be small."""
    buffer = b""
    while True:
        while b"\r\n\r\n" not in buffer:
            piece = connection.recv(65536)
            if not piece:
                return
            buffer += piece
        head, _, buffer = buffer.partition(b"\r\n\r\n")
        announced = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        body_bytes = int(announced[1]) if announced else 0
        while len(buffer) < body_bytes:
            piece = connection.recv(65536)
            if not piece:
                return
            buffer += piece
        buffer = buffer[body_bytes:]
        yield head.split(b" ", 2)[1].decode().lstrip("/").partition("?")[0]


# Handlers.


def respond_with(data: bytes) -> Handler:
    """Sends `data` in response to every request without a body, until the client closes."""

    def handler(peer: Peer) -> None:
        while peer.head():
            peer.send(data)

    return handler


def echo_path(peer: Peer) -> None:
    """Sends the path of each request as the body of its response."""
    while head := peer.head():
        path = head.split(b" ")[1]
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(path), path))


def tunnel(peer: Peer) -> None:
    """Handler of a proxy for CONNECT (RFC 9110 9.3.6)."""
    target = peer.head().split(b" ")[1].decode()
    host, port = target.rsplit(":", 1)
    peer.send(b"HTTP/1.1 200 Connected\r\n\r\n")
    with socket.create_connection((host, int(port))) as origin:

        def back() -> None:
            with contextlib.suppress(OSError):
                while data := origin.recv(65536):
                    peer.sock.sendall(data)

        threading.Thread(target=back, daemon=True).start()
        while data := peer.sock.recv(65536):
            origin.sendall(data)


def _unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    return listener


def _closed() -> bytes:
    raise ConnectionError("the client has closed the connection")
