"""Scripts of a long-lived server: early closes, delayed responses, endless streams."""

from __future__ import annotations

import itertools
import random
import socket
import time
from typing import Any

from tests.support.hostile_peer import GOOD, SCRIPTS, Hostile, Script, endless, script_of


def closes_soon(connection: socket.socket) -> bool:
    """Answers, and closes a moment later without saying so: the next request may meet the FIN on its way."""
    connection.sendall(GOOD)
    time.sleep(random.uniform(0.0, 0.004))
    return False


def held(seconds: float) -> Script:
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


# What is cancelled while it waits for a head, and in the middle of a body.
CHURN: dict[str, Script] = {"held": held(0.005), "slow_body": slow_body}

CHUNK = b"10000\r\n" + b"x" * 65536 + b"\r\n"
ENDLESS: dict[str, Script] = {
    "plain": endless(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (1 << 40), b"x" * 65536),
    "chunked": endless(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", CHUNK),
}


def events(per_s: int, size: int, count: int | None = None) -> Script:
    """Server-sent events of that many bytes of data; without `count` they have no end."""

    def script(connection: socket.socket) -> bool:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head)
        event = b"data: %b\n\n" % (b"x" * size)
        chunk, began = b"%x\r\n%b\r\n" % (len(event), event), time.monotonic()
        for number in itertools.count() if count is None else range(count):
            connection.sendall(chunk)
            time.sleep(max(0.0, began + number / per_s - time.monotonic()))
        connection.sendall(b"0\r\n\r\n")
        return True

    return script


class Each(Hostile):
    """One script for every path, which is the request's own name."""

    class _Scripts(dict[str, Any]):
        def __init__(self, make: Any) -> None:
            super().__init__(SCRIPTS)
            self.make = make

        def __missing__(self, name: str) -> Script:
            script: Script = self.make(name)
            return script

    def __init__(self, make: Any) -> None:
        super().__init__(backlog=4096)
        self.scripts = self._Scripts(make)


class Numbered(Each):
    """Answers `/N` with N: whoever gets another's answer sees it."""

    def __init__(self) -> None:
        super().__init__(named)


def named(name: str) -> Script:
    return script_of(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(name), name.encode()))
