"""How workers are kept up, replaced and counted, under load where it matters."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.process import HERE, Load, alive, connect, eventually, running

APPS = [pytest.param("apps:asgi", id="asgi"), pytest.param("apps:wsgi", id="wsgi")]
ROOT = HERE.parent.parent
KEEP_ALIVE = [pytest.param(False, id="close"), pytest.param(True, id="keep-alive")]


@pytest.mark.parametrize("app", APPS)
@pytest.mark.parametrize("keep_alive", KEEP_ALIVE)
def test_sighup_under_load_fails_no_request(app: str, keep_alive: bool) -> None:
    with running(app, "--workers", "2") as program:
        before = set(program.children())
        with Load(program.port, keep_alive=keep_alive) as load:
            program.signal(signal.SIGHUP)
            eventually(lambda: not before & set(program.children()), "the old workers' end")
            load.more()
        assert not load.failures
        after = set(program.children())
        assert len(after) == 2
        assert {int(body) for body in load.responses[-10:]} <= after


REPAIR_SECONDS = 0.5


@pytest.mark.parametrize("app", APPS)
def test_sigkill_of_a_worker_is_repaired_in_time(app: str) -> None:
    """Repeated until it holds once, each time with a first death: only a second one is followed by a pause."""
    durations: list[float] = []
    due = time.monotonic() + 60
    while not durations or (min(durations) >= REPAIR_SECONDS and time.monotonic() < due):
        with running(app, "--workers", "2") as program:
            victim, other = program.children()
            started = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            eventually(lambda: set(program.children()) - {victim, other}, "the new worker")  # noqa: B023
            forked = time.monotonic() - started
            assert program.pids(2) == set(program.children())
            durations.append(time.monotonic() - started)
            print(f"new process after {forked * 1000:.0f} ms, both serve after {durations[-1] * 1000:.0f} ms")
            assert other in program.children()
            assert "SIGKILL" in program.log
    assert min(durations) < REPAIR_SECONDS


@pytest.mark.parametrize("app", APPS)
def test_objects_from_before_the_first_request_are_frozen(app: str) -> None:
    with running(app) as program, connect(program.port) as connection:
        assert int(connection.get("/frozen").body) > 1000


def test_a_killed_worker_loses_only_its_requests() -> None:
    with running("apps:asgi", "--workers", "2") as program:
        with Load(program.port, threads=4) as load:
            os.kill(program.children()[0], signal.SIGKILL)
            load.more(100)
        assert len(load.failures) <= 4  # one for each connection at most


@pytest.mark.parametrize("app", APPS)
def test_a_stuck_worker_is_replaced_and_its_stack_is_logged(app: str) -> None:
    with running(app, "--workers", "2", "--timeout-worker-healthcheck", "1") as program:
        before = set(program.children())
        with connect(program.port) as conn:
            conn.send("/block")
            eventually(lambda: "is stuck" in program.log, "the notice")
            eventually(lambda: len(set(program.children()) - before) == 1, "the replacement")
        assert len(program.pids(2)) == 2
        assert "apps.py" in program.log  # the stack


def test_an_idle_worker_is_not_stuck() -> None:
    with running("apps:asgi", "--timeout-worker-healthcheck", "2") as program:
        before = program.children()
        time.sleep(4)
        assert program.children() == before
        assert "stuck" not in program.log


def test_an_idle_wsgi_worker_is_not_stuck() -> None:
    with running("apps:wsgi", "--timeout-worker-healthcheck", "2") as program:
        before = program.children()
        time.sleep(4)
        assert program.children() == before


def test_a_paused_worker_is_replaced() -> None:
    with running("apps:asgi", "--timeout-worker-healthcheck", "0.5") as program:
        (paused,) = program.children()
        os.kill(paused, signal.SIGSTOP)
        eventually(lambda: not alive(paused), "the paused worker's end")
        eventually(lambda: program.children(), "the replacement")
        assert "is suspended" in program.log


@pytest.mark.parametrize("app", APPS)
@pytest.mark.parametrize("keep_alive", KEEP_ALIVE)
def test_recycling_by_requests_under_load_fails_no_request(app: str, keep_alive: bool) -> None:
    options = ["--workers", "2", "--limit-max-requests", "60", "--limit-max-requests-jitter", "20"]
    with running(app, *options) as program:
        before = set(program.children())
        with Load(program.port, keep_alive=keep_alive) as load:
            eventually(lambda: not before & set(program.children()), "both workers' replacement")
            load.more()
        assert not load.failures
        assert "it has served its number of requests" in program.log


@pytest.mark.parametrize("options", [["--workers-lifetime", "0.5"], ["--workers-max-rss", "1"]])
def test_recycling_by_age_and_memory(options: list[str]) -> None:
    with running("apps:asgi", *options) as program:
        (first,) = program.children()
        with Load(program.port, threads=1) as load:
            eventually(lambda: not alive(first), "the replacement")
            load.more(5)
        assert not load.failures


@pytest.mark.parametrize("app", APPS)
def test_kept_connections_are_shared_among_workers(app: str) -> None:
    with running(app, "--workers", "2") as program, contextlib.ExitStack() as open_until_the_end:
        conns = [open_until_the_end.enter_context(connect(program.port)) for _ in range(40)]
        counts = Counter(conn.get("/pid").body for conn in conns)
        print(f"40 connections on 2 workers: {sorted(counts.values())}")
        assert min(counts.values()) >= 5
        assert len(counts) == 2


def test_ttin_and_ttou() -> None:
    with running("apps:asgi") as program:
        program.signal(signal.SIGTTIN)
        eventually(lambda: len(program.children()) == 2, "one more")
        assert len(program.pids(2)) == 2
        program.signal(signal.SIGTTOU)
        eventually(lambda: len(program.children()) == 1, "one fewer")
        program.signal(signal.SIGTTOU)
        time.sleep(0.2)
        assert len(program.pids(1)) == 1


def test_a_reload_that_fails_keeps_the_old_workers(tmp_path: Path) -> None:
    app = tmp_path / "changing.py"
    app.write_text("from tests.lifecycle.apps import asgi as app\n")
    with running("changing:app", "--workers", "2", "--app-dir", str(tmp_path), cwd=ROOT) as program:
        before = set(program.children())
        app.write_text("raise RuntimeError('not today')\n")
        os.utime(app, (1, 1))  # the check of a cached module compares whole seconds
        program.signal(signal.SIGHUP)
        eventually(lambda: "not today" in program.log, "the message")
        time.sleep(0.3)
        assert before <= set(program.children())
        assert program.pids(1) <= before


def test_restarts_of_a_worker_that_keeps_dying_are_delayed() -> None:
    with running("apps:asgi") as program:
        deaths = 0
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            for pid in program.children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    deaths += 1
            time.sleep(0.005)
        assert deaths < 60
        assert program.process.poll() is None
        assert len(program.pids(1)) == 1
