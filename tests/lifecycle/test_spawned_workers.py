"""`--spawn`: workers in fresh interpreters, which share what forked ones do."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from towline.config import ServerConfig
from towline.config.hooks import Hooks
from towline.errors import ConfigError
from towline.server import spawned

from tests.support.process import Load, connect, eventually, request, running

APPS = [pytest.param("apps:asgi", id="asgi"), pytest.param("apps:wsgi", id="wsgi")]
MODULES = """
    import os, sys

    VERSION = "{version}"

    async def app(scope, receive, send):
        if scope["type"] != "http":
            raise NotImplementedError
        values = {{
            "/version": VERSION, "/pid": os.getpid(), "/supervisor": "towline.server.supervisor" in sys.modules,
            "/arguments": sys.argv[1:4], "/first": sys.path[0], "/variable": os.environ.get("GREETING"),
            "/descriptors": sorted(map(int, os.listdir("/dev/fd"))), "/umask": os.umask(0o027) == 0o027,
        }}
        await send({{"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]}})
        await send({{"type": "http.response.body", "body": str(values[scope["path"]]).encode()}})
"""


def write(folder: Path, version: str) -> None:
    (folder / "modules.py").write_text(textwrap.dedent(MODULES.format(version=version)))


def get(port: int, path: str) -> str:
    response = request(port, path)
    assert response.status == 200, response.body
    return response.body.decode()


@pytest.mark.parametrize("app", APPS)
def test_a_reload_under_load_loses_no_request(app: str) -> None:
    with running(app, "--spawn", "--workers", "2") as program:
        before = set(program.children())
        with Load(program.port, keep_alive=True) as load:
            program.signal(signal.SIGHUP)
            eventually(lambda: not before & set(program.children()), "the old workers' end")
            load.more()
        assert not load.failures
        assert program.pids(2) == set(program.children())
        program.signal(signal.SIGTERM)
        assert program.wait() == 0


@pytest.mark.parametrize("app", APPS)
def test_a_killed_worker_is_replaced_and_its_requests_stay_counted(app: str) -> None:
    with running(app, "--spawn", "--workers", "2", "--metrics") as program:
        before = set(program.children())
        with Load(program.port) as load:
            os.kill(min(before), signal.SIGKILL)
            eventually(lambda: len(set(program.children()) - before) == 1, "the replacement")
            load.more()
        assert len(load.failures) <= 4  # one for each connection at most
        assert program.pids(2) == set(program.children())
        page = get(program.port, "/metrics")
        assert "towline_worker_deaths_total 1" in page
        lines = [line for line in page.splitlines() if line.startswith("towline_requests_total")]
        assert sum(float(line.rpartition(" ")[2]) for line in lines) >= len(load.responses)


def test_workers_are_recycled() -> None:
    with running("apps:asgi", "--spawn", "--limit-max-requests", "20") as program:
        before = set(program.children())
        with Load(program.port, keep_alive=True) as load:
            eventually(lambda: not before & set(program.children()), "the end of the first worker")
            load.more()
        assert not load.failures


def test_a_stuck_worker_is_replaced_and_its_stack_is_logged() -> None:
    with running("apps:asgi", "--spawn", "--timeout-worker-healthcheck", "1") as program:
        before = set(program.children())
        with connect(program.port) as conn:
            conn.send("/block")
            eventually(lambda: "is stuck" in program.log, "the notice")
            eventually(lambda: set(program.children()) - before, "the replacement")
        eventually(lambda: "apps.py" in program.log, "the stack")


def test_a_worker_ends_when_its_supervisor_was_killed() -> None:
    with running("apps:asgi", "--spawn", "--workers", "2") as program:
        workers = program.children()
        os.kill(program.pid, signal.SIGKILL)
        for worker in workers:
            eventually(lambda worker=worker: not _runs(worker), "the end of the worker")


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_worker_is_a_fresh_interpreter_with_the_state_of_the_server(tmp_path: Path) -> None:
    write(tmp_path, "one")
    options = ["--env", "GREETING=hello", "--umask", "027"]
    found = {}
    for mode in ("--spawn", "--no-spawn"):
        with running("modules:app", mode, *options, cwd=tmp_path) as program:
            paths = ("/supervisor", "/arguments", "/first", "/variable", "/umask")
            found[mode] = {path: get(program.port, path) for path in paths}
    assert found["--spawn"].pop("/supervisor") == "False"
    assert found["--no-spawn"].pop("/supervisor") == "True"
    assert found["--spawn"] == found["--no-spawn"]
    assert found["--spawn"]["/variable"] == "hello"


def test_a_worker_keeps_no_descriptor_of_its_start(tmp_path: Path) -> None:
    write(tmp_path, "one")
    counts = []
    for mode in ("--spawn", "--no-spawn"):
        with running("modules:app", mode, cwd=tmp_path) as program:
            counts.append(get(program.port, "/descriptors").count(","))
    spawned, forked = counts
    assert spawned <= forked


def hook(*_: Any) -> None: ...


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"app": hook}, "spawn: the application is an object"),
        ({"app": "__main__:app"}, "spawn: __main__:app is in the program that was started"),
        (
            {"app": "apps:asgi", "hooks": Hooks({"post_fork": hook}, {})},
            "forked workers only \\(post_fork\\)",
        ),
        ({"app": "apps:asgi", "log_config": {"handlers": lambda: 0}}, "cannot be passed to another process"),
    ],
)
def test_what_cannot_be_spawned(
    options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=message):
        spawned.resolved(ServerConfig(spawn=True, **options))
    monkeypatch.setattr(sys, "platform", "darwin")
    assert spawned.resolved(ServerConfig(**options)).spawn is False


def test_the_default_is_that_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    for platform, is_on in (("linux", False), ("darwin", True)):
        monkeypatch.setattr(sys, "platform", platform)
        hooks = Hooks({"when_ready": hook}, {})
        assert spawned.resolved(ServerConfig("apps:asgi", hooks=hooks)).spawn is is_on
        assert spawned.resolved(ServerConfig("apps:asgi", spawn=not is_on)).spawn is not is_on


@pytest.mark.parametrize(("platform", "spawn"), [("linux", True), ("darwin", None)])
def test_preload_is_refused(platform: str, spawn: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(ConfigError, match="--no-spawn forks them"):
        ServerConfig("apps:asgi", preload=True, spawn=spawn)
    assert ServerConfig("apps:asgi", preload=True, spawn=False).preload
