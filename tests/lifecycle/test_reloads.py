"""Reloads and recycling under load from clients that keep their connections and never send a request twice.

A client that reuses a connection at the moment in which the server closes it loses the request, and may not send a
POST again. So a draining worker responds to one more request on each connection, with `Connection: close`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from towline import Client

from tests.support.posting import Posting
from tests.support.process import MAX_WAIT, Program, connect, eventually, running
from tests.support.proxies import SETUPS
from tests.support.websocket_server import request as handshake_request

APPS = [
    pytest.param(["apps:asgi"], id="asgi"),
    pytest.param(["apps:wsgi"], id="wsgi"),
    pytest.param(["apps:wsgi", "--threads", "4"], id="wsgi-threads"),
]


RELOADS = int(os.environ.get("TOWLINE_RELOADS", "2"))
"""Reloads, recycled workers and restarts of each test of loss. 100 of each take 15 minutes."""
MANY = pytest.mark.timeout(300 + 20 * RELOADS)


def reload(program: Program, posting: Posting) -> None:
    """HUP; returns when the old workers have ended and the new ones respond."""
    before = set(program.children())
    program.signal(signal.SIGHUP)
    eventually(lambda: not before & set(program.children()), "the old workers' end")
    posting.more()


@contextlib.contextmanager
def reached(proxy: str | None, upstream: int, folder: Path) -> Iterator[int]:
    """The port that the clients use: the server's own, or that of a proxy in front of it."""
    if proxy is None:
        yield upstream
        return
    with SETUPS[proxy].running(f"127.0.0.1:{upstream}", folder) as port:
        yield port


