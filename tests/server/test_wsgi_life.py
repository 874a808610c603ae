"""Starting, serving many at once, draining and stopping."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from tests.support.sockets import read_all
from tests.support.waiting import until
from tests.support.wsgi_server import MODES, plain, serving

TEXT = [("Content-Type", "text/plain")]
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
LAST = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


@pytest.fixture(params=MODES.values(), ids=MODES.keys())
def threads(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


def exchange(conn: socket.socket, wire: bytes = GET, end: bytes = b"ok") -> bytes:
    conn.sendall(wire)
    response = b""
    while not response.endswith(end):
        chunk = conn.recv(65536)
        assert chunk, response
        response += chunk
    return response


def test_many_connections_many_requests(threads: int) -> None:
    with serving(plain(), threads=threads) as served:
        conns = [served.connect() for _ in range(100)]
        for _ in range(5):
            for conn in conns:
                exchange(conn)
        until(lambda: served.server.connections == 100, timeout=5)
        assert served.server.requests == 500
        assert served.server.in_flight == 0
        assert served.server.addresses == [f"127.0.0.1:{served.port}"]
        for conn in conns:
            conn.close()
        until(lambda: served.server.connections == 0, timeout=5)


def test_responses_do_not_wait_for_a_streamed_one(threads: int) -> None:
    """Responses are flushed together, but before the application may wait."""
    going_on = threading.Event()
    conns: list[socket.socket] = []

    def app(environ: Any, start_response: Any) -> Any:
        path = environ["PATH_INFO"]
        if path == "/both":
            # The next poll reports both.
            for conn, target in zip(conns, (b"/quick", b"/streamed"), strict=True):
                conn.sendall(LAST.replace(b"/", target, 1))
        start_response("200 OK", TEXT)
        return stream() if path == "/streamed" else [b"ok"]

    def stream() -> Any:
        yield b"begun"
        assert going_on.wait(10)
        yield b"ended"

    with serving(app, threads=threads) as served:
        first = served.connect()
        conns += [served.connect() for _ in range(2)]
        exchange(first, GET.replace(b"/", b"/both", 1))
        quick, streamed = conns
        quick.settimeout(5)
        assert read_all(quick).endswith(b"ok")
        going_on.set()
        assert b"ended" in read_all(streamed)


def test_a_response_is_complete_before_close_is_called(threads: int) -> None:
    """Work after the response, as Flask's `call_on_close` does it, delays nobody where no other request waits."""
    received = threading.Event()
    was_received: list[bool] = []

    class Body:
        def __iter__(self) -> Any:
            yield b"ok"

        def close(self) -> None:
            was_received.append(received.wait(5))

    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [*TEXT, ("Content-Length", "2")])
        return Body()

    with serving(app, threads=threads) as served:
        exchange(served.connect())
        received.set()
        until(lambda: was_received == [True], timeout=6)


def test_threads_run_at_the_same_time() -> None:
    barrier = threading.Barrier(3, timeout=5)
    names: set[str] = set()

    def app(environ: Any, start_response: Any) -> Any:
        names.add(threading.current_thread().name)
        barrier.wait()
        start_response("200 OK", TEXT)
        return [b"ok"]

    with serving(app, threads=3) as served:
        conns = [served.connect() for _ in range(3)]
        for conn in conns:
            conn.sendall(LAST)
        assert all(read_all(conn).endswith(b"ok") for conn in conns)
    assert names == {"towline-wsgi-0", "towline-wsgi-1", "towline-wsgi-2"}


def test_slow_readers_of_lists_and_files_pin_no_thread(threads: int, tmp_path: Any) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"f" * 20_000_000)

    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", TEXT)
        if environ["PATH_INFO"] == "/list":
            return [b"x" * 20_000_000]
        if environ["PATH_INFO"] == "/file":
            return environ["wsgi.file_wrapper"](path.open("rb"))
        return [b"ok"]

    with serving(app, threads=threads) as served:
        slow = []
        for n in range(8):
            conn = served.connect()
            conn.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            conn.sendall(LAST.replace(b"/ ", b"/list " if n % 2 else b"/file ", 1))
            conn.recv(10)
            slow.append(conn)
        with served.connect() as conn:
            for _ in range(20):
                exchange(conn)
        assert served.server.in_flight == 0
        assert [len(read_all(conn)) > 20_000_000 for conn in slow] == [True] * 8


