"""Requests that end their worker, or try to: others are served, and the worker is back at once."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.lifecycle.apps import ENDINGS
from tests.support.nightly import by_night
from tests.support.process import HERE, Program, connect, eventually, request, running

ROOT = HERE.parent.parent
APPS = [
    pytest.param(["apps:asgi"], id="asgi"),
    pytest.param(["apps:wsgi"], id="wsgi"),
    pytest.param(["apps:wsgi", "--threads", "4"], id="wsgi-threads"),
]
EXCEPTIONS = ["sys.exit", "KeyboardInterrupt"]
DEATHS = [name for name in ENDINGS if name not in EXCEPTIONS]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("app", APPS)
@pytest.mark.parametrize("ending", EXCEPTIONS)
def test_an_exception_that_ends_a_process_is_a_500(app: list[str], ending: str, loop: str) -> None:
    with running(*app, "--loop", loop) as program:
        before = program.children()
        with connect(program.port) as conn:
            for path in (f"/end/{ending}", f"/late/{ending}"):
                response = conn.get(path)
                assert response.status == 500
                assert not response.closes
        assert program.children() == before
        assert program.pids(1) == set(before)
        eventually(lambda: len(re.findall(r" ERROR ", program.log)) == 2, "two lines")
        assert len(re.findall(r"^(?:SystemExit: enough|KeyboardInterrupt)$", program.log, re.MULTILINE)) == 2
        for path in (f"/end/{ending}", f"/late/{ending}"):
            assert f"GET {path}" in program.log


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.TaskGroup")
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_sys_exit_in_a_task_of_a_request_is_a_500(loop: str) -> None:
    """The task raises it through the loop, too."""
    with running("apps:asgi", "--loop", loop) as program:
        before = program.children()
        with connect(program.port) as other, connect(program.port) as conn:
            other.send("/sleep/0.5")
            assert conn.get("/group").status == 500
            assert other.response().body == b"slept"
        assert program.children() == before
        assert "SystemExit in a task of the application" in program.log


class BackgroundClients:
    """Clients that send one request after another, each on a new connection, and count failures and gaps."""

    def __init__(self, port: int, clients: int = 4) -> None:
        self.port, self.failures, self.responses = port, 0, 0
        self.longest = 0.0
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(clients)]

    def __enter__(self) -> BackgroundClients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(20)

    def _run(self) -> None:
        while not self._stopped.is_set():
            started = time.monotonic()
            try:
                assert request(self.port, "/pid").status == 200
                self.responses += 1
            except OSError:
                self.failures += 1
            self.longest = max(self.longest, time.monotonic() - started)
            time.sleep(0.005)


@pytest.mark.parametrize("app", [APPS[0], *by_night(APPS[1:])])
@pytest.mark.parametrize("ending", DEATHS)
def test_one_request_a_second_that_ends_a_worker(app: list[str], ending: str) -> None:
    """Others lose at most the requests that the worker held, one for each client, and wait for at most a second."""
    crashes = 4
    with running(*app, "--workers", "2") as program, BackgroundClients(program.port) as clients:
        for _ in range(crashes):
            due = time.monotonic() + 1.0
            with pytest.raises(ConnectionError):
                request(program.port, f"/end/{ending}")
            time.sleep(max(0.0, due - time.monotonic()))
        eventually(lambda: len(program.pids(2)) == 2, "two workers")
        assert program.process.poll() is None
        print(f"{clients.failures} of {clients.responses} failed, longest {clients.longest * 1000:.0f} ms")
        assert clients.failures <= crashes * 4
        assert clients.longest < 1.0
        assert clients.responses > 100
    assert len(re.findall(r"starting another$", program.log, re.MULTILINE)) == crashes


def test_a_start_up_that_fails_delays_that_worker_only(tmp_path: Path) -> None:
    """One of two workers cannot start again; the other one still restarts at once."""
    app = tmp_path / "flaky.py"
    app.write_text(
        "import os, pathlib\n"
        f"once = pathlib.Path({str(tmp_path)!r}) / 'fail'\n"
        "if once.exists():\n"
        "    raise RuntimeError('not now')\n"
        "from tests.lifecycle.apps import asgi as app\n"
    )
    with running("flaky:app", "--workers", "2", "--app-dir", str(tmp_path), cwd=ROOT) as program:
        first, second = program.children()
        (tmp_path / "fail").touch()
        os.kill(first, signal.SIGKILL)
        eventually(lambda: program.log.count("not now") >= 7, "several start-ups that fail")
        (tmp_path / "fail").unlink()
        started = time.monotonic()
        os.kill(second, signal.SIGKILL)
        eventually(lambda: _serves(program), "the second worker")
        assert time.monotonic() - started < 1.0


def _serves(program: Program) -> bool:
    with contextlib.suppress(OSError):
        return request(program.port, "/pid", 2.0).status == 200
    return False
