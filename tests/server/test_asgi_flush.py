"""Complete answers leave together at the end of a turn, and that never holds an answer back for good."""

from __future__ import annotations

import socket
import sys
import threading
import time
from typing import Any

from towline.testing import serve

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
MAX_WAIT_SECONDS = 20.0


def test_an_answer_without_company_does_not_wait() -> None:
    arrived = threading.Semaphore(0)
    in_time: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"answered"})
        # The loop is blocked until the client has it.
        in_time.append(arrived.acquire(timeout=MAX_WAIT_SECONDS))

    with (
        serve(app, lifespan="off") as server,
        socket.create_connection((server.host, server.port), 2 * MAX_WAIT_SECONDS) as conn,
    ):
        for _ in range(3):
            conn.sendall(GET)
            response = b""
            while not response.endswith(b"answered"):
                piece = conn.recv(65536)
                assert piece, response
                response += piece
            arrived.release()
    assert in_time == [True] * 3


def test_a_part_of_an_answer_does_not_wait() -> None:
    arrived = threading.Event()
    in_time: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a part", "more_body": True})
        in_time.append(arrived.wait(MAX_WAIT_SECONDS))
        await send({"type": "http.response.body", "body": b""})

    with (
        serve(app, lifespan="off") as server,
        socket.create_connection((server.host, server.port), 2 * MAX_WAIT_SECONDS) as conn,
    ):
        conn.sendall(GET)
        response = b""
        while b"a part" not in response:
            piece = conn.recv(65536)
            assert piece, response
            response += piece
        arrived.set()
        while b"0\r\n\r\n" not in response:
            piece = conn.recv(65536)
            assert piece, response
            response += piece
    assert in_time == [True]


def test_small_parts_of_one_step_are_sent_together() -> None:
    """A part is sent at once, those that follow it closely are sent when the application suspends or ends."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1000):
            await send({"type": "http.response.body", "body": b"p" * 64, "more_body": True})
        if scope["path"] == "/suspends":
            await receive()  # the body's end
            await receive()  # the client's
        await send({"type": "http.response.body", "body": b""})

    with serve(app, lifespan="off") as server:
        for path, end in (("/ends", b"0\r\n\r\n"), ("/suspends", b"p\r\n")):
            with socket.create_connection((server.host, server.port), MAX_WAIT_SECONDS) as conn:
                conn.sendall(GET.replace(b"/", path.encode(), 1))
                response = b""
                while response.count(b"p" * 64) < 1000 or not response.endswith(end):
                    piece = conn.recv(65536)
                    assert piece, response
                    response += piece
                assert data_segments_received(conn) < 60, "of 1,000 parts"


def test_parts_of_a_step_that_computes_between_them_do_not_wait() -> None:
    """Each part is received before the application makes the next one."""
    received = threading.Semaphore(0)
    in_time: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(5):
            time.sleep(0.002)
            await send({"type": "http.response.body", "body": b"part", "more_body": True})
            in_time.append(received.acquire(timeout=MAX_WAIT_SECONDS))
        await send({"type": "http.response.body", "body": b""})

    with (
        serve(app, lifespan="off") as server,
        socket.create_connection((server.host, server.port), 2 * MAX_WAIT_SECONDS) as conn,
    ):
        conn.sendall(GET)
        response = b""
        while not response.endswith(b"0\r\n\r\n"):
            parts = response.count(b"part")
            piece = conn.recv(65536)
            assert piece, response
            response += piece
            for _ in range(response.count(b"part") - parts):
                received.release()
    assert in_time == [True] * 5


def data_segments_received(conn: socket.socket) -> int:
    """`tcpi_data_segs_in` of struct tcp_info (linux/tcp.h): one for each send, unless the kernel merges them."""
    info = conn.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    return int.from_bytes(info[152:156], sys.byteorder)
