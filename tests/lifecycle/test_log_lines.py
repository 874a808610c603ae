"""Log lines of the server tell the truth: what serves, what a reload has replaced, what a stop has cancelled."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http3.servers import Site
from tests.support.process import HERE, Conn, Program, connect, eventually, request, running

ROOT = HERE.parent.parent


def stopped(program: Program, *numbers: signal.Signals) -> str:
    """End the server; returns the last line of its log, without the time that the stop took."""
    for number in numbers:
        program.signal(number)
        eventually(lambda: "stopping" in program.log, "the begin of the stop")
    assert program.wait() == 0
    (line,) = [line for line in program.lines if " stopped in " in line]
    return re.sub(r".* stopped in \d+\.\d s; ", "", line.rstrip())


@contextlib.contextmanager
def busy(program: Program, path: str, count: int) -> Iterator[list[Conn]]:
    """Connections with a request in flight each."""
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connect(program.port)) for _ in range(count)]
        for connection in connections:
            connection.send(path)
        time.sleep(0.3)
        yield connections


@pytest.mark.parametrize(
    ("threads", "shown"), [("1", "wsgi, 1 worker, 1 thread"), ("2", "wsgi, 1 worker, 2 threads")]
)
def test_the_start_counts_threads(threads: str, shown: str) -> None:
    with running("apps:wsgi", "--threads", threads) as program:
        assert f" on http://127.0.0.1:{program.port} ({shown})" in program.log


def test_the_start_names_http3(tmp_path: Path) -> None:
    site = Site(tmp_path)
    files = ["--ssl-certfile", str(site.cert), "--ssl-keyfile", str(site.key)]
    with running("apps:asgi", "--http3", "--loop", "asyncio", *files) as program:
        assert f" on https://127.0.0.1:{program.port} (asgi, 1 worker, asyncio, HTTP/3)" in program.log
    with running("apps:asgi", "--loop", "asyncio", *files) as program:
        assert f" on https://127.0.0.1:{program.port} (asgi, 1 worker, asyncio)" in program.log


@pytest.mark.parametrize("app", ["asgi", "wsgi"])
def test_a_stop_after_requests_that_have_ended(app: str) -> None:
    with running(f"apps:{app}", "--metrics") as program:
        for _ in range(26):
            assert request(program.port, "/pid").status == 200
        idle = b"\ntowline_requests_in_flight 0\n"
        # A response may arrive before the server has counted the end of its request.
        eventually(lambda: idle in request(program.port, "/metrics").body, "the end of the last request")
        assert stopped(program, signal.SIGTERM) == "no requests were in flight"


def test_a_stop_counts_requests_that_finish() -> None:
    with running("apps:asgi") as program, busy(program, "/sleep/1", 2):
        assert stopped(program, signal.SIGTERM) == "2 requests were in flight, none was cancelled"


def test_a_stop_counts_requests_that_are_cancelled() -> None:
    with running("apps:asgi", "--timeout-graceful-shutdown", "1.5") as program, busy(program, "/sleep/1", 1):
        with busy(program, "/endless", 2):
            assert stopped(program, signal.SIGTERM) == "3 requests were in flight, 2 were cancelled"
        assert "cancelling 2 requests that did not finish in time" in program.log


def test_a_second_signal_cancels_at_once() -> None:
    with running("apps:asgi") as program, busy(program, "/endless", 1):
        assert stopped(program, signal.SIGINT, signal.SIGINT) == "1 request was in flight, 1 was cancelled"
        assert "cancelling 1 request\n" in program.log


@pytest.mark.parametrize("app", ["asgi", "wsgi"])
def test_a_request_of_a_killed_worker_counts_as_cancelled(app: str) -> None:
    with running(f"apps:{app}", "--timeout-graceful-shutdown", "0") as program, busy(program, "/block", 1):
        assert stopped(program, signal.SIGTERM) == "1 request was in flight, 1 was cancelled"


def test_threads_that_are_abandoned_count_as_cancelled() -> None:
    options = ["--threads", "4", "--timeout-graceful-shutdown", "0.3"]
    with running("apps:wsgi", *options) as program, busy(program, "/sleep/3", 2):
        assert stopped(program, signal.SIGTERM) == "2 requests were in flight, 2 were cancelled"


def test_a_reload_reports_what_it_has_replaced(tmp_path: Path) -> None:
    source = tmp_path / "changing.py"
    source.write_text("from tests.lifecycle.apps import asgi as app\n")
    with running("changing:app", "--workers", "2", "--app-dir", str(tmp_path), cwd=ROOT) as program:
        program.signal(signal.SIGHUP)
        eventually(lambda: re.search(r" reloaded in \d+\.\d s, 2 workers\n", program.log), "the reload")
        assert program.log.index("reloading: SIGHUP") < program.log.index("reloaded in")
        program.signal(signal.SIGTTOU)
        eventually(lambda: " 1 worker wanted\n" in program.log, "one worker")

        source.write_text("raise RuntimeError('not today')\n")
        os.utime(source, (1, 1))  # the check of a cached module compares whole seconds
        program.signal(signal.SIGHUP)
        eventually(lambda: "the reload has failed: 0 of 1 worker replaced" in program.log, "the failure")
        assert program.log.count("reloaded in") == 1
