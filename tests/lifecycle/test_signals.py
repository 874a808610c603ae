"""Signals around start and end, systemd's notifications, and the duties of the first process of a container."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process import HERE, MAX_WAIT, alive, connect, eventually, request, running

SLOW_START = """
    import time
    from tests.lifecycle.apps import asgi
    time.sleep(1.0)
    app = asgi
"""
ROOT = HERE.parent.parent


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    (tmp_path / "slow.py").write_text(textwrap.dedent(SLOW_START))
    return tmp_path


def _start(*options: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "towline", "serve", *options]
    return subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )


def _serves(port: int) -> bool:
    try:
        return request(port, "/pid").status == 200
    except OSError:
        return False


def _has_socket(process: subprocess.Popen[str]) -> bool:
    """Whether the server has opened its socket, listening or not."""
    with contextlib.suppress(OSError):
        descriptors = Path(f"/proc/{process.pid}/fd").iterdir()
        return any(os.readlink(descriptor).startswith("socket:") for descriptor in descriptors)
    return False


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_signal_as_soon_as_the_port_is_taken(number: signal.Signals, slow: Path) -> None:
    """The handlers are there before the socket: HUP does not end the server, TERM and Ctrl-C stop it quietly."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = _start("slow:app", "--app-dir", str(slow), "--port", str(port))
    try:
        eventually(lambda: _has_socket(process), "the socket")
        process.send_signal(number)
        if number is signal.SIGHUP:
            eventually(lambda: _serves(port), "responses")
            process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=MAX_WAIT)
        assert process.returncode == 0, log
        assert "Traceback" not in log
        # A response may be here before its application has returned.
        none = "(no requests were in flight|1 request was in flight, none was cancelled)"
        assert re.search(rf"stopped in \d+\.\d s; {none}$", log.rstrip())
    finally:
        process.kill()


WAITING_START = """
    import os, time
    from tests.lifecycle.apps import asgi
    while not os.path.exists(__file__ + ".go"):
        time.sleep(0.01)
    app = asgi
"""


def test_a_worker_that_is_ready_when_the_stop_begins_is_not_replaced(tmp_path: Path) -> None:
    """
    SIGTERM and the report of a worker that is older than a reload, which the supervisor finds together.

    Where the report is read first, the replacement begins and ends with the stop; a worker that is started after it
    would keep the server until its timeout.
    """
    (tmp_path / "waiting.py").write_text(textwrap.dedent(WAITING_START))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = _start("waiting:app", "--app-dir", str(tmp_path), "--port", str(port))
    try:
        eventually(lambda: _has_socket(process), "the socket")
        process.send_signal(signal.SIGHUP)
        assert process.stderr is not None
        assert "reloading" in process.stderr.readline()
        process.send_signal(signal.SIGSTOP)
        (tmp_path / "waiting.py.go").touch()
        eventually(lambda: _serves(port), "responses")
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        _, log = process.communicate(timeout=MAX_WAIT)
        assert process.returncode == 0, log
    finally:
        process.kill()


def test_ctrl_c_at_any_time_of_the_start_prints_no_traceback(slow: Path) -> None:
    """After the interpreter has started."""
    script = (
        "import sys, os, signal, threading, time\n"
        "import towline.cli\n"
        "delay = float(sys.argv.pop(1))\n"
        "threading.Thread(target=lambda: (time.sleep(delay), os.kill(os.getpid(), signal.SIGINT))).start()\n"
        "sys.exit(towline.cli.main(sys.argv[1:]))\n"
    )
    for delay in (0.01, 0.03, 0.06, 0.1, 0.15, 0.25, 0.5):
        command = [sys.executable, "-c", script, str(delay), "serve", "slow:app", "--port", "0"]
        done = subprocess.run(
            [*command, "--app-dir", str(slow)], cwd=ROOT, capture_output=True, text=True, timeout=MAX_WAIT
        )
        assert done.returncode in (0, -signal.SIGINT), done.stderr
        assert "Traceback" not in done.stderr


