"""An upstream that behaves as a test says: a function of the test serves each request, on a socket."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any

from tests.support.process import MAX_WAIT


@dataclass
class Exchange:
    """One request, and the socket for its response."""

    sock: socket.socket
    head: str
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def respond(self, status: str, body: bytes, *headers: str) -> None:
        """A complete response."""
        lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers]
        self.sock.sendall("".join(f"{line}\r\n" for line in lines).encode() + b"\r\n" + body)

    def begin_events(self) -> None:
        self.sock.sendall(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )

    def event(self, value: object) -> None:
        data = b"data: " + (value if isinstance(value, str) else json.dumps(value)).encode() + b"\n\n"
        self.sock.sendall(b"%x\r\n%s\r\n" % (len(data), data))

    def end_events(self) -> None:
        self.event("[DONE]")
        self.sock.sendall(b"0\r\n\r\n")

    def wait_for_close(self) -> bool:
        """Whether the other end closes the connection, sending nothing more."""
        self.sock.settimeout(MAX_WAIT)
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True


Handler = Callable[[Exchange], None]


class Upstream:
    """A server on a free port of 127.0.0.1. `requests` are those that were read."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        # Inherited by accepted sockets: what the kernel buffers of a response stays small.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.requests: list[Exchange] = []
        self.errors: list[BaseException] = []
        self.handler: Handler = lambda exchange: exchange.respond("200 OK", b"{}")
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            with sock, sock.makefile("rb") as file:
                while head := _head(file):
                    length = re.search(r"content-length: (\d+)", head)
                    exchange = Exchange(sock, head, file.read(int(length[1]) if length else 0))
                    self.requests.append(exchange)
                    self.handler(exchange)
        except OSError:
            pass  # the other end has closed the connection
        except BaseException as error:
            self.errors.append(error)

    def close(self) -> None:
        """Connections are refused from now on; open ones stay."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the `accept` that waits
        self._listener.close()


def _head(file: IO[bytes]) -> str:
    lines = []
    while (line := file.readline()) not in (b"", b"\r\n"):
        lines.append(line)
    return b"".join(lines).decode().lower()


@contextlib.contextmanager
def serving() -> Iterator[Upstream]:
    upstream = Upstream()
    try:
        yield upstream
        assert upstream.errors == []
    finally:
        upstream.close()
