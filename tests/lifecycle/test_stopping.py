"""End of a server: requests in flight finish, the deadline holds, nothing is left."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import Load, Program, alive, connect, eventually, request, running

APPS = [pytest.param("apps:asgi", id="asgi"), pytest.param("apps:wsgi", id="wsgi")]


def in_background(function: Any, *arguments: Any) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(function(*arguments))
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, results


def threads_for(app: str) -> list[str]:
    return ["--threads", "8"] if app.endswith("wsgi") else []


@pytest.mark.parametrize("app", APPS)
def test_sigterm_finishes_requests_in_flight(app: str) -> None:
    with running(app, "--workers", "2", "--metrics", *threads_for(app)) as program:
        slow = [in_background(request, program.port, "/sleep/3") for _ in range(3)]
        streams = [in_background(request, program.port, "/stream/8/0.4") for _ in range(3)]

        def in_flight() -> int:
            page = request(program.port, "/metrics").body.decode()
            return int(re.findall(r"^towline_requests_in_flight (\d+)", page, re.MULTILINE)[0])

        eventually(lambda: in_flight() == 6, "six requests")
        port = program.port
        program.signal(signal.SIGTERM)
        eventually(lambda: "stopping" in program.log, "the log")
        new_connections = is_refused_or_served(port)
        assert program.wait() == 0
        for thread, results in slow + streams:
            thread.join(20)
            (response,) = results
            assert getattr(response, "status", response) == 200
            assert response.body in (b"slept", b"chunk" * 8)
        assert new_connections
        assert "cancelling" not in program.log
        with pytest.raises(ConnectionRefusedError):
            request(port, "/pid")


def is_refused_or_served(port: int) -> bool:
    """A connection accepted while draining gets a response or is closed within seconds."""
    for _ in range(3):
        try:
            with connect(port, 3.0) as conn:
                conn.get("/pid")
        except TimeoutError:
            return False
        except OSError:
            pass
    return True


@pytest.mark.parametrize("app", APPS)
@pytest.mark.parametrize("workers", ["1", "2"])
def test_sigterm_under_load_loses_nothing(app: str, workers: str) -> None:
    with running(app, "--workers", workers) as program:
        load = Load(program.port, "/stream/3/0.01", keep_alive=False)
        with load:
            load.more(20)
            program.signal(signal.SIGTERM)
            assert program.wait() == 0
        # From the moment it stops listening, connections are refused or reset in the backlog; but no
        # response was truncated once it had started.
        cut = [failure for failure in load.failures if "before the response was whole" in failure]
        assert not cut
        assert all(body == b"chunk" * 3 for body in load.responses)


def test_keep_alive_connections_are_notified_or_closed() -> None:
    with running("apps:asgi") as program:
        with connect(program.port) as idle, connect(program.port) as busy:
            assert idle.get("/pid").status == 200
            assert busy.get("/pid").closes is False
            busy.send("/sleep/2")
            program.signal(signal.SIGTERM)
            assert idle.sock.recv(1) == b""
            last = busy.response()
            assert (last.body, last.closes) == (b"slept", True)
        assert program.wait() == 0
        assert "shut down" in program.log


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_drain_ends_at_its_deadline_with_an_endless_stream(workers: str) -> None:
    with running("apps:asgi", "--workers", workers, "--timeout-graceful-shutdown", "1") as program:
        with connect(program.port) as conn:
            conn.send("/endless")
            assert "200" in conn.head()
            started = time.monotonic()
            program.signal(signal.SIGTERM)
            assert program.wait() == 0
            elapsed = time.monotonic() - started
        assert elapsed >= 0.9
        print(f"deadline 1 s, ended after {elapsed:.2f} s")
        assert "cancelling 1 request" in program.log
        assert "shut down" in program.log


def test_a_request_that_hangs_in_python_is_killed_after_the_deadline() -> None:
    # The worker's loop is stuck: only the supervisor's SIGKILL ends it.
    with running("apps:asgi", "--timeout-graceful-shutdown", "0") as program:
        with connect(program.port) as conn:
            conn.send("/block")
            time.sleep(0.3)
            workers = program.children()
            program.signal(signal.SIGTERM)
            assert program.wait(15) == 0
        assert not any(map(alive, workers))


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_is_quick(first: signal.Signals, second: signal.Signals) -> None:
    with running("apps:asgi", "--workers", "2") as program:
        with connect(program.port) as conn:
            conn.send("/endless")
            conn.head()
            program.signal(first)
            eventually(lambda: "stopping" in program.log, "the log")
            program.signal(second)
            assert program.wait(10) == 0


EVENTS = """
import asyncio, threading
from sse_starlette import EventSourceResponse
from towline import Server, ServerConfig

