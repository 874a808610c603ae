"""Servers without stdin, stdout or stderr, with a terminal that is closed, and at the prompt of a debugger."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import socket
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.process import HERE, MAX_WAIT, alive, eventually, request


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def serves(port: int) -> bool:
    try:
        return request(port, "/pid").status == 200
    except OSError:
        return False


def command(app: str, port: int, *options: str) -> list[str]:
    return [sys.executable, "-m", "towline", "serve", app, "--port", str(port), *options]


def end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    eventually(lambda: os.waitpid(pid, os.WNOHANG)[0], "the end")


@pytest.mark.parametrize("app", ["apps:asgi", "apps:wsgi"])
@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2), (1, 2)])
def test_a_server_without_standard_streams(app: str, closed: Sequence[int], tmp_path: Path) -> None:
    port = free_port()
    output = tmp_path / "output"
    with output.open("w") as file:
        pid = os.fork()
        if pid == 0:
            os.chdir(HERE)
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            for fd in closed:
                os.close(fd)
            os.closerange(3, 100)
            os.execv(sys.executable, command(app, port, "--access-log"))
    eventually(lambda: serves(port), "the server")
    # No standard stream is a socket.
    for fd in closed:
        assert os.readlink(f"/proc/{pid}/fd/{fd}") == os.devnull
    os.kill(pid, signal.SIGTERM)
    found: list[int] = []
    eventually(lambda: found.extend(os.waitpid(pid, os.WNOHANG)) or found[-2], "the end")
    assert os.waitstatus_to_exitcode(found[-1]) == 0
    assert "Traceback" not in output.read_text()


@contextlib.contextmanager
def in_terminal(arguments: Sequence[str], cwd: Path) -> Iterator[tuple[int, int]]:
    """A program with a terminal of its own: its process id, and the other side of the terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execvp(arguments[0], arguments)
    try:
        yield pid, terminal
    finally:
        with contextlib.suppress(OSError):
            os.close(terminal)
        with contextlib.suppress(ChildProcessError):
            end(pid)


@pytest.mark.parametrize("options", [("--reload",), ()], ids=["reload", "plain"])
@pytest.mark.parametrize("nohup", [False, True], ids=["", "nohup"])
def test_a_closed_terminal_ends_a_reloading_server(
    options: tuple[str, ...], nohup: bool, tmp_path: Path
) -> None:
    port = free_port()
    program = [*(["nohup"] if nohup else []), *command("apps:asgi", port, "--app-dir", str(HERE), *options)]
    with in_terminal(program, tmp_path) as (pid, terminal):
        eventually(lambda: serves(port), "the server")
        before = request(port, "/pid").body
        os.kill(pid, signal.SIGHUP)
        eventually(lambda: serves(port) and request(port, "/pid").body != before, "a reload by SIGHUP")
        os.close(terminal)  # its few lines of output are unread
        if options and not nohup:
            eventually(lambda: os.waitpid(pid, os.WNOHANG)[0], "the end")
            assert not serves(port)
        else:
            assert serves(port)
            assert alive(pid)


SHELL = """
    import os, signal, sys, time
    server = os.fork()
    if server == 0:
        os.setpgid(0, 0)  # a background job
        os.execv(sys.executable, sys.argv[2:])
    sys.stdin.readline()
    os.kill(server, signal.SIGHUP)
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
"""


def test_a_shell_that_hangs_up_before_it_closes_the_terminal_ends_a_reloading_server(tmp_path: Path) -> None:
    """zsh does so with its jobs when you leave it."""
    port, gate = free_port(), tmp_path / "gate"
    server = command(
        "apps:asgi", port, "--app-dir", str(HERE), "--reload", "--pid-file", str(tmp_path / "pid")
    )
    shell = [sys.executable, "-c", textwrap.dedent(SHELL), str(gate), *server]
    with in_terminal(shell, tmp_path) as (_, terminal):
        _read_until(terminal, b"on http")
        pid = int((tmp_path / "pid").read_text())
        os.write(terminal, b"exit\n")
        _read_until(terminal, b"reloaded in")
        assert serves(port)
        gate.touch()
        eventually(lambda: not alive(pid), "the end")


BREAKPOINT = """
    import os
    if os.environ.get("AT") == "import":
        breakpoint()
    def wsgi(environ, start_response):
        value = 41
        if os.environ.get("AT") == "request":
            breakpoint()
        start_response("200 OK", [("content-length", "2")])
        return [str(value).encode()]
    async def asgi(scope, receive, send):
        assert scope["type"] == "http"
        value = 41
        if os.environ.get("AT") == "request":
            breakpoint()
        body = str(value).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": body})
"""


APPS = [("asgi", ()), ("wsgi", ()), ("wsgi", ("--threads", "2"))]


@pytest.mark.parametrize(("app", "options"), APPS)
def test_ctrl_c_ends_a_server_at_a_breakpoint(
    app: str, options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "debugged.py").write_text(textwrap.dedent(BREAKPOINT))
    monkeypatch.setenv("AT", "request")
    port = free_port()
    with in_terminal(command(f"debugged:{app}", port, "--reload", *options), tmp_path) as (pid, terminal):
        _read_until(terminal, b"on http")
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n")
            _read_until(terminal, b"(Pdb)")
            started = time.monotonic()
            os.write(terminal, b"\x03")
            eventually(lambda: os.waitpid(pid, os.WNOHANG)[0], "the end")
            assert time.monotonic() - started < 10


@pytest.mark.parametrize(("app", "options"), APPS)
@pytest.mark.parametrize("at", ["request", "import"])
def test_a_developer_may_think_at_a_breakpoint(
    at: str, app: str, options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "debugged.py").write_text(textwrap.dedent(BREAKPOINT))
    monkeypatch.setenv("AT", at)
    port = free_port()
    limits = ("--timeout-worker-healthcheck", "0.4", "--timeout-worker-startup", "0.4")
    with in_terminal(command(f"debugged:{app}", port, "--reload", *limits, *options), tmp_path) as (
        _,
        terminal,
    ):
        responses: list[bytes] = []
        thread = threading.Thread(target=lambda: responses.append(request(port, "/").body))
        if at == "request":
            _read_until(terminal, b"on http")
            thread.start()
        _read_until(terminal, b"(Pdb)")
        time.sleep(2)  # several times the limits
        os.write(terminal, b"value = 42\nc\n")
        if at == "import":
            _read_until(terminal, b"on http")
            thread.start()
        thread.join(MAX_WAIT)
        assert responses == [b"42" if at == "request" else b"41"]


def _read_until(terminal: int, text: bytes) -> None:
    seen = b""
    deadline = time.monotonic() + MAX_WAIT
    while text not in seen:
        left = deadline - time.monotonic()
        assert select.select([terminal], [], [], max(0.0, left))[0], seen
        seen += os.read(terminal, 4096)
