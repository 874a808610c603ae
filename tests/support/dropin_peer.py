"""A peer whose bytes the test decides, for the drop-ins: each connection is handed to a function."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

Handler = Callable[["Peer"], None]


@dataclass
class Peer:
    """One connection, from the server's side."""

    sock: socket.socket
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
            self.buffer += self.sock.recv(65536) or _gone()
        body, self.buffer = self.buffer[:length], self.buffer[length:]
        return body

    def chunks(self) -> list[bytes]:
        """The chunks of a chunked body, until its end."""
        found = []
        while True:
            while b"\r\n" not in self.buffer:
                self.buffer += self.sock.recv(65536) or _gone()
            size, self.buffer = self.buffer.split(b"\r\n", 1)
            data = self.body(int(size, 16))
            assert self.body(2) == b"\r\n"
            if not data:
                return found
            found.append(data)

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


@dataclass
class Scripted:
    url: str
    port: int
    heads: list[bytes] = field(default_factory=list)
    connections: int = 0


@contextlib.contextmanager
def scripted(
    handler: Handler, context: ssl.SSLContext | None = None, uds: str | None = None
) -> Iterator[Scripted]:
    """Listens on 127.0.0.1 (or the unix socket) and gives every connection to `handler` in a thread."""
    listener = socket.create_server(("127.0.0.1", 0)) if uds is None else _unix(uds)
    port = listener.getsockname()[1] if uds is None else 0
    running = Scripted(f"http{'s' if context else ''}://127.0.0.1:{port}", port)
    threads: list[threading.Thread] = []
    socks: list[socket.socket] = []

    def serve(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if context is None:
                with sock:
                    handler(Peer(sock, running.heads))
                return
            with context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False) as tls:
                socks.append(tls)  # it has taken the other's descriptor over
                tls.do_handshake()
                handler(Peer(tls, running.heads))

    def accept() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            running.connections += 1
            socks.append(sock)
            threads.append(threading.Thread(target=serve, args=(sock,), daemon=True))
            threads[-1].start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield running
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for sock in socks:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
        for thread in [acceptor, *threads]:
            thread.join(5)


def answer(data: bytes) -> Handler:
    """The same bytes to every request, as long as the client stays."""

    def handler(peer: Peer) -> None:
        while peer.head():
            peer.send(data)

    return handler


def tunnel(peer: Peer) -> None:
    """A proxy's end of CONNECT (RFC 9110 9.3.6)."""
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


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


def _unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    return listener


def _gone() -> bytes:
    raise ConnectionError("the client has gone")
