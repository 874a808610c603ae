"""Scripts of an HTTP/1 server, one per path: rule violations, early closes, delays, endless streams.

`PathServer(SCRIPTS)` of `http1_peer.py` serves them. A script writes to the connection once the request has been
read and returns whether the connection stays open.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import random
import socket
import struct
import time
from collections.abc import Callable, Iterable

from tests.support.http1_peer import PathServer, Script

GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood"
UNSOLICITED = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nPOISON"
# Bound of an endless script that nothing stops; the test then fails on the bytes that were read.
ENDLESS_BYTES = 256 << 20
BOMB_BYTES = 512 << 20


def script_of(*parts: bytes) -> Script:
    """Sends the parts and leaves the connection open."""

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
        while sent < ENDLESS_BYTES:
            connection.sendall(block)
            sent += len(block)
        return False

    return script


def byte_by_byte(response: bytes, every_s: float) -> Script:
    def script(connection: socket.socket) -> bool:
        for byte in response:
            connection.sendall(bytes([byte]))
            time.sleep(every_s)
        return True

    return script


def script_then_reset(*parts: bytes) -> Script:
    """Sends the parts, then RST instead of FIN."""

    def script(connection: socket.socket) -> bool:
        connection.sendall(b"".join(parts))
        time.sleep(0.05)  # so that the bytes are read before the reset discards them
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False

    return script


def script_then_unsolicited(first: bytes, pause_s: float, second: bytes) -> Script:
    """Sends a response and, after a pause, unsolicited bytes."""

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
        OK + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\n\r\n" + UNSOLICITED
    ),
    "two_lengths": script_of(OK + b"Content-Length: 4\r\nContent-Length: 44\r\n\r\ngood" + UNSOLICITED),
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
    "reset_body": script_then_reset(OK + b"Content-Length: 100\r\n\r\nshort"),
    "reset_head": script_then_reset(OK + b"Content-Le"),
    "drip_head": byte_by_byte(OK + b"X: " + b"a" * 4000, 0.02),
    "drip_body": byte_by_byte(OK + b"Content-Length: 4000\r\n\r\n" + b"a" * 4000, 0.02),
    # unsolicited bytes
    "poison_idle": script_then_unsolicited(GOOD, 0.05, UNSOLICITED),
    "poison_at_once": script_of(GOOD + UNSOLICITED),
    "body_of_204": script_of(b"HTTP/1.1 204 No Content\r\nContent-Length: 55\r\n\r\n" + UNSOLICITED),
    "body_of_304": script_of(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 44\r\n\r\n" + UNSOLICITED),
    "unsolicited_101": script_of(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n" + UNSOLICITED
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


# Long-lived servers.


def closes_soon(connection: socket.socket) -> bool:
    """Responds and closes a moment later without `Connection: close`: the next request may cross the FIN."""
    connection.sendall(GOOD)
    time.sleep(random.uniform(0.0, 0.004))
    return False


def delayed(seconds: float) -> Script:
    def script(connection: socket.socket) -> bool:
        time.sleep(seconds)
        connection.sendall(GOOD)
        return True

    return script


def slow_body(connection: socket.socket) -> bool:
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(10):
        connection.sendall(b"4\r\ngood\r\n")
        time.sleep(0.001)
    connection.sendall(b"0\r\n\r\n")
    return True


# Responses to cancel: before the head, and in the middle of the body.
CHURN: dict[str, Script] = {"held": delayed(0.005), "slow_body": slow_body}

CHUNK = b"10000\r\n" + b"x" * 65536 + b"\r\n"
ENDLESS: dict[str, Script] = {
    "plain": endless(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (1 << 40), b"x" * 65536),
    "chunked": endless(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", CHUNK),
}


def events(per_s: int, size: int, count: int | None = None) -> Script:
    """Server-sent events of `size` bytes of data at `per_s`; endless without `count`."""

    def script(connection: socket.socket) -> bool:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head)
        event = b"data: %b\n\n" % (b"x" * size)
        chunk, start = b"%x\r\n%b\r\n" % (len(event), event), time.monotonic()
        for number in itertools.count() if count is None else range(count):
            connection.sendall(chunk)
            time.sleep(max(0.0, start + number / per_s - time.monotonic()))
        connection.sendall(b"0\r\n\r\n")
        return True

    return script


class HostileServer(PathServer):
    """Serves `SCRIPTS`, or the scripts given and `good`."""

    def __init__(self, scripts: dict[str, Script] | None = None, *, backlog: int = 512) -> None:
        super().__init__(
            SCRIPTS if scripts is None else {"good": SCRIPTS["good"], **scripts}, backlog=backlog
        )


class GeneratedScriptServer(PathServer):
    """Serves `make(path)` for every path that is not in `SCRIPTS`."""

    class _Scripts(dict[str, Script]):
        def __init__(self, make: Callable[[str], Script]) -> None:
            super().__init__(SCRIPTS)
            self.make = make

        def __missing__(self, name: str) -> Script:
            return self.make(name)

    def __init__(self, make: Callable[[str], Script]) -> None:
        super().__init__(self._Scripts(make), backlog=4096)


class PathEchoServer(GeneratedScriptServer):
    """Sends N in response to `/N`, so that a client notices a response to another request."""

    def __init__(self) -> None:
        super().__init__(path_script)


def path_script(name: str) -> Script:
    return script_of(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(name), name.encode()))


def cases(names: Iterable[str]) -> list[str]:
    """Returns `names`; a misspelt one raises `KeyError`."""
    return [name for name in names if SCRIPTS[name]]
