"""Complete answers leave together at the end of a turn, and that never holds an answer back for good."""

from __future__ import annotations

import socket
import threading
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
