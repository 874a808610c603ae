"""`--worker-mode threads`: several event loops or WSGI servers in one process, which is replaced as a whole."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process import HERE, Conn, Load, Program, alive, connect, eventually, request, running

ASGI, WSGI = "thread_apps:asgi", "thread_apps:wsgi"
APPS = [pytest.param(ASGI, id="asgi"), pytest.param(WSGI, id="wsgi")]
KEEP_ALIVE = [pytest.param(False, id="close"), pytest.param(True, id="keep-alive")]


def threads(app: str, count: int, *options: str) -> contextlib.AbstractContextManager[Program]:
    return running(app, "--worker-mode", "threads", "--workers", str(count), *options)


@contextlib.contextmanager
def one_on_each(program: Program, count: int) -> Iterator[dict[str, Conn]]:
    """A connection to each loop, by the name of its thread."""
    with contextlib.ExitStack() as stack:
        found: dict[str, Conn] = {}

        def enough() -> bool:
            conn = stack.enter_context(connect(program.port))
            found.setdefault(conn.get("/thread").body.decode(), conn)
            return len(found) == count

        eventually(enough, f"{count} threads that respond")
        yield found


@pytest.mark.parametrize("app", APPS)
def test_every_loop_of_the_one_process_serves_its_share(app: str) -> None:
    with threads(app, 3) as program, contextlib.ExitStack() as stack:
        conns = [stack.enter_context(connect(program.port)) for _ in range(45)]
        counts = Counter(conn.get("/thread").body.decode() for conn in conns)
        assert set(counts) == {"towline-loop-0", "towline-loop-1", "towline-loop-2"}
        assert min(counts.values()) >= 5, counts
        assert {int(conn.get("/pid").body) for conn in conns} == set(program.children())
        assert len(program.children()) == 1
        assert "3 worker threads" in program.log


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_each_loop_has_its_own_timers_and_tasks(loop: str) -> None:
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    with threads(ASGI, 2, "--loop", loop) as program, one_on_each(program, 2) as conns:
        for conn in conns.values():
            conn.send("/sleep/0.3")
        assert [conn.response().body for conn in conns.values()] == [b"slept"] * 2
        assert f", {loop})" in program.log


@pytest.mark.skipif(getattr(sys, "_is_gil_enabled", lambda: True)() is False, reason="without the GIL")
def test_one_line_says_that_threads_take_turns() -> None:
    with threads(ASGI, 2) as program:
        assert program.log.count("the GIL is on") == 1
        before = program.children()
        program.signal(signal.SIGHUP)
        eventually(lambda: not set(before) & set(program.children()), "the reload")
        assert program.log.count("the GIL is on") == 1
    with running(ASGI, "--workers", "2") as program:
        assert "GIL" not in program.log


# Replacement of the process.


@pytest.mark.parametrize("app", APPS)
@pytest.mark.parametrize("keep_alive", KEEP_ALIVE)
def test_sighup_under_load_fails_no_request(app: str, keep_alive: bool) -> None:
    with threads(app, 2) as program:
        (before,) = program.children()
        with Load(program.port, keep_alive=keep_alive) as load:
            program.signal(signal.SIGHUP)
            eventually(
                lambda: program.children() and before not in program.children(), "the old process' end"
            )
            load.more()
        assert not load.failures
        assert {int(body) for body in load.responses[-10:]} == set(program.children())
        eventually(lambda: "reloaded in" in program.log, "the notice")
        assert "2 worker threads" in program.log.partition("reloaded in")[2]


def test_a_fresh_interpreter_has_threads_too() -> None:
    with threads(ASGI, 2, "--spawn") as program, Load(program.port) as load:
        (before,) = program.children()
        with one_on_each(program, 2):
            pass
        program.signal(signal.SIGHUP)
        eventually(lambda: before not in program.children(), "the old process' end")
        load.more()
        assert not load.failures


@pytest.mark.parametrize("app", APPS)
def test_the_process_is_recycled_by_the_requests_of_all_its_loops(app: str) -> None:
    with threads(app, 2, "--limit-max-requests", "60") as program:
        (before,) = program.children()
        with Load(program.port) as load:
            eventually(lambda: before not in program.children(), "the replacement")
            load.more()
        assert not load.failures
        assert "it has served its number of requests" in program.log


@pytest.mark.parametrize("app", APPS)
def test_ttin_and_ttou_change_the_loops_in_a_new_process(app: str) -> None:
    with threads(app, 2) as program, Load(program.port) as load:
        for number, count in ((signal.SIGTTIN, 3), (signal.SIGTTOU, 2), (signal.SIGTTOU, 1)):
            before = program.children()
            program.signal(number)
            eventually(lambda: not set(before) & set(program.children()), "the new process")  # noqa: B023
            assert f"{count} worker thread" in program.log
            if count > 1:
                with one_on_each(program, count) as conns:
                    assert len(conns) == count
        load.more()
        assert not load.failures


@pytest.mark.parametrize("app", APPS)
def test_a_loop_that_hangs_costs_the_requests_of_other_loops_nothing(app: str) -> None:
    with threads(app, 2, "--timeout-worker-healthcheck", "1") as program:
        (old,) = program.children()
        with one_on_each(program, 2) as conns:
            (hung, blocked), (_, other) = sorted(conns.items())
            blocked.send("/block")
            response = other.get("/sleep/0.2")
            while not response.closes:  # which announces the end of the process
                assert response.body == b"slept"
                response = other.get("/sleep/0.2")
            assert f"loop {hung[-1]} of 2 is stuck" in program.log
            assert set(program.children()) - {old}
        eventually(lambda: not alive(old), "the old process' end")
        assert "its stack follows" in program.log
        assert "apps.py" in program.log  # the stack
        with one_on_each(program, 2):
            pass


def test_a_process_whose_loops_all_hang_is_ended_at_once() -> None:
    with threads(ASGI, 2, "--timeout-worker-healthcheck", "1") as program:
        (old,) = program.children()
        with one_on_each(program, 2) as conns:
            for conn in conns.values():
                conn.send("/block")
            eventually(lambda: not alive(old), "the old process' end")
        assert "its event loop has not run" in program.log
        with one_on_each(program, 2):
            pass


def test_idle_loops_are_not_stuck() -> None:
    for app in (ASGI, WSGI):
        with threads(app, 3, "--timeout-worker-healthcheck", "1") as program:
            before = program.children()
            time.sleep(2.5)
            assert program.children() == before
            assert "stuck" not in program.log


@pytest.mark.parametrize("path", ["/stop", "/end/os._exit", "/end/segfault"])
def test_a_thread_that_dies_ends_its_process_which_is_replaced(path: str) -> None:
    with threads(ASGI, 2) as program:
        (old,) = program.children()
        with connect(program.port) as conn:
            conn.send(path)
            eventually(lambda: not alive(old), "the old process' end")
        assert program.pids(1) == set(program.children())
        eventually(lambda: f"worker {old} ended" in program.log, "the notice")


def test_sys_exit_of_a_request_ends_no_thread() -> None:
    for app in (ASGI, WSGI):
        with threads(app, 2) as program, one_on_each(program, 2) as conns:
            before = program.children()
            for conn in conns.values():
                assert conn.get("/end/sys.exit").status == 500
            assert len(one_each := {request(program.port, "/pid").body for _ in range(4)}) == 1, one_each
            assert program.children() == before


# The lifespan.


@pytest.mark.parametrize("scope", ["loop", "process"])
def test_lifespan_scopes(scope: str) -> None:
    expected = {f"towline-loop-{number}" for number in range(3 if scope == "loop" else 1)}
    with threads(ASGI, 3, "--lifespan-scope", scope) as program:
        with one_on_each(program, 3) as conns:
            for name, conn in conns.items():
                made_by = conn.get("/lifespan").body.decode()
                assert made_by == (name if scope == "loop" else "towline-loop-0")
        program.signal(signal.SIGTERM)
        assert program.wait() == 0
        assert sorted(re.findall(r"start-up in (\S+)", program.log)) == sorted(expected)
        assert sorted(re.findall(r"shutdown in (\S+)", program.log)) == sorted(expected)


def test_a_shared_lifespan_shuts_down_after_the_last_request_of_every_loop() -> None:
    with threads(ASGI, 2, "--lifespan-scope", "process") as program, one_on_each(program, 2) as conns:
        conns["towline-loop-1"].send("/sleep/1")
        time.sleep(0.2)
        program.signal(signal.SIGTERM)
        assert conns["towline-loop-1"].response().body == b"slept"
        assert "shutdown in" not in program.log
        assert program.wait() == 0
        assert "shutdown in towline-loop-0" in program.log


@pytest.mark.parametrize(("scope", "thread"), [("loop", 0), ("loop", 1), ("process", 0)])
def test_a_failed_start_of_one_loop_ends_the_server(scope: str, thread: int) -> None:
    command = [sys.executable, "-m", "towline", "serve", ASGI, "--port", "0", "--worker-mode", "threads"]
    done = subprocess.run(
        [*command, "--workers", "2", "--lifespan-scope", scope],
        cwd=HERE,
        env={**os.environ, "FAILING_THREAD": f"towline-loop-{thread}"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert f"towline-loop-{thread} does not like it" in done.stderr


# The end.


@pytest.mark.parametrize("app", APPS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_requests_in_flight_on_every_loop_finish(app: str, number: signal.Signals) -> None:
    with threads(app, 2) as program, one_on_each(program, 2) as conns:
        for conn in conns.values():
            conn.send("/sleep/1")
        time.sleep(0.3)
        program.signal(number)
        assert [conn.response().body for conn in conns.values()] == [b"slept"] * 2
        assert program.wait() == 0
        assert "2 requests were in flight, none was cancelled" in program.log


@pytest.mark.parametrize("app", APPS)
def test_what_does_not_finish_in_time_is_cancelled_and_counted(app: str) -> None:
    with threads(app, 2, "--timeout-graceful-shutdown", "0.5") as program, one_on_each(program, 2) as conns:
        for conn in conns.values():
            conn.send("/stream/1000/0.05")
            conn.head()
        program.signal(signal.SIGTERM)
        assert program.wait() == 0
        assert "2 were cancelled" in program.log


@pytest.mark.parametrize("app", APPS)
def test_a_second_signal_and_sigquit_end_every_loop_at_once(app: str) -> None:
    for numbers in ([signal.SIGINT, signal.SIGINT], [signal.SIGQUIT]):
        with threads(app, 2) as program, one_on_each(program, 2) as conns:
            for conn in conns.values():
                conn.send("/stream/1000/0.05")
                conn.head()
            started = time.monotonic()
            for number in numbers:
                program.signal(number)
                time.sleep(0.1)
            assert program.wait() == 0
            assert time.monotonic() - started < 10
            assert "2 were cancelled" in program.log


def test_a_stop_does_not_wait_for_a_loop_that_hangs() -> None:
    with threads(ASGI, 2, "--timeout-worker-healthcheck", "2") as program, one_on_each(program, 2) as conns:
        (_, blocked), (_, other) = sorted(conns.items())
        blocked.send("/block")
        other.send("/sleep/1")
        time.sleep(0.5)
        started = time.monotonic()
        program.signal(signal.SIGTERM)
        assert other.response().body == b"slept"
        assert program.wait() == 0
        assert time.monotonic() - started < 15  # instead of the 36 s after which it would be killed
        assert "loop 0 is stuck; its stack follows" in program.log
        assert "apps.py" in program.log  # the stack


@pytest.mark.parametrize("app", APPS)
def test_an_orphaned_process_finishes_its_requests_and_ends(app: str) -> None:
    with threads(app, 2) as program, one_on_each(program, 2) as conns:
        (worker,) = program.children()
        for conn in conns.values():
            conn.send("/sleep/0.5")
        time.sleep(0.2)
        program.signal(signal.SIGKILL)
        assert [conn.response().body for conn in conns.values()] == [b"slept"] * 2
        eventually(lambda: not alive(worker), "the end of the worker")


def test_signals_to_the_worker_itself() -> None:
    with threads(ASGI, 2) as program:
        (old,) = program.children()
        os.kill(old, signal.SIGTERM)
        eventually(lambda: not alive(old), "the worker's end")
        assert program.pids(1) == set(program.children())


# Things that the loops share.


@pytest.mark.parametrize("app", APPS)
def test_metrics_are_by_loop_and_in_sum(app: str) -> None:
    with threads(app, 2, "--metrics") as program, one_on_each(program, 2):
        page = request(program.port, "/metrics").body.decode()
        values = dict(re.findall(r"^(\S+) (\S+)$", page, re.MULTILINE))
        assert values["towline_workers_wanted"] == values["towline_workers_alive"] == "2"
        assert values["towline_workers_accepting"] == "2"
        (pid,) = program.children()
        for worker in (0, 1):
            assert values[f'towline_worker_pid{{worker="{worker}"}}'] == str(pid)
            assert int(values[f'towline_worker_connections{{worker="{worker}"}}']) >= 1
            assert float(values[f'towline_worker_heartbeat_age_seconds{{worker="{worker}"}}']) < 10
        assert int(values['towline_worker_resident_bytes{worker="0"}']) > 1_000_000
        # The memory of the process counts once.
        assert 'towline_worker_resident_bytes{worker="1"}' not in values
        assert int(values['towline_requests_total{method="GET",version="1.1",status="200"}']) >= 2


@pytest.mark.parametrize("app", APPS)
def test_all_loops_reopen_the_access_log(app: str, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    with threads(app, 2, "--access-log", str(log)) as program, one_on_each(program, 2) as conns:
        eventually(lambda: log.exists() and "/thread" in log.read_text(), "the first lines")
        log.rename(tmp_path / "access.log.1")
        program.signal(signal.SIGUSR1)

        def have_reopened() -> bool:
            for number, conn in enumerate(conns.values(), 1):
                conn.get(f"/sleep/0.00{number}")
            lines = log.read_text() if log.exists() else ""
            return "/sleep/0.001" in lines and "/sleep/0.002" in lines

        eventually(have_reopened, "the lines of both loops in the new file")


@pytest.mark.parametrize(("app", "path"), [(ASGI, "/count"), (ASGI, "/async-count"), (WSGI, "/count")])
def test_the_state_of_all_loops_is_one(app: str, path: str) -> None:
    with threads(app, 3) as program, Load(program.port, path, threads=6) as load:
        load.more(200)
        load.stop()
        assert not load.failures
        counts = sorted(map(int, load.responses))
        assert counts == list(range(1, len(counts) + 1))


def test_views_that_compute_are_right_in_every_thread() -> None:
    expected = str(sum(number * number for number in range(20_000))).encode()
    with (
        threads(WSGI, 2, "--threads", "2") as program,
        Load(program.port, "/compute/20000", threads=6) as load,
    ):
        load.more(200)
        load.stop()
        assert not load.failures
        assert set(load.responses) == {expected}


def test_hooks_are_called_once_for_the_process(tmp_path: Path) -> None:
    (tmp_path / "gunicorn.conf.py").write_text(
        "def note(name):\n    print('hook', name, flush=True)\n"
        "def post_fork(server, worker): note('post_fork')\n"
        "def post_worker_init(worker): note('post_worker_init')\n"
        "def worker_exit(server, worker): note('worker_exit')\n"
    )
    app = tmp_path / "app.py"
    app.write_text(
        f"import sys\nsys.path.insert(0, {str(HERE)!r})\nprint('imported', flush=True)\nfrom apps import asgi\n"
    )
    options = ["--config", "gunicorn.conf.py", "--worker-mode", "threads", "--workers", "3", "--preload"]
    with running("app:asgi", *options, cwd=tmp_path) as program:
        program.signal(signal.SIGTERM)
        assert program.wait() == 0
        for line in ("hook post_fork", "hook post_worker_init", "hook worker_exit", "imported"):
            assert program.log.count(line) == 1, line


def test_the_number_of_threads_has_a_limit() -> None:
    command = [sys.executable, "-m", "towline", "serve", ASGI, "--worker-mode", "threads", "--workers", "129"]
    done = subprocess.run([*command, "--check"], cwd=HERE, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "workers: at most 128 with worker_mode threads" in done.stderr
