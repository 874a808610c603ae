"""Complete answers leave together at the end of a turn, and that never holds an answer back for good."""

from __future__ import annotations

import socket
import time
from typing import Any

from towline.testing import serve

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
BLOCKS_SECONDS = 0.4


def test_an_answer_without_company_does_not_wait() -> None:
    ended: list[float] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"answered"})
        time.sleep(BLOCKS_SECONDS)
        ended.append(time.monotonic())

    arrived: list[float] = []
    with (
        serve(app, lifespan="off") as server,
        socket.create_connection((server.host, server.port), 5) as conn,
    ):
        for _ in range(3):
            conn.sendall(GET)
            answer = b""
            while not answer.endswith(b"answered"):
                piece = conn.recv(65536)
                assert piece, answer
                answer += piece
            arrived.append(time.monotonic())
    assert len(ended) == 3
    assert all(came < end for came, end in zip(arrived, ended, strict=True))


def test_a_part_of_an_answer_does_not_wait() -> None:
    ended: list[float] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a part", "more_body": True})
        time.sleep(BLOCKS_SECONDS)
        ended.append(time.monotonic())
        await send({"type": "http.response.body", "body": b""})

    with (
        serve(app, lifespan="off") as server,
        socket.create_connection((server.host, server.port), 5) as conn,
    ):
        conn.sendall(GET)
        answer = b""
        while b"a part" not in answer:
            piece = conn.recv(65536)
            assert piece, answer
            answer += piece
        arrived = time.monotonic()
        while b"0\r\n\r\n" not in answer:
            piece = conn.recv(65536)
            assert piece, answer
            answer += piece
    assert arrived < ended[0]
