"""A server that breaks the rules on purpose: one script per path, and a count of what each connection carried.

`/good` is always answered as it should be. A script gets the connection after the request's head has been
read and returns whether the connection goes on.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator

GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood"
POISON = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nPOISON"
# Where nobody stops it, a script that has no end stops here: the test then fails on what was taken.
ENOUGH_BYTES = 256 << 20
BOMB_BYTES = 512 << 20

Script = Callable[[socket.socket], bool]


def script_of(*parts: bytes) -> Script:
    """The answer as it stands, and then the connection is held open."""

    def script(connection: socket.socket) -> bool:
        connection.sendall(b"".join(parts))
        return True

    return script


def script_then_close(*parts: bytes) -> Script:
    def script(connection: socket.socket) -> bool:
        connection.sendall(b"".join(parts))
        return False

    return script


def endless(start: bytes, piece: bytes) -> Script:
    def script(connection: socket.socket) -> bool:
        connection.sendall(start)
        block = piece * max(1, 65536 // len(piece))
        sent = 0
        while sent < ENOUGH_BYTES:
            connection.sendall(block)
            sent += len(block)
        return False

    return script


def drips(answer: bytes, every_s: float) -> Script:
    def script(connection: socket.socket) -> bool:
        for byte in answer:
            connection.sendall(bytes([byte]))
            time.sleep(every_s)
        return True

    return script


def resets(*parts: bytes) -> Script:
    """The answer's beginning, and then RST instead of FIN."""

    def script(connection: socket.socket) -> bool:
        connection.sendall(b"".join(parts))
        time.sleep(0.05)  # so that the bytes are read before the reset discards them
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False

    return script


def later(first: bytes, pause_s: float, second: bytes) -> Script:
    """An answer, and some time after it bytes that nobody asked for."""

    def script(connection: socket.socket) -> bool:
        connection.sendall(first)
        time.sleep(pause_s)
        with contextlib.suppress(OSError):
            connection.sendall(second)
        return True

    return script


def bomb(connection: socket.socket) -> bool:
    """Half a gigabyte of zeros in half a megabyte of gzip."""
    packed = _bomb()
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    connection.sendall(head + packed)
    return True


_packed: list[bytes] = []


def _bomb() -> bytes:
    if not _packed:
        # Members of gzip may follow each other (RFC 1952 2.2): one is compressed, and repeated.
        member = gzip.compress(bytes(1 << 20), 9)
        _packed.append(member * (BOMB_BYTES >> 20))
    return _packed[0]


def length(body: bytes, *fields: bytes) -> bytes:
    lines = b"".join(field + b"\r\n" for field in fields)
    return b"HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n%s" % (lines, len(body), body)


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
HALF_GZIP = gzip.compress(b"x" * 100_000 + bytes(range(256)))[:-200]

