"""A peer that stops in the middle of anything costs no CPU: the engine sleeps until more arrives."""

from __future__ import annotations

import contextlib
import socket
import time

import pytest
from towline.testing import serve

from tests.wire.hostile import Recorder

POST = b"POST / HTTP/1.1\r\nHost: a\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"

# Where a peer may stop. The last byte matters: each leaves the parser in another state.
HALVES = {
    "nothing": b"",
    "empty line": b"\r\n",
    "half an empty line": b"\r",
    "request line": b"GET / HT",
    "request line and CR": b"GET / HTTP/1.1\r",
    "field": b"GET / HTTP/1.1\r\nHost: a\r\nX: ",
    "long field": b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 3000,
    "head but for its last byte": b"GET / HTTP/1.1\r\nHost: a\r\n\r",
    "body": POST + b"Content-Length: 10\r\n\r\nhello",
    "no body": POST + b"Content-Length: 10\r\n\r\n",
    "no body after Expect": POST + b"Expect: 100-continue\r\nContent-Length: 10\r\n\r\n",
    "chunk size": CHUNKED + b"5",
    "chunk extension": CHUNKED + b"5;a=",
    "chunk data": CHUNKED + b"5\r\nhel",
    "chunk end": CHUNKED + b"5\r\nhello\r",
    "trailers not begun": CHUNKED + b"0\r\n",
    "trailer": CHUNKED + b"0\r\nX: y",
    "trailers but for their last byte": CHUNKED + b"0\r\nX: y\r\n\r",
    "kept alive": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "kept alive and half of the next": b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HT",
    "refused, not closed by the client": b"nonsense\r\n\r\n",
    "unread body": b"POST /noread HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhello",
    "unread chunks": b"POST /noread HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
    "unread trailers": b"POST /noread HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX",
}

WATCHED_SECONDS = 1.5
# A single connection that keeps its engine awake takes all of the time it is watched.
ALLOWED_SECONDS = 0.2


@pytest.mark.parametrize("interface", ["asgi", "wsgi"])
@pytest.mark.parametrize("half_closed", [False, True], ids=["open", "half closed"])
def test_half_of_anything_costs_nothing(interface, half_closed):
    recorder = Recorder()
    options = {"threads": len(HALVES) + 2} if interface == "wsgi" else {}
    with serve(getattr(recorder, interface), interface=interface, **options) as server:
        with contextlib.ExitStack() as stack:
            for wire in HALVES.values():
                conn = stack.enter_context(socket.create_connection((server.host, server.port)))
                conn.sendall(wire)
                if half_closed:
                    conn.shutdown(socket.SHUT_WR)
            # Pending work may take a while on a busy machine; then there is nothing more, each time.
            for _ in range(10):
                before = time.process_time()
                time.sleep(WATCHED_SECONDS)
                spent = time.process_time() - before
                if spent < ALLOWED_SECONDS:
                    break
    assert spent < ALLOWED_SECONDS, f"{spent:.2f} s of CPU for peers that do nothing"
