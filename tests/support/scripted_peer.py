"""Small servers that do what a script says, on threads, and clients' child processes."""

from __future__ import annotations

import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Server:
    """Runs `serve(connection, number)` on a thread for each connection."""

    def __init__(self, serve: Callable[[socket.socket, int], None]) -> None:
        self._serve = serve
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.accepted = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            number, self.accepted = self.accepted, self.accepted + 1
            threading.Thread(target=self._run, args=(connection, number), daemon=True).start()

    def _run(self, connection: socket.socket, number: int) -> None:
        with connection:
            try:
                self._serve(connection, number)
            except OSError:
                pass  # the client has gone, as tests have it

    def close(self) -> None:
        self._listener.close()


@contextmanager
def serving(serve: Callable[[socket.socket, int], None]) -> Iterator[Server]:
    server = Server(serve)
    try:
        yield server
    finally:
        server.close()


def read_head(connection: socket.socket) -> bytes:
    """One request head; empty at the end of input."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte:
            return b""
        head += byte
    return head


def answering(answer: bytes) -> Callable[[socket.socket, int], None]:
    """Answers every request without a body in the same way."""

    def serve(connection: socket.socket, number: int) -> None:
        while read_head(connection):
            connection.sendall(answer)

    return serve


def echo_path(connection: socket.socket, number: int) -> None:
    """Answers with the path that was asked for."""
    while head := read_head(connection):
        path = head.split(b" ")[1]
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(path), path))


def python(script: str, *arguments: str, timeout: float = 30) -> subprocess.CompletedProcess[str]:
    """A script in a process of its own: for exits, signals and forks."""
    command = [sys.executable, "-X", "dev", "-c", textwrap.dedent(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
