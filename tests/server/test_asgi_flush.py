"""Complete answers leave together at the end of a turn, and that never holds an answer back for good."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import trustme
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


@pytest.mark.parametrize("path", ["/ends", "/suspends"])
def test_small_parts_of_one_step_are_sent_together(path: str, tmp_path: Path) -> None:
    """The parts are in a few TLS records; each send has its own. Without TLS the kernel merges sends, unseen."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1000):
            await send({"type": "http.response.body", "body": b"p" * 64, "more_body": True})
        if scope["path"] == "/suspends":
            await receive()  # the end of the request's body
            await receive()  # the client disconnects
        await send({"type": "http.response.body", "body": b""})

    authority, certificate = trustme.CA(), tmp_path / "server.pem"
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(certificate)
    end = b"0\r\n\r\n" if path == "/ends" else b"p\r\n"
    with (
        serve(app, lifespan="off", ssl_certfile=str(certificate)) as server,
        socket.create_connection((server.host, server.port), MAX_WAIT_SECONDS) as conn,
    ):
        tls, incoming, outgoing = tls_client(authority)
        shake_hands(conn, tls, incoming, outgoing)
        tls.write(GET.replace(b"/", path.encode(), 1))
        conn.sendall(outgoing.read())
        response, encrypted = b"", b""
        while response.count(b"p" * 64) < 1000 or not response.endswith(end):
            piece = conn.recv(65536)
            assert piece, response
            encrypted += piece
            incoming.write(piece)
            with contextlib.suppress(ssl.SSLWantReadError):
                while True:
                    response += tls.read(65536)
        assert application_records(encrypted) < 100


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


def tls_client(authority: trustme.CA) -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    return context.wrap_bio(incoming, outgoing, server_hostname="localhost"), incoming, outgoing


def shake_hands(
    conn: socket.socket, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
) -> None:
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            conn.sendall(outgoing.read())
            incoming.write(conn.recv(65536))
        else:
            conn.sendall(outgoing.read())
            return


def application_records(encrypted: bytes) -> int:
    """Number of records of type application_data (RFC 8446 5.1)."""
    count = at = 0
    while at < len(encrypted):
        count += encrypted[at] == 23
        at += 5 + int.from_bytes(encrypted[at + 3 : at + 5], "big")
    return count
