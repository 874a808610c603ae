"""Hooks of a gunicorn configuration: the process and the moment of each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.process import Program, eventually, request, running

CONFIGURATION = """
    import os

    workers = 2
    proc_name = "shop"

    def note(name, *more):
        with open("events", "a") as file:
            file.write(" ".join([str(os.getpid()), name, *map(str, more)]) + "\\n")

    def on_starting(server):
        note("on_starting", server.pid, server.cfg.proc_name, server.num_workers)

    def nworkers_changed(server, new_value, old_value):
        note("nworkers_changed", new_value, old_value, server.num_workers)

    def when_ready(server):
        server.log.warning("ready, says the hook")
        note("when_ready")

    def on_reload(server):
        note("on_reload")

    def pre_fork(server, worker):
        note("pre_fork", worker.age, worker.pid, worker.ppid == os.getpid())

    def post_fork(server, worker):
        note("post_fork", worker.pid, server.pid == os.getppid() == worker.ppid)

    def post_worker_init(worker):
        note("post_worker_init", worker.cfg.workers)

    def worker_int(worker):
        note("worker_int")

    def worker_exit(server, worker):
        note("worker_exit")

    def child_exit(server, worker):
        note("child_exit", worker.pid)

    def on_exit(server):
        note("on_exit")
"""
APPS = """
    import os

    with open("events", "a") as file:
        file.write(f"{os.getpid()} import\\n")

    async def asgi(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(os.getpid()).encode()})

    def wsgi(environ, start_response):
        start_response("200 OK", [])
        return [str(os.getpid()).encode()]
