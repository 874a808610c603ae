"""The access log of a running server."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from towline.errors import ConfigError, StartupError

from tests.support.feature_server import TEXT, every_kind, exchange, fetch, serving
from tests.support.waiting import until


@every_kind
def test_one_line_for_each_request(kind: str, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    with serving(kind, access_log=str(log)) as server:
        fetch(server, "/a?b=c", "User-Agent: probe/1", "Referer: http://r/")
        fetch(server, "/text", method="HEAD")
    first, second = log.read_text().splitlines()
    expected = r'127\.0\.0\.1 - - \[\d\d/\w{3}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}\] "GET /a\?b=c HTTP/1\.1" 200 2 "http://r/" "probe/1"'
    assert re.fullmatch(expected, first)
    assert '"HEAD /text HTTP/1.1" 200 - "-" "-"' in second


@every_kind
def test_json(kind: str, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    with serving(kind, access_log=str(log), access_log_format="json") as server:
        fetch(server, '/text?q="x"', 'User-Agent: "quoted" \x7f\xe9'.replace("\x7f", ""))
    line = json.loads(log.read_text())
    assert (line["method"], line["path"], line["query"], line["status"]) == ("GET", "/text", 'q="x"', 200)
    assert (line["bytes"], line["client"], line["pid"]) == (len(TEXT), "127.0.0.1", os.getpid())
    assert line["user_agent"] == '"quoted" \xe9'
    assert 0 < line["duration_us"] < 10_000_000


def test_atoms_of_both_heads(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    form = "%(m)s %(U)s %(q)s %(H)s %(st)s %({x-in}i)s %({x-app}o)s %({HTTP_X_IN}e)s %(p)s"
    with serving("asgi", access_log=str(log), access_log_format=form) as server:
        fetch(server, "/p?q", "X-In: in")
    assert log.read_text() == f"GET /p q HTTP/1.1 OK in yes in <{os.getpid()}>\n"


def test_a_client_cannot_write_lines(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    with serving("asgi", access_log=str(log)) as server:
        fetch(server, "/", 'User-Agent: x" 200 \x9b31m\t"')
    text = log.read_text()
    assert text.count("\n") == 1
    assert text.strip().isprintable()
    assert r"x\" 200 \x9b31m\x09\"" in text


def test_static_files_and_failures_are_logged(tmp_path: Path) -> None:
    async def broken(scope: object, receive: object, send: object) -> None:
        raise RuntimeError("as planned")

    from towline.testing import serve

    log = tmp_path / "access.log"
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "a.txt").write_text("hello")
    options = {"static": (("/s", str(tmp_path / "root")),), "access_log": str(log), "lifespan": "off"}
    with serve(broken, interface="asgi", access_log_format="%(U)s %(s)s %(B)s", **options) as server:
        fetch(server, "/s/a.txt")
        fetch(server, "/s/b.txt")
        fetch(server, "/app")
    assert log.read_text().splitlines() == ["/s/a.txt 200 5", "/s/b.txt 404 10", "/app 500 21"]


def test_a_full_disk_harms_no_request() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    with serving("asgi", access_log="/dev/full") as server:
        for _ in range(20):
            assert fetch(server, "/a").body == b"/a"


PROGRAM = """
async def asgi(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})

def wsgi(environ, start_response):
    start_response("200 OK", [])
    return [b"ok"]
"""


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def holds(pid: int, path: Path) -> bool:
    """Whether a process has the file open."""
    return any(os.path.realpath(entry) == str(path) for entry in Path(f"/proc/{pid}/fd").iterdir())


@pytest.mark.parametrize("interface", ["asgi", "wsgi"])
def test_sigusr1_moves_every_worker_to_a_new_file(interface: str, tmp_path: Path) -> None:
    (tmp_path / "logged.py").write_text(PROGRAM)
    log, old = tmp_path / "access.log", tmp_path / "access.log.1"
    command = [sys.executable, "-m", "towline", "serve", f"logged:{interface}", "--interface", interface]
    command += ["--port", "0", "--workers", "2", "--access-log", str(log), "--access-log-format", "%(U)s"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        found = None
        while found is None:
            line = process.stderr.readline()
            assert line, "ended early"
            found = re.search(r"127\.0\.0\.1:(\d+)", line)
        address = ("127.0.0.1", int(found[1]))

        def get(path: str) -> None:
            data = f"GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n".encode()
            assert exchange(address, data).body == b"ok"

        for _ in range(20):
            get("/before")
        until(lambda: log.read_text().count("\n") == 20)
        log.rename(old)
        process.send_signal(signal.SIGUSR1)

        def moved() -> bool:
            get("/after")
            return log.exists()

        until(moved)

        def released() -> bool:
            """Each has written since: those that come at once are shared among the workers."""
            with contextlib.ExitStack() as held:
                conns = [held.enter_context(socket.create_connection(address, 10)) for _ in range(16)]
                for conn in conns:
                    conn.sendall(b"GET /after HTTP/1.1\r\nHost: test\r\n\r\n")
                    assert conn.recv(65536)
            return not any(holds(pid, old) for pid in children_of(process.pid))

        until(released)
        before = old.read_text().count("\n")
        for _ in range(20):
            get("/late")
        until(lambda: log.read_text().count("/late\n") == 20)
        assert old.read_text().count("\n") == before
    finally:
        process.terminate()
        process.communicate(timeout=20)


EMBEDDING = """
import sys, threading, towline, logged

config = towline.ServerConfig(getattr(logged, sys.argv[1]), interface=sys.argv[1], port=0, lifespan="off",
                              access_log="access.log", access_log_format="%(U)s")
server = towline.Server(config)

def tell():
    server.started.wait()
    print(server.addresses[0], flush=True)

threading.Thread(target=tell).start()
server.run()
"""


@pytest.mark.parametrize("interface", ["asgi", "wsgi"])
def test_sigusr1_without_a_supervisor(interface: str, tmp_path: Path) -> None:
    (tmp_path / "logged.py").write_text(PROGRAM)
    (tmp_path / "embedding.py").write_text(EMBEDDING)
    log, old = tmp_path / "access.log", tmp_path / "access.log.1"
    command = [sys.executable, "embedding.py", interface]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = ("127.0.0.1", int(process.stdout.readline().rpartition(":")[2]))

        def get(path: str) -> None:
            data = f"GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n".encode()
            assert exchange(address, data).body == b"ok"

        get("/before")
        until(lambda: log.read_text() == "/before\n")
        log.rename(old)
        process.send_signal(signal.SIGUSR1)

        def moved() -> bool:
            get("/after")
            return log.exists()

        until(moved)
    finally:
        process.terminate()
        process.communicate(timeout=20)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"access_log_format": "%(zz)s"}, "zz"),
        ({"access_log": "/nonexistent/access.log"}, "/nonexistent/access.log"),
    ],
)
def test_mistakes_stop_the_start(options: dict[str, str], named: str, tmp_path: Path) -> None:
    options = {"access_log": str(tmp_path / "a"), **options}
    with pytest.raises((StartupError, ConfigError), match=re.escape(named)), serving("asgi", **options):
        pass