def test_the_last_line_counts_what_was_in_flight() -> None:
    with running("apps:asgi") as program, connect(program.port) as one, connect(program.port) as other:
        assert one.get("/pid").status == 200
        for conn in (one, other):
            conn.send("/sleep/0.6")
        time.sleep(0.2)
        program.signal(signal.SIGINT)
        assert one.response().body == other.response().body == b"slept"
        assert program.wait() == 0
    last = program.lines[-1] if "shut down" not in program.lines[-1] else program.lines[-2]
    found = re.search(
        r"stopped in (\d+\.\d) s; 2 requests were in flight, none was cancelled$", last.rstrip()
    )
    assert found, program.log
    assert 0.2 <= float(found[1]) < 5


SLOW_LIFESPAN = """
    import asyncio
    from tests.lifecycle.apps import asgi
    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            await asyncio.sleep(1.0)
        await asgi(scope, receive, send)
"""
SLOW_WSGI = """
    import time
    from tests.lifecycle.apps import wsgi as app
    time.sleep(1.0)
"""


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("source", [SLOW_START, SLOW_LIFESPAN, SLOW_WSGI], ids=["import", "lifespan", "wsgi"])
def test_connections_are_refused_until_a_worker_is_ready(source: str, workers: str, tmp_path: Path) -> None:
    """A connection to the port succeeds only when a worker can respond."""
    (tmp_path / "slow.py").write_text(textwrap.dedent(source))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = _start("slow:app", "--app-dir", str(tmp_path), "--port", str(port), "--workers", workers)
    try:
        eventually(lambda: _has_socket(process), "the socket")
        refused = 0
        while True:
            try:
                conn = socket.create_connection(("127.0.0.1", port), 1.0)
                break
            except ConnectionRefusedError:
                refused += 1
                time.sleep(0.02)
        with conn:
            started = time.monotonic()
            conn.settimeout(MAX_WAIT)
            conn.sendall(b"GET /pid HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n")
            assert conn.recv(64).startswith(b"HTTP/1.1 200")
            assert time.monotonic() - started < 0.5
        assert refused >= 10
    finally:
        process.terminate()
        process.communicate(timeout=MAX_WAIT)