def test_slow_readers_of_generators_pin_no_thread(threads: int) -> None:
    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", TEXT)
        if environ["PATH_INFO"] == "/slow":
            return (b"x" * 65536 for _ in range(400))
        return [b"ok"]

    with serving(app, threads=threads) as served, contextlib.ExitStack() as stack:
        slow = [stack.enter_context(served.connect()) for _ in range(5)]
        for conn in slow:
            conn.sendall(LAST.replace(b"/ ", b"/slow ", 1))
        slow[0].recv(10)
        with served.connect() as conn:
            for _ in range(20):
                exchange(conn)
        assert all(len(read_all(conn)) > 400 * 65536 - 100 for conn in slow)


def test_drain_finishes_what_is_in_flight(threads: int) -> None:
    entered, leave = threading.Event(), threading.Event()

    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", TEXT)
        yield b"begun"
        entered.set()
        leave.wait(20)
        yield b"ended"

    with serving(app, threads=threads) as served:
        idle = served.connect()
        busy = served.connect()
        busy.sendall(GET)
        assert entered.wait(20)
        served.server.stop_listening()
        served.server.drain()
        leave.set()
        response = read_all(busy)
        assert response.endswith(b"5\r\nended\r\n0\r\n\r\n")
        assert read_all(idle) == b""
        until(lambda: served.server.connections == 0, timeout=5)
        with pytest.raises(ConnectionRefusedError):
            served.connect()


def test_a_response_that_begins_while_draining_has_connection_close(threads: int) -> None:
    entered, leave = threading.Event(), threading.Event()

    def app(environ: Any, start_response: Any) -> Any:
        entered.set()
        leave.wait(20)
        start_response("200 OK", TEXT)
        return [b"ok"]

    with serving(app, threads=threads) as served, served.connect() as conn:
        conn.sendall(GET)
        assert entered.wait(20)
        served.server.drain()
        time.sleep(0.05)
        leave.set()
        response = read_all(conn)
        assert response.endswith(b"ok")
        if threads > 1:
            # Inline, the thread was in the application: the engine learns of the drain afterwards.
            pass


def test_run_is_for_once() -> None:
    with serving(plain()) as served:
        served.raw(LAST)
        with pytest.raises(RuntimeError):
            served.server.run()


@pytest.mark.parametrize("mode", MODES)
def test_limit_concurrency(mode: str) -> None:
    entered, leave = threading.Semaphore(0), threading.Event()

    def app(environ: Any, start_response: Any) -> Any:
        entered.release()
        leave.wait(20)
        start_response("200 OK", TEXT)
        return [b"ok"]

    if mode == "inline":
        pytest.skip("one call at a time: nothing is ever in flight beside it")
    with serving(app, threads=3, limit_concurrency=2) as served:
        busy = [served.connect() for _ in range(2)]
        for conn in busy:
            conn.sendall(LAST)
            assert entered.acquire(timeout=20)
        refused = served.raw(LAST)
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: " in refused.lower()
        leave.set()
        assert all(read_all(conn).endswith(b"ok") for conn in busy)
        assert served.raw(LAST).endswith(b"ok")


MAIN = """
import signal, socket, sys
from towline import _native
from towline.config import Bind, ServerConfig

def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"ok"]

listener = socket.create_server(("127.0.0.1", 0))
port = listener.getsockname()[1]
server = _native.WsgiServer(
    app, ServerConfig(app=app, threads=int(sys.argv[1])), [Bind(fd=listener.fileno(), address="a")], log=print
)
listener.close()

def drain(number, frame):
    server.stop_listening()
    server.drain()

signal.signal(signal.SIGTERM, drain)
# A shell that runs the tests in the background has SIGINT ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
print(port, flush=True)
try:
    server.run()
    print("returned", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize(("number", "last"), [(signal.SIGTERM, "returned"), (signal.SIGINT, "interrupted")])
def test_signals_on_the_main_thread(threads: int, number: int, last: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", MAIN, str(threads)], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", port), timeout=5) as conn:
            exchange(conn)
            process.send_signal(number)
            assert process.stdout.readline().strip() == last
        assert process.wait(20) == 0
