"""Servers of the comparison. Each runs in its own process, which is stopped and reaped."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from towline.bench.subjects.ports import free_port

FRAMEWORKS = Path(__file__).parents[1] / "frameworks"
APPS = FRAMEWORKS / "apps"

# Headers that a server sets itself: its name, the date, and the framing of the body.
OF_THE_SERVER = {"server", "date", "connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass(frozen=True)
class Request:
    """One request of the comparison. `twice`: send it again and compare the second response."""

    target: str
    method: str = "GET"
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    twice: bool = False

    def __str__(self) -> str:
        return f"{self.method} {self.target}"


@dataclass(frozen=True)
class Response:
    """Response of the application, without the headers that the server adds."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def __str__(self) -> str:
        return f"{self.status} {self.headers} {self.body[:200]!r} ({len(self.body)} bytes)"


@contextlib.contextmanager
def running(command: list[str]) -> Iterator[int]:
    """Starts `command` (`{port}` filled in) in the folder of the applications; yields the port."""
    port = free_port()
    arguments = [part.format(port=port) for part in command]
    # Some frameworks print sets (Allow: GET, HEAD): with one hash seed they print them in one order.
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(arguments, cwd=APPS, env=environment, stdout=log, stderr=log)
        try:
            _wait_until_listening(process, port, log)
            yield port
        finally:
            process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise


def _wait_until_listening(process: subprocess.Popen[bytes], port: int, log: IO[bytes]) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if process.poll() is not None:
            log.seek(0)
            raise RuntimeError(f"the server ended at start: {log.read().decode(errors='replace')}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise RuntimeError("the server does not listen")


def fetch(port: int, request: Request) -> Response:
    """Sends `question` on a new connection, twice on the same one if `twice` is set."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=15)
    # One authority for all servers, so that absolute addresses in responses can be compared.
    headers = {"Host": "shop.example", "User-Agent": "towline-tests", **request.headers}
    with contextlib.closing(connection):
        for _ in range(2 if request.twice else 1):
            connection.request(request.method, request.target, request.body, headers)
            response = connection.getresponse()
            body = response.read()
    headers_sent = [(name.lower(), value) for name, value in response.getheaders()]
    length = response.getheader("content-length")
    if length is not None and request.method != "HEAD" and response.status not in (204, 304):
        assert int(length) == len(body)
    return Response(
        response.status, sorted(pair for pair in headers_sent if pair[0] not in OF_THE_SERVER), body
    )


TOWLINE = [str(Path(sys.executable).parent / "towline"), "serve", "{app}", "--port", "{{port}}"]
UVICORN = [sys.executable, "-m", "uvicorn", "{app}", "--port", "{{port}}", "--log-level", "warning"]
WSGIREF = [sys.executable, str(FRAMEWORKS / "wsgiref_server.py"), "{app}", "{{port}}"]


def command(template: list[str], app: str, *more: str) -> list[str]:
    """`template` for `app`; `{port}` remains to be filled in."""
    return [part.format(app=app) for part in template] + list(more)