ASGI, WSGI, WSGI_THREADS = (app.values[0] for app in APPS)
under_load = pytest.mark.parametrize(
    ("app", "clients", "think_time", "proxy"),
    [
        *itertools.product([ASGI], [16, 200], [0.0, 0.02], [None, "nginx"]),
        *itertools.product([WSGI, WSGI_THREADS], [16], [0.0, 0.02], [None]),
        *itertools.product([WSGI, WSGI_THREADS], [200], [0.02], ["nginx"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)


@MANY
@under_load
def test_reloads_lose_no_request(
    app: list[str], clients: int, think_time: float, proxy: str | None, tmp_path: Path
) -> None:
    with (
        running(*app, "--workers", "2") as program,
        reached(proxy, program.port, tmp_path) as port,
        Posting(port, clients, think_time) as posting,
    ):
        for _ in range(RELOADS):
            reload(program, posting)
    assert not posting.lost


@pytest.mark.parametrize("proxy", [None, "nginx"])
def test_reloads_lose_no_request_of_clients_with_long_pauses(proxy: str | None, tmp_path: Path) -> None:
    """Half a second, so that most connections are idle when the drain begins."""
    with (
        running("apps:asgi", "--workers", "2") as program,
        reached(proxy, program.port, tmp_path) as port,
        Posting(port, 100, 0.5) as posting,
    ):
        reload(program, posting)
        reload(program, posting)
    assert not posting.lost


@MANY
@under_load
def test_recycling_by_requests_loses_no_request(
    app: list[str], clients: int, think_time: float, proxy: str | None, tmp_path: Path
) -> None:
    # Enough requests for each client to have several between two replacements.
    limit = ["--max-requests", str(clients * 20)]
    with (
        running(*app, "--workers", "2", *limit) as program,
        reached(proxy, program.port, tmp_path) as port,
        Posting(port, clients, think_time) as posting,
    ):
        for count in range(1, 2 * RELOADS + 1):
            replaced = f"{count} replaced workers"
            eventually(lambda: program.log.count("its number of requests") >= count, replaced)  # noqa: B023
        before = set(program.children())
        eventually(lambda: not before & set(program.children()), "the end of the old workers")
    assert not posting.lost


@MANY
@under_load
def test_restarts_on_an_inherited_socket_lose_no_request(
    app: list[str], clients: int, think_time: float, proxy: str | None, tmp_path: Path
) -> None:
    """TERM, and a new server on the same socket, as systemd keeps it: connections wait in the kernel's queue."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1024))
        fd = listener.fileno()

        def start() -> Program:
            options = ("--workers", "2", "--bind", f"fd://{fd}")
            return stack.enter_context(running(*app, *options, pass_fds=[fd]))

        program = start()
        port = stack.enter_context(reached(proxy, program.port, tmp_path))
        with Posting(port, clients, think_time) as posting:
            for _ in range(RELOADS):
                program.signal(signal.SIGTERM)
                assert program.wait() == 0
                program = start()
                posting.more()
        assert not posting.lost


@pytest.mark.parametrize("app", APPS)
def test_an_idle_connection_gets_one_more_response_while_draining(app: list[str]) -> None:
    with running(*app, "--timeout-drain-idle", "1") as program:
        with connect(program.port) as idle, connect(program.port) as silent, connect(program.port) as fresh:
            assert idle.get("/pid").closes is silent.get("/pid").closes is False
            started = time.monotonic()
            program.signal(signal.SIGTERM)
            eventually(lambda: _refuses(program.port), "the end of listening")
            time.sleep(0.2)
            for conn in (idle, fresh):
                assert conn.get("/pid").closes
                assert conn.sock.recv(1) == b""
            assert silent.sock.recv(1) == b""
            assert 0.9 < time.monotonic() - started < 4
        assert program.wait() == 0


@pytest.mark.parametrize("app", APPS)
def test_a_response_that_began_before_the_drain_may_be_followed_by_another(app: list[str]) -> None:
    with running(*app) as program, connect(program.port) as conn:
        conn.send("/stream/4/0.2")
        assert "connection: close" not in conn.head()
        program.signal(signal.SIGTERM)
        assert b"".join(conn._chunks()) == b"chunk" * 4
        assert conn.get("/pid").closes
        assert program.wait() == 0


@pytest.mark.parametrize("app", APPS)
def test_a_stop_without_clients_is_quick_and_so_is_ctrl_c_with_some(app: list[str]) -> None:
    for number, clients in ((signal.SIGTERM, 0), (signal.SIGINT, 2)):
        with running(*app, "--timeout-drain-idle", "10") as program, contextlib.ExitStack() as conns:
            for _ in range(clients):
                conns.enter_context(connect(program.port)).get("/pid")
            started = time.monotonic()
            program.signal(number)
            assert program.wait() == 0
            assert time.monotonic() - started < 2


def _refuses(port: int) -> bool:
    try:
        with connect(port, 1.0):
            return False
    except OSError:
        return True


def test_ctrl_c_after_term_closes_idle_connections() -> None:
    with running("apps:asgi", "--timeout-drain-idle", "14") as program, connect(program.port) as conn:
        conn.get("/pid")
        program.signal(signal.SIGTERM)
        eventually(lambda: "stopping" in program.log, "the log")
        started = time.monotonic()
        program.signal(signal.SIGINT)
        assert program.wait() == 0
        assert time.monotonic() - started < 3


@pytest.mark.parametrize("app", APPS)
def test_half_closed_connections_do_not_delay_a_stop(app: list[str]) -> None:
    with running(*app) as program, connect(program.port) as before, connect(program.port) as during:
        before.sock.sendall(b"GET /pid HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n")
        assert before.response().closes
        during.send("/stream/3/0.1")
        assert during.head()
        started = time.monotonic()
        program.signal(signal.SIGTERM)
        assert b"".join(during._chunks()) == b"chunk" * 3
        assert during.get("/pid").closes
        # Neither client closes its socket.
        assert program.wait() == 0
        assert time.monotonic() - started < 2


def test_http2_and_websocket_connections_are_notified() -> None:
    with running("apps:asgi") as program, Client(http2=True, http1=False) as client:
        url = f"http://127.0.0.1:{program.port}/pid"
        assert client.get(url).status_code == 200
        with socket.create_connection(("127.0.0.1", program.port), MAX_WAIT) as websocket:
            websocket.sendall(handshake_request())
            assert b" 101 " in websocket.recv(65536)
            started = time.monotonic()
            program.signal(signal.SIGTERM)
            assert websocket.recv(4) == b"\x88\x02" + (1012).to_bytes(2, "big")
        assert program.wait() == 0
        assert time.monotonic() - started < 3


@pytest.mark.parametrize("app", APPS)
def test_reloads_lose_no_request_over_http2(app: list[str]) -> None:
    with running(*app, "--workers", "2") as program:
        url = f"http://127.0.0.1:{program.port}/pid"
        stopped, count, lost = threading.Event(), [0], []

        def run() -> None:
            with Client(http2=True, http1=False, retries=0) as client:
                while not stopped.is_set():
                    try:
                        assert client.post(url, content=b"body").status_code == 200
                        count[0] += 1
                    except Exception as error:
                        lost.append(repr(error))

        threads = [threading.Thread(target=run, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(2):
            seen, before = count[0], set(program.children())
            eventually(lambda: count[0] > seen + 50, "responses")  # noqa: B023
            program.signal(signal.SIGHUP)
            eventually(lambda: not before & set(program.children()), "the old workers' end")  # noqa: B023
        stopped.set()
        for thread in threads:
            thread.join(MAX_WAIT)
    assert not lost
