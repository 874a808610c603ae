"""Start of a server: inherited sockets, log configuration, reload on change, several applications."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from tests.support.process import HERE, eventually, request, running


def test_a_run_logs_only_the_banner_and_the_stop() -> None:
    with running("apps:asgi", "--workers", "2", "--loop", "asyncio") as program:
        program.pids(2)
        program.signal(signal.SIGTERM)
        assert program.wait() == 0
    banner, *rest = [line for line in program.lines if line.startswith("20")]
    assert banner.rstrip().endswith(f"on http://127.0.0.1:{program.port} (asgi, 2 workers, asyncio)")
    first, last = rest
    assert first.rstrip().endswith(" stopping")
    assert re.search(r" stopped in \d\.\d s; no requests were in flight$", last.rstrip())


def test_systemd_socket_activation() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        # LISTEN_PID must be the server's own id: exec keeps the one that the shell has.
        script = f'export LISTEN_FDS=1 LISTEN_PID=$$; exec "{sys.executable}" -m towline serve apps:asgi 3<&{listener.fileno()}'
        process = subprocess.Popen(
            ["/bin/bash", "-c", script], cwd=HERE, pass_fds=[listener.fileno()], stderr=subprocess.PIPE
        )
        try:
            assert request(port, "/pid").status == 200
        finally:
            process.terminate()
            assert process.wait(10) == 0, process.stderr and process.stderr.read()
            assert process.stderr
            process.stderr.close()


def test_an_inherited_descriptor_and_several_binds(tmp_path: Path) -> None:
    path = tmp_path / "app.sock"
    with running("apps:asgi", "--bind", "127.0.0.1:0", "--bind", f"unix:{path}") as program:
        assert request(program.port, "/pid").status == 200
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(path))
            sock.sendall(b"GET /pid HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n")
            assert sock.recv(64).startswith(b"HTTP/1.1 200")


def test_log_config(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    handler = {"class": "logging.FileHandler", "filename": str(tmp_path / "server.log")}
    stderr = {"class": "logging.StreamHandler"}
    path.write_text(
        json.dumps(
            {
                "version": 1,
                "handlers": {"file": handler, "stderr": stderr},
                "loggers": {"towline": {"handlers": ["file", "stderr"], "level": "INFO"}},
            }
        )
    )
    with running("apps:asgi", "--log-config", str(path)) as program:
        assert "Towline" in program.log
    assert "Towline" in (tmp_path / "server.log").read_text()


def test_mounted_applications(tmp_path: Path) -> None:
    (tmp_path / "several.py").write_text(
        textwrap.dedent("""
            def reply(name):
                async def app(scope, receive, send):
                    if scope["type"] == "lifespan":
                        raise NotImplementedError
                    body = f"{name} {scope['root_path']} {scope['path']}".encode()
                    await send({"type": "http.response.start", "status": 200, "headers": []})
                    await send({"type": "http.response.body", "body": body})
                return app

            main, api, deep = reply("main"), reply("api"), reply("deep")
        """)
    )
    mounts = ["--mount", "/api=several:api", "--mount", "/api/deep=several:deep"]
    with running("several:main", *mounts, cwd=tmp_path) as program:
        bodies = [request(program.port, path).body for path in ("/x", "/api/x", "/api/deep/x", "/apis")]
    assert bodies == [b"main  /x", b"api /api /api/x", b"deep /api/deep /api/deep/x", b"main  /apis"]


@pytest.mark.parametrize("mode", ["--spawn", "--no-spawn"])
@pytest.mark.parametrize("watcher", ["watchfiles", "polling"])
def test_reload_of_changed_code(
    tmp_path: Path, watcher: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if watcher == "watchfiles":
        pytest.importorskip("watchfiles")
    else:
        (tmp_path / "watchfiles.py").write_text("raise ImportError\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    source = tmp_path / "changing.py"

    def write(body: str) -> None:
        source.write_text(
            textwrap.dedent(f"""
                def app(environ, start_response):
                    start_response("200 OK", [("content-length", "{len(body)}")])
                    return [b"{body}"]
            """)
        )

    write("one")
    with running("changing:app", "--reload", mode, cwd=tmp_path) as program:
        assert request(program.port, "/").body == b"one"
        for _ in range(10):
            # Again, until the watcher has started.
            write("two!")
            with contextlib.suppress(AssertionError):
                eventually(lambda: request(program.port, "/").body == b"two!", "the new code", 3)
                break
        assert request(program.port, "/").body == b"two!"
        source.write_text("nonsense nonsense\n")
        eventually(lambda: "SyntaxError" in program.log, "the message")
        assert request(program.port, "/").body == b"two!"
        write("three")
        eventually(lambda: request(program.port, "/").body == b"three", "the newest code")
        program.signal(signal.SIGINT)
        assert program.wait() == 0


def test_reload_waits_for_a_first_good_version(tmp_path: Path) -> None:
    source = tmp_path / "changing.py"
    source.write_text("nonsense nonsense\n")
    command = [sys.executable, "-m", "towline", "serve", "changing:app", "--reload", "--port", "0"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    lines: list[str] = []
    started = threading.Event()

    def write() -> None:
        # Again, until the watcher has started.
        while not started.is_set():
            source.write_text("async def app(scope, receive, send):\n    raise NotImplementedError\n")
            started.wait(3)

    writing = threading.Thread(target=write, daemon=True)
    try:
        while "SyntaxError" not in "".join(lines):
            lines.append(process.stderr.readline())
        writing.start()
        while "Towline" not in lines[-1]:
            lines.append(process.stderr.readline())
            assert lines[-1], "".join(lines)
    finally:
        started.set()
        process.terminate()
        assert process.wait(10) == 0
        process.stderr.close()


def test_no_thread_and_no_application_in_the_supervisor(tmp_path: Path) -> None:
    app = "import _decimal\n\nasync def app(scope, receive, send):\n    raise NotImplementedError\n"
    (tmp_path / "counting.py").write_text(app)
    with running("counting:app", "--workers", "2", cwd=tmp_path) as program:
        assert len(os.listdir(f"/proc/{program.pid}/task")) == 1
        assert "_decimal" not in Path(f"/proc/{program.pid}/maps").read_text()
        for worker in program.children():
            assert "_decimal" in Path(f"/proc/{worker}/maps").read_text()


def test_workers_share_no_descriptor_but_the_lifeline() -> None:
    with running("apps:asgi", "--workers", "3") as program:
        program.pids(3)
        pipes = [{fd for fd in descriptors(pid) if fd.startswith("pipe:")} for pid in program.children()]
        one, two, three = pipes
        # stdout and stderr are pipes of this test; the third is the lifeline.
        for shared in (one & two, two & three, one & three):
            assert len(shared) == 3


def descriptors(pid: int) -> list[str]:
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a file that the worker has read and closed meanwhile
            found.append(os.readlink(entry))
    return found


DISABLING = """
    import logging.config
    CONFIGURATION = {
        "version": 1,
        "handlers": {"own": {"class": "logging.StreamHandler"}},
        "root": {"handlers": ["own"], "level": "INFO"},
    }
    # Disables all loggers that it does not name: that is the default.
    if WHEN == "import":
        logging.config.dictConfig(CONFIGURATION)

    async def asgi(scope, receive, send):
        if scope["type"] == "lifespan":
            await receive()
            if WHEN == "lifespan":
                logging.config.dictConfig(CONFIGURATION)
            await send({"type": "lifespan.startup.complete"})
            await receive()
            raise ValueError("in the lifespan")
        raise ValueError("in a request")

    def wsgi(environ, start_response):
        if WHEN == "lifespan":
            logging.config.dictConfig(CONFIGURATION)
        start_response("200 OK", [])
        yield b"part"
        raise ValueError("in a request")
"""


@pytest.mark.parametrize("when", ["import", "lifespan"])
@pytest.mark.parametrize("app", ["asgi", "wsgi"])
def test_errors_are_visible_when_the_application_disables_loggers(
    app: str, when: str, tmp_path: Path
) -> None:
    (tmp_path / "disabling.py").write_text(f"WHEN = {when!r}\n{textwrap.dedent(DISABLING)}")
    with running(f"disabling:{app}", cwd=tmp_path) as program:
        with contextlib.suppress(OSError, AssertionError):
            request(program.port, "/")
        eventually(lambda: "ValueError: in a request" in program.log, "the error of the request")
        program.signal(signal.SIGTERM)
        assert program.wait() == 0
    assert ("ValueError: in the lifespan" in program.log) == (app == "asgi")
    assert " stopped in " in program.log