async def events():
    while True:
        yield {"data": "x"}
        await asyncio.sleep(0.05)

async def app(scope, receive, send):
    if scope["type"] == "http":
        await EventSourceResponse(events())(scope, receive, send)

if __name__ == "__main__":
    server = Server(ServerConfig(app, port=0, lifespan="off", timeout_graceful_shutdown=60))
    threading.Thread(target=lambda: server.started.wait() and print(server.addresses[0], flush=True)).start()
    server.run()
"""


def read_events(port: int) -> socket.socket:
    conn = socket.create_connection(("127.0.0.1", port), 20)
    conn.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    data = b""
    while b"data: x" not in data:
        data += conn.recv(65536)
    return conn


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_streams_of_sse_starlette_end_at_the_stop(number: signal.Signals, tmp_path: Path) -> None:
    """sse-starlette looks for the server behind the handler of SIGTERM, as uvicorn's is."""
    pytest.importorskip("sse_starlette")
    (tmp_path / "events.py").write_text(EVENTS)
    options = ["--app-dir", str(tmp_path), "--timeout-graceful-shutdown", "60", "--lifespan", "off"]
    with running("events:app", "--workers", "2", *options) as program, read_events(program.port):
        program.signal(number)
        assert program.wait(20) == 0
        assert "cancelling" not in program.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_streams_of_sse_starlette_end_with_a_server_in_this_process(
    number: signal.Signals, tmp_path: Path
) -> None:
    pytest.importorskip("sse_starlette")
    (tmp_path / "events.py").write_text(EVENTS)
    command = [sys.executable, "events.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().rpartition(":")[2])
        with read_events(port):
            process.send_signal(number)
            assert process.wait(20) == 0


def test_sigquit_is_quick() -> None:
    with running("apps:wsgi", "--threads", "2") as program:
        with connect(program.port) as conn:
            conn.send("/sleep/60")
            time.sleep(0.2)
            program.signal(signal.SIGQUIT)
            assert program.wait(10) == 0


@pytest.mark.parametrize("app", APPS)
def test_when_the_supervisor_is_killed_workers_end_and_the_port_is_free(app: str) -> None:
    program = Program(app, "--workers", "2", *threads_for(app))
    port, workers = program.port, program.children()
    assert len(workers) == 2
    with connect(port) as conn:
        assert conn.get("/pid").status == 200
        conn.send("/sleep/0.5")
        program.signal(signal.SIGKILL)
        program.process.wait()
        elapsed = eventually(lambda: not any(map(alive, workers)), "the workers' end")
        print(f"workers gone {elapsed:.2f} s after the supervisor")
        assert conn.response().body == b"slept"
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_a_unix_socket_is_removed(tmp_path: Any) -> None:
    path = tmp_path / "app.sock"
    with running("apps:asgi", "--bind", f"unix:{path}", "--bind", "127.0.0.1:0") as program:
        assert path.is_socket()
        program.signal(signal.SIGTERM)
        assert program.wait() == 0
        assert not path.exists()


def test_the_pid_file_is_written_and_removed(tmp_path: Any) -> None:
    path = tmp_path / "app.pid"
    with running("apps:asgi", "--pid-file", str(path)) as program:
        assert int(path.read_text()) == program.pid
        program.signal(signal.SIGTERM)
        assert program.wait() == 0
        assert not path.exists()
