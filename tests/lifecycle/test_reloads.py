"""Reloads and recycling under load from clients that keep their connections and never send a request twice.

A client that reuses a connection at the moment in which the server closes it loses the request, and may not send a
POST again. So a draining worker responds to one more request on each connection, with `Connection: close`.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from towline import Client

from tests.support.process import MAX_WAIT, Conn, Program, connect, eventually, running
from tests.support.websocket_server import request as handshake_request

APPS = [
    pytest.param(["apps:asgi"], id="asgi"),
    pytest.param(["apps:wsgi"], id="wsgi"),
    pytest.param(["apps:wsgi", "--threads", "4"], id="wsgi-threads"),
]


class Posting:
    """Clients that POST on keep-alive connections. A request without a response is counted as lost."""

    def __init__(self, port: int, clients: int, think_time: float) -> None:
        self.port, self.clients, self.think_time = port, clients, think_time
        self.responses = 0
        self.lost: list[str] = []
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(clients)]

    def __enter__(self) -> Posting:
        for thread in self._threads:
            thread.start()
        eventually(lambda: self.responses > self.clients, f"first responses {self.lost[:3]}")
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(MAX_WAIT)

    def _run(self) -> None:
        conn: Conn | None = None
        while not self._stopped.is_set() and len(self.lost) < 20:
            if conn is None:
                conn = Conn(socket.create_connection(("127.0.0.1", self.port), MAX_WAIT))
            try:
                conn.sock.sendall(b"POST /pid HTTP/1.1\r\nhost: test\r\ncontent-length: 4\r\n\r\nbody")
                response = conn.response()
                assert response.status == 200, response
                self.responses += 1
            except (OSError, AssertionError) as error:
                self.lost.append(repr(error))
            if self.lost or response.closes:
                conn.sock.close()
                conn = None
            if self.think_time:
                time.sleep(random.uniform(0.5, 1.5) * self.think_time)
        if conn is not None:
            conn.sock.close()


@pytest.mark.parametrize("app", APPS)
@pytest.mark.parametrize(("clients", "think_time"), [(16, 0.0), (16, 0.05), (200, 0.5)])
def test_reloads_lose_no_request(app: list[str], clients: int, think_time: float) -> None:
    with running(*app, "--workers", "2") as program, Posting(program.port, clients, think_time) as posting:
        for _ in range(2):
            before = set(program.children())
            program.signal(signal.SIGHUP)
            eventually(lambda: not before & set(program.children()), "the old workers' end")  # noqa: B023
            seen = posting.responses
            eventually(lambda: posting.responses > seen + clients, "responses of the new workers")  # noqa: B023
    assert not posting.lost


@pytest.mark.parametrize("app", APPS)
def test_recycling_by_requests_loses_no_request(app: list[str]) -> None:
    with (
        running(*app, "--workers", "2", "--max-requests", "500") as program,
        Posting(program.port, 16, 0.002) as posting,
    ):
        eventually(lambda: program.log.count("its number of requests") >= 4, "four replacements")
        before = set(program.children())
        eventually(lambda: not before & set(program.children()), "the end of the old workers")
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


NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
NGINX_CONF = """
daemon off; pid {dir}/pid; error_log {dir}/error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off; client_body_temp_path {dir}/b; proxy_temp_path {dir}/p; fastcgi_temp_path {dir}/f;
    uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;
    upstream app {{ server 127.0.0.1:{app}; keepalive 64; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection "";
            proxy_next_upstream off;
        }}
    }}
}}
"""


@contextlib.contextmanager
def nginx(program: Program, directory: Path) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    conf = directory / "nginx.conf"
    conf.write_text(NGINX_CONF.format(dir=directory, app=program.port, port=port))
    assert NGINX
    process = subprocess.Popen([NGINX, "-e", str(directory / "error.log"), "-c", str(conf)])
    try:
        eventually(lambda: _accepts(port), "nginx")
        yield port
    finally:
        process.terminate()
        process.wait(MAX_WAIT)


def _accepts(port: int) -> Any:
    with contextlib.suppress(OSError), connect(port, 1.0):
        return True


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
@pytest.mark.parametrize("think_time", [0.0, 0.05, 0.5])
def test_reloads_behind_nginx_lose_no_request(think_time: float, tmp_path: Path) -> None:
    with (
        running("apps:asgi", "--workers", "2") as program,
        nginx(program, tmp_path) as port,
        Posting(port, 32, think_time) as posting,
    ):
        for _ in range(2):
            before = set(program.children())
            program.signal(signal.SIGHUP)
            eventually(lambda: not before & set(program.children()), "the old workers' end")  # noqa: B023
            time.sleep(0.5)
    assert not posting.lost