SCRIPTS: dict[str, Script] = {
    "good": script_of(GOOD),
    # heads
    "endless_head": endless(OK, b"X-Field: " + b"a" * 100 + b"\r\n"),
    "endless_line": endless(OK + b"X-Field: ", b"a" * 1000),
    "endless_start": endless(b"HTTP/1.1 200 ", b"a" * 1000),
    "endless_1xx": endless(b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"),
    "nonsense": script_of(b"SSH-2.0-OpenSSH_9.0\r\n" + b"x" * 100),
    "long_status": script_of(b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n"),
    "bare_cr": script_of(OK + b"X-A: a\rContent-Length: 0\r\n\r\n"),
    "nul": script_of(OK + b"X-A: a\0b\r\nContent-Length: 0\r\n\r\n"),
    "space_before_colon": script_of(OK + b"Content-Length : 4\r\n\r\ngood"),
    # framing
    "both_lengths": script_of(
        OK + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\n\r\n" + POISON
    ),
    "two_lengths": script_of(OK + b"Content-Length: 4\r\nContent-Length: 44\r\n\r\ngood" + POISON),
    "signed_length": script_of(OK + b"Content-Length: +4\r\n\r\ngood"),
    "chunk_overflow": script_of(CHUNKED + b"10000000000000000\r\nx"),
    "chunk_signed": script_of(CHUNKED + b"+4\r\ngood\r\n0\r\n\r\n"),
    "chunk_longer": script_of(CHUNKED + b"4\r\ngoodXX0\r\n\r\n"),
    "endless_extension": endless(CHUNKED + b"4;", b"a" * 1000),
    "endless_trailers": endless(CHUNKED + b"4\r\ngood\r\n0\r\n", b"X-Trailer: " + b"a" * 100 + b"\r\n"),
    # ends
    "silent_close": script_then_close(b""),
    "half_head": script_then_close(OK + b"Content-Le"),
    "early_close": script_then_close(OK + b"Content-Length: 100\r\n\r\nshort"),
    "chunked_close": script_then_close(CHUNKED + b"4\r\ngood\r\n"),
    "reset_body": resets(OK + b"Content-Length: 100\r\n\r\nshort"),
    "reset_head": resets(OK + b"Content-Le"),
    "drip_head": drips(OK + b"X: " + b"a" * 4000, 0.02),
    "drip_body": drips(OK + b"Content-Length: 4000\r\n\r\n" + b"a" * 4000, 0.02),
    # what nobody asked for
    "poison_idle": later(GOOD, 0.05, POISON),
    "poison_at_once": script_of(GOOD + POISON),
    "body_of_204": script_of(b"HTTP/1.1 204 No Content\r\nContent-Length: 55\r\n\r\n" + POISON),
    "body_of_304": script_of(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 44\r\n\r\n" + POISON),
    "unsolicited_101": script_of(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n" + POISON
    ),
    # contents
    "bomb": bomb,
    "six_codings": script_of(length(b"x", b"Content-Encoding: " + b", ".join([b"gzip"] * 6))),
    "half_gzip": script_of(length(HALF_GZIP, b"Content-Encoding: gzip")),
    "no_gzip": script_of(length(b"this is not gzip", b"Content-Encoding: gzip")),
    "redirect_loop": script_of(
        b"HTTP/1.1 302 Found\r\nLocation: /redirect_loop\r\nContent-Length: 0\r\n\r\n"
    ),
    "endless_sse": endless(
        OK + b"Content-Type: text/event-stream\r\n\r\n", b"data: aaaaaaaaaaaaaaaaaaaaaaaaa"
    ),
    "endless_text": endless(OK + b"Content-Type: text/plain\r\n\r\n", b"a" * 1000),
}


class Hostile:
    """`with Hostile() as server`: `server.url("endless_head")`, `server.carried` (connection, path)."""

    def __init__(self, scripts: dict[str, Script] | None = None, *, backlog: int = 512) -> None:
        self.scripts = SCRIPTS if scripts is None else {"good": SCRIPTS["good"], **scripts}
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=backlog)
        self.base = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.carried: list[tuple[int, str]] = []
        self._held: set[socket.socket] = set()

    def __enter__(self) -> Hostile:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()
        for connection in list(self._held):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def url(self, name: str) -> str:
        return f"{self.base}/{name}"

    def connection_of(self, name: str) -> int:
        """The number of the connection that carried the last request for it."""
        return next(number for number, path in reversed(self.carried) if path == name)

    def _accept(self) -> None:
        for number in itertools.count():
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection, number), daemon=True).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        self._held.add(connection)
        with connection, contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for name in requests_on(connection):
                self.carried.append((number, name))
                if not self.scripts[name](connection):
                    break
        self._held.discard(connection)


def requests_on(connection: socket.socket) -> Iterator[str]:
    """The path of each request, as it comes; its body, if it has one, has a length and is small."""
    held = b""
    while True:
        while b"\r\n\r\n" not in held:
            piece = connection.recv(65536)
            if not piece:
                return
            held += piece
        head, _, held = held.partition(b"\r\n\r\n")
        announced = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        body_bytes = int(announced[1]) if announced else 0
        while len(held) < body_bytes:
            piece = connection.recv(65536)
            if not piece:
                return
            held += piece
        held = held[body_bytes:]
        yield head.split(b" ", 2)[1].decode().lstrip("/").partition("?")[0]


def cases(names: Iterable[str]) -> list[str]:
    """So that a misspelt name fails at once."""
    return [name for name in names if SCRIPTS[name]]