def test_two_servers_that_start_at_once_do_not_share_a_port(slow: Path) -> None:
    """Both may bind before either listens; the second one fails when it listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    processes = [_start("slow:app", "--app-dir", str(slow), "--port", str(port)) for _ in range(2)]
    try:
        eventually(lambda: any(process.poll() is not None for process in processes), "the end of one")
        (refused,) = [process for process in processes if process.poll() is not None]
        assert refused.returncode == 3
        assert os.strerror(errno.EADDRINUSE) in refused.communicate(timeout=MAX_WAIT)[1]
        eventually(lambda: _serves(port), "the other one")
    finally:
        for process in processes:
            process.kill()
            process.communicate(timeout=MAX_WAIT)


class NotifySocket:
    """A stand-in for systemd's socket."""

    def __init__(self, address: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind("\0" + address[1:] if address[0] == "@" else address)
        self.sock.settimeout(0.1)
        self.messages: list[dict[str, str]] = []

    def received(self, name: str, count: int = 1) -> bool:
        try:
            while True:
                text = self.sock.recv(4096).decode()
                self.messages.append(dict(line.split("=", 1) for line in text.split("\n")))
        except TimeoutError:
            pass
        return sum(name in message for message in self.messages) >= count

    def close(self) -> None:
        self.sock.close()


@pytest.fixture(params=["path", "abstract"])
def systemd(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[NotifySocket]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@towline-test-{os.getpid()}"
    stub = NotifySocket(address)
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    yield stub
    stub.close()


def test_systemd_is_notified(systemd: NotifySocket) -> None:
    with running("apps:asgi", "--workers", "2") as program:
        eventually(lambda: systemd.received("READY"), "READY=1")
        assert systemd.messages == [{"READY": "1", "STATUS": f"2 workers on http://127.0.0.1:{program.port}"}]
        before = time.monotonic_ns() // 1000
        program.signal(signal.SIGHUP)
        eventually(lambda: systemd.received("READY", 2), "the second READY=1")
        reloading, ready = systemd.messages[1:]
        assert reloading["RELOADING"] == "1"
        assert before <= int(reloading["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
        assert ready["READY"] == "1"
        program.signal(signal.SIGTERM)
        assert program.wait() == 0
        assert systemd.received("STOPPING")
        assert [message for message in systemd.messages if "WATCHDOG" in message] == []


def test_a_failed_reload_is_notified_as_complete(systemd: NotifySocket, tmp_path: Path) -> None:
    app = tmp_path / "changing.py"
    app.write_text("from tests.lifecycle.apps import asgi as app\n")
    with running("changing:app", "--app-dir", str(tmp_path), cwd=ROOT) as program:
        app.write_text("raise RuntimeError('not today')\n")
        os.utime(app, (1, 1))  # the check of a cached module compares whole seconds
        program.signal(signal.SIGHUP)
        eventually(lambda: systemd.received("READY", 2), "the second READY=1")
        assert "not today" in program.log


def test_the_watchdog_is_notified_while_the_supervisor_runs(
    systemd: NotifySocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "400000")
    with running("apps:asgi") as program:
        started = time.monotonic()
        eventually(lambda: systemd.received("WATCHDOG", 6), "six notifications")
        assert time.monotonic() - started > 0.5  # not more often than needed
        program.signal(signal.SIGSTOP)
        time.sleep(0.3)
        systemd.received("WATCHDOG")
        seen = len(systemd.messages)
        time.sleep(0.6)
        systemd.received("WATCHDOG")
        assert len(systemd.messages) == seen
        program.signal(signal.SIGCONT)


def test_the_watchdog_of_another_process_is_ignored(
    systemd: NotifySocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    with running("apps:asgi"):
        eventually(lambda: systemd.received("READY"), "READY=1")
        time.sleep(0.3)
        assert not systemd.received("WATCHDOG")


def test_the_application_does_not_inherit_the_notify_socket(systemd: NotifySocket, tmp_path: Path) -> None:
    (tmp_path / "env.py").write_text(
        textwrap.dedent("""
            import os
            def app(environ, start_response):
                body = os.environ.get("NOTIFY_SOCKET", "none").encode()
                start_response("200 OK", [("content-length", str(len(body)))])
                return [body]
        """)
    )
    with running("env:app", cwd=tmp_path) as program:
        assert request(program.port, "/").body == b"none"


UNSHARE = [shutil.which("unshare") or "", "--pid", "--fork", "--mount-proc", "--kill-child"]
ORPHANS = """
    import os, subprocess
    # The shell ends at once, so the first process inherits the sleeps.
    async def app(scope, receive, send):
        if scope["type"] != "http":
            raise NotImplementedError
        if scope["path"] == "/orphan":
            subprocess.run(["/bin/sh", "-c", "sleep 0.1 & sleep 0.1 &"], check=True)
        states = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
            except OSError:
                continue
            states.append(fields[0])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"3")]})
        await send({"type": "http.response.body", "body": b"%3d" % states.count("Z")})
"""


def _can_unshare() -> bool:
    try:
        return subprocess.run([*UNSHARE, "true"], capture_output=True, timeout=10).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not _can_unshare(), reason="needs the right to make a PID namespace")
def test_the_first_process_reaps_orphans(tmp_path: Path) -> None:
    (tmp_path / "orphans.py").write_text(textwrap.dedent(ORPHANS))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [*UNSHARE, sys.executable, "-m", "towline", "serve", "orphans:app", "--port", str(port)]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        eventually(lambda: _serves(port), "responses")
        for _ in range(5):
            assert request(port, "/orphan").status == 200
        time.sleep(0.3)
        eventually(lambda: int(request(port, "/").body) == 0, "the end of all zombies", 5)
    finally:
        process.kill()
        process.communicate(timeout=MAX_WAIT)


def test_localhost_listens_on_both_address_families() -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("no IPv6")
    with running("apps:asgi", "--host", "localhost") as program:
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, program.port), MAX_WAIT) as sock:
                sock.sendall(b"GET /pid HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n")
                assert sock.recv(64).startswith(b"HTTP/1.1 200")


def test_reload_means_one_worker_regardless_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.towline.serve]\nworkers = 2\n")
    (tmp_path / "main.py").write_text("from tests.lifecycle.apps import asgi as app\n")
    config = str(tmp_path / "pyproject.toml")
    options = ["--config", config, "--app-dir", str(tmp_path), "--reload", "--reload-dir", str(tmp_path)]
    with running("main:app", *options, cwd=ROOT) as program:
        assert "one worker instead of 2, because of --reload" in program.log
        assert "1 worker," in program.log
        workers = [pid for pid in program.children() if alive(pid)]
        assert len(workers) == 2  # the worker and the watcher of files
