"""The floor: an epoll loop in C with which the cost of a request is compared."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys

import pytest
from towline.bench.subjects.floor import COMPILERS
from towline.bench.subjects.model import servers
from towline.bench.subjects.process import Process, SubjectFailed

HEAD = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
needs_compiler = pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="no C compiler")


def responses(connection: socket.socket, count: int) -> bytes:
    received = b""
    while received.count(b"alive\r\n") < count:
        received += connection.recv(65536)
    return received


@needs_compiler
@pytest.mark.skipif(sys.platform != "linux", reason="epoll")
def test_each_head_has_one_response_at_every_split() -> None:
    with Process(servers()["floor"]) as floor:
        floor.wait_ready()
        with socket.create_connection(("127.0.0.1", floor.port), timeout=5) as connection:
            for cut in range(1, len(HEAD)):
                connection.sendall(HEAD[:cut])
                connection.sendall(HEAD[cut:] + HEAD * 99)
                received = responses(connection, 100)
                assert received.count(b"HTTP/1.1 200 OK\r\n") == 100
                assert len(received) % 100 == 0


@needs_compiler
@pytest.mark.skipif(sys.platform != "linux", reason="epoll")
def test_a_port_in_use_is_reported() -> None:
    with Process(servers()["floor"]) as floor:
        floor.wait_ready()
        command = [sys.executable, "-m", "towline.bench.subjects.floor", str(floor.port)]
        completed = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert completed.returncode == 1
    assert "bind" in completed.stderr


def test_a_missing_compiler_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with Process(servers()["floor"]) as floor, pytest.raises(SubjectFailed) as failed:
        floor.wait_ready()
    assert "no C compiler" in failed.value.log