"""
apps = pytest.mark.parametrize("app", ["asgi", "wsgi"])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "gunicorn.conf.py").write_text(textwrap.dedent(CONFIGURATION))
    (tmp_path / "hooked.py").write_text(textwrap.dedent(APPS))
    return tmp_path


def change(directory: Path, hook: str, body: str) -> None:
    """Replace one hook."""
    with (directory / "gunicorn.conf.py").open("a") as file:
        file.write(f"\ndef {hook}:\n    {body}\n")


def events(directory: Path, pid: int) -> list[str]:
    """The hooks of a process, in order."""
    lines = (directory / "events").read_text().splitlines()
    return [rest for number, _, rest in (line.partition(" ") for line in lines) if number == str(pid)]


def ready(program: Program, directory: Path) -> None:
    eventually(lambda: "when_ready" in events(directory, program.pid), "when_ready")


@apps
def test_each_hook_has_its_process_and_moment(app: str, directory: Path) -> None:
    with running(f"hooked:{app}", "-c", "gunicorn.conf.py", cwd=directory) as program:
        ready(program, directory)
        workers = program.children()
        assert len(workers) == 2
        assert request(program.port, "/").status == 200
        program.signal(signal.SIGTERM)
        assert program.wait() == 0
        started, ended = events(directory, program.pid)[:6], events(directory, program.pid)[6:]
        supervisor = program.pid
    assert started == [
        "nworkers_changed 2 None 2",
        f"on_starting {supervisor} shop 2",
        "pre_fork 1 [booting] True",
        "pre_fork 2 [booting] True",
        "when_ready",
        started[5],
    ]
    assert sorted([started[5], ended[0]]) == sorted(f"child_exit {pid}" for pid in workers)
    assert ended[1:] == ["on_exit"]
    for pid in workers:
        assert events(directory, pid) == [
            f"post_fork {pid} True",
            "import",
            "post_worker_init 2",
            "worker_exit",
        ]
    assert "ready, says the hook" in program.log
    # Settings without a counterpart are named, the hooks are not.
    assert "gunicorn.conf.py: proc_name: ignored" in program.log
    assert "post_fork: ignored" not in program.log


@apps
def test_signals(app: str, directory: Path) -> None:
    with running(f"hooked:{app}", "-c", "gunicorn.conf.py", "--workers", "1", cwd=directory) as program:
        ready(program, directory)
        (first,) = program.children()
        program.signal(signal.SIGHUP)
        eventually(lambda: f"child_exit {first}" in events(directory, program.pid), "the old worker to end")
        assert events(directory, program.pid).count("on_reload") == 1
        assert "pre_fork 2 [booting] True" in events(directory, program.pid)
        assert "worker_int" not in events(directory, first)
        program.signal(signal.SIGTTIN)
        eventually(lambda: "nworkers_changed 2 1 2" in events(directory, program.pid), "TTIN")
        program.signal(signal.SIGTTOU)
        eventually(lambda: "nworkers_changed 1 2 1" in events(directory, program.pid), "TTOU")
        eventually(lambda: len(program.children()) == 1, "one worker")
        (last,) = program.children()
        eventually(lambda: "post_worker_init 2" in events(directory, last), "its start")
        program.pids(1)
        program.signal(signal.SIGQUIT)
        assert program.wait() == 0
    assert events(directory, last)[-2:] == ["worker_int", "worker_exit"]
    # Once, although the server was reloaded.
    assert events(directory, program.pid).count("when_ready") == 1


@apps
def test_a_worker_that_dies_is_reported(app: str, directory: Path) -> None:
    """Libraries such as prometheus_client remove the files of a worker then."""
    with running(f"hooked:{app}", "-c", "gunicorn.conf.py", cwd=directory) as program:
        ready(program, directory)
        victim = program.children()[0]
        os.kill(victim, signal.SIGKILL)
        eventually(lambda: f"child_exit {victim}" in events(directory, program.pid), "child_exit")
        assert "worker_exit" not in events(directory, victim)
        eventually(lambda: "pre_fork 3 [booting] True" in events(directory, program.pid), "another one")


@pytest.mark.parametrize(
    "hook", ["on_starting(server)", "post_fork(server, worker)", "post_worker_init(worker)"]
)
def test_an_exception_at_the_start_fails_it(hook: str, directory: Path) -> None:
    change(directory, hook, "raise LookupError('no database')")
    command = [
        sys.executable,
        "-m",
        "towline",
        "serve",
        "hooked:wsgi",
        "--port",
        "0",
        "-c",
        "gunicorn.conf.py",
    ]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 3
    name = hook.partition("(")[0]
    assert f"the hook {name} raised an exception" in done.stderr
    assert "LookupError: no database" in done.stderr
    # The traceback is that of the hook.
    assert "gunicorn.conf.py" in done.stderr
    assert "server/hooks.py" not in done.stderr


def test_an_exception_of_another_hook_is_logged(directory: Path) -> None:
    for hook in ("when_ready(server)", "worker_exit(server, worker)", "child_exit(server, worker)"):
        change(directory, hook, "raise LookupError('no database')")
    with running("hooked:wsgi", "-c", "gunicorn.conf.py", "--workers", "1", cwd=directory) as program:
        assert request(program.port, "/").status == 200
        program.signal(signal.SIGTERM)
        assert program.wait() == 0
    for name in ("when_ready", "worker_exit", "child_exit"):
        assert program.log.count(f"the hook {name} raised an exception") == 1


def test_a_worker_exit_that_hangs_is_ended(directory: Path) -> None:
    change(directory, "worker_exit(server, worker)", "import time; time.sleep(60)")
    with running("hooked:asgi", "-c", "gunicorn.conf.py", "--workers", "1", cwd=directory) as program:
        ready(program, directory)
        program.signal(signal.SIGTERM)
        assert program.wait(10) == 0


def test_a_check_calls_no_hook(directory: Path) -> None:
    command = [sys.executable, "-m", "towline", "serve", "hooked:wsgi", "-c", "gunicorn.conf.py", "--check"]
    subprocess.run(command, cwd=directory, capture_output=True, timeout=30, check=True)
    assert (directory / "events").read_text().split()[1:] == ["import"]
