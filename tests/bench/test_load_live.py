"""The live view of `towline load`, on a pseudo terminal that replies like a real one."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

LOAD = [sys.executable, "-m", "towline", "load"]
SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")
    def log_message(self, *args):
        pass
class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *args):
        pass  # a load that ends leaves in the middle of answers
server = Server(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    yield f"http://127.0.0.1:{server.stdout.readline().strip()}/"
    server.kill()
    server.wait()
    server.stdout.close()


class Screen:
    """A program on a terminal, and its output."""

    def __init__(self, arguments: list[str], columns: int, lines: int, environ: dict[str, str]) -> None:
        self.terminal, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.before = termios.tcgetattr(inner)
        self.inner = inner
        # The terminal must be the program's controlling terminal, or Ctrl-C would not reach it.
        self.program = subprocess.Popen(
            [*LOAD, *arguments],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env={"PATH": os.environ["PATH"], "TERM": "xterm-256color", **environ},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self.written = b""

    def read(self, until: bytes | None = None, within: float = 20.0, reply: bool = True) -> str:
        """Reads up to `until`, or to the program's end; replies to requests for the cursor position."""
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            exited = self.program.poll() is not None
            ready, _, _ = select.select([self.terminal], [], [], 0.0 if exited else 0.05)
            if ready:
                data = os.read(self.terminal, 65536)
                self.written += data
                if reply:
                    for _ in range(data.count(b"\x1b[6n")):
                        os.write(self.terminal, b"\x1b[1;1R")
            elif exited:
                return self.text()
            if until is not None and until in self.written:
                return self.text()
        raise AssertionError(f"not seen in {within} s: {until!r} in {self.written!r}")

    def text(self) -> str:
        return self.written.decode("utf-8", "replace")

    def plain(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.text())


@contextmanager
def screen(arguments: list[str], columns: int = 80, lines: int = 24, **environ: str) -> Iterator[Screen]:
    view = Screen(arguments, columns, lines, environ)
    try:
        yield view
    finally:
        view.program.kill()
        view.program.wait()
        os.close(view.terminal)
        os.close(view.inner)


def is_cursor_visible(text: str) -> bool:
    return text.rfind("\x1b[?25h") >= text.rfind("\x1b[?25l")


def test_a_run_is_drawn_and_its_report_remains(url: str) -> None:
    with screen(["-d", "2", "-c", "4", url]) as view:
        view.read()
        plain = view.plain()
        assert view.program.returncode == 0, plain
        for part in ("measuring", "requests/s:", "left", "percentiles", "connections"):
            assert part in plain, part
        assert "\x1b[3" in view.text()  # colours
        # The view is cleared before the report.
        report = view.text()[view.text().rindex("\x1b[J") :]
        assert "responses)" in report
        assert "statuses" in report
        assert "\x1b[?1049h" not in view.text()
        assert termios.tcgetattr(view.inner) == view.before


def test_a_tiny_terminal_and_no_colors(url: str) -> None:
    with screen(["-d", "1500ms", "-c", "2", url], columns=30, lines=5, NO_COLOR="1") as view:
        view.read()
        assert view.program.returncode == 0
        assert "measuring" in view.plain()
        assert not re.search(r"\x1b\[(3|9)[0-7]|\x1b\[38", view.text())
        assert "responses)" in view.plain()


@pytest.mark.parametrize(("arguments", "environ"), [(["--no-tui"], {}), (["-q"], {}), ([], {"TERM": "dumb"})])
def test_nothing_is_drawn_when_it_is_disabled(
    url: str, arguments: list[str], environ: dict[str, str]
) -> None:
    with screen(["-d", "600ms", "-c", "2", *arguments, url], **environ) as view:
        view.read()
        assert view.program.returncode == 0
        assert "\x1b" not in view.text()
        assert "responses)" in view.text()


def test_a_terminal_without_a_cursor_reply_has_the_report(url: str) -> None:
    with screen(["-d", "600ms", "-c", "2", url]) as view:
        view.read(reply=False)
        assert view.program.returncode == 0
        assert "responses)" in view.plain()
        assert termios.tcgetattr(view.inner) == view.before


def test_control_c_keeps_the_measurements(url: str) -> None:
    with screen(["-d", "60", "-c", "2", url]) as view:
        view.read(until=b"percentiles")
        os.write(view.terminal, b"\x03")
        view.read()
        assert view.program.returncode == 0, view.text()
        assert "responses)" in view.text()[view.text().rindex("\x1b[J") :]
        assert is_cursor_visible(view.text())
        assert termios.tcgetattr(view.inner) == view.before


def test_a_pipe_gets_plain_text(url: str) -> None:
    done = subprocess.run(
        [*LOAD, "-d", "500ms", "-c", "2", url], capture_output=True, text=True, timeout=30, check=True
    )
    assert "\x1b" not in done.stdout + done.stderr
    assert "responses)" in done.stdout


def test_a_killed_view_leaves_the_cursor_visible(url: str) -> None:
    with screen(["-d", "60", "-c", "2", url]) as view:
        view.read(until=b"percentiles")
        view.program.send_signal(signal.SIGKILL)
        view.read()
        assert is_cursor_visible(view.text())
        assert termios.tcgetattr(view.inner) == view.before
