"""The files in docs/platforms.md: their commands run as they stand, and their probes and times fit the server."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.debug_adapter import DebugAdapter
from tests.support.process import MAX_WAIT, children, eventually, request
from tests.support.programs import free_port

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = (Path(__file__).parents[2] / "docs/platforms.md").read_text()
APPLICATION = """\
async def app(scope, receive, send):
    assert scope["type"] == "http"
    value = 41
    body = str(value).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": body})
"""
EXIT = 6
"""Seconds after the drain within which workers exit."""
DEFAULT_GRACE = 30.0


def file(name: str) -> str:
    """The block whose first line names this file."""
    found = re.search(rf"^```\w+\n# {re.escape(name)}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found, name
    return found[1]


def procfile() -> list[str]:
    return shlex.split(file("Procfile").removeprefix("web: "))


def cloud_run() -> Any:
    return yaml.safe_load(file("service.yaml"))["spec"]["template"]["spec"]["containers"][0]


def fly() -> Any:
    return tomllib.loads(file("fly.toml"))


def app_runner() -> Any:
    return yaml.safe_load(file("apprunner.yaml"))["run"]


def compose() -> Any:
    return yaml.safe_load(file("compose.yaml"))["services"]["app"]


def period(command: list[str], flag: str, default: float) -> float:
    return float(command[command.index(flag) + 1]) if flag in command else default


def seconds_to_stop(command: list[str]) -> float:
    delay = period(command, "--drain-delay", 0.0)
    return delay + period(command, "--timeout-graceful-shutdown", DEFAULT_GRACE) + EXIT


class Served:
    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process, self.port, self._log = process, port, log

    @property
    def log(self) -> str:
        return self._log.read_text()


@contextlib.contextmanager
def served(command: list[str], folder: Path, port: int, **variables: str) -> Iterator[Served]:
    """Runs the command where an application is, until it responds at all addresses of the machine."""
    (folder / "main.py").write_text(APPLICATION)
    program = command[2:] if command[:2] == ["python3", "-m"] else command
    assert program[:2] == ["towline", "serve"]
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", *program],
            cwd=folder,
            stdout=out,
            stderr=out,
            env={**os.environ, **variables},
        )
    found = Served(process, port, log)
    try:
        eventually(lambda: f"http://0.0.0.0:{port} " in found.log or process.poll() is not None, "the start")
        assert process.poll() is None, found.log
        assert request(port, "/").body == b"41"
        yield found
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)  # no test waits for a delay
        assert process.wait(MAX_WAIT) == 0, found.log
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGQUIT)
            process.wait(MAX_WAIT)


def test_the_procfile(tmp_path: Path) -> None:
    port = free_port()
    with served(procfile(), tmp_path, port, PORT=str(port), WEB_CONCURRENCY="2") as server:
        assert "2 workers" in server.log
        assert len(children(server.process.pid)) == 2
    assert seconds_to_stop(procfile()) < 30


def test_the_service_of_cloud_run(tmp_path: Path) -> None:
    container, port = cloud_run(), free_port()
    command = [*container["command"], *container["args"]]
    with served(command, tmp_path, port, PORT=str(port)):
        for probe in (container["startupProbe"], container["livenessProbe"]):
            assert request(port, probe["httpGet"]["path"]).body == b"ok"
    assert seconds_to_stop(command) < 10


def test_the_app_of_fly(tmp_path: Path) -> None:
    config, port = fly(), free_port()
    command = shlex.split(config["processes"]["app"])
    [check] = config["http_service"]["checks"]
    assert config["env"]["PORT"] == str(config["http_service"]["internal_port"])
    with served(command, tmp_path, port, PORT=str(port)) as server:
        assert request(port, check["path"]).body == b"ok"
        server.process.send_signal(getattr(signal, config["kill_signal"]))
        eventually(lambda: request(port, check["path"]).status == 503, "a check that fails")
        assert request(port, "/").status == 200
    assert period(command, "--drain-delay", 0) > float(check["interval"].removesuffix("s"))
    assert seconds_to_stop(command) < float(config["kill_timeout"].removesuffix("s"))


def test_the_service_of_app_runner(tmp_path: Path) -> None:
    run, port = app_runner(), free_port()
    with served(shlex.split(run["command"]), tmp_path, port, **{run["network"]["env"]: str(port)}):
        assert request(port, "/healthz/ready").body == b"ok"


def test_the_service_of_compose_and_its_health_check(tmp_path: Path) -> None:
    service, port = compose(), free_port()
    assert service["ports"] == ["8000:8000"]
    command = [str(port) if word == "8000" else word for word in service["command"]]
    kind, *check = [word.replace(":8000/", f":{port}/") for word in service["healthcheck"]["test"]]
    assert kind == "CMD"

    def status() -> int:
        variables = {**os.environ, "HTTP_PROXY": "http://127.0.0.1:9", **service["environment"]}
        run = [sys.executable, "-m", *check]
        return subprocess.run(run, capture_output=True, timeout=MAX_WAIT, env=variables).returncode

    with served([*command, "--drain-delay", "600"], tmp_path, port) as server:
        assert status() == 0
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: request(port, "/healthz").status == 503, "a check that fails")
        assert status() == 22
        for worker in children(server.process.pid):
            os.kill(worker, signal.SIGSTOP)
        assert status() == 28
        for worker in children(server.process.pid):
            os.kill(worker, signal.SIGCONT)
    assert status() == 7
    assert seconds_to_stop(command) < float(service["stop_grace_period"].removesuffix("s"))
    limit = float(service["healthcheck"]["timeout"].removesuffix("s"))
    assert float(check[check.index("--timeout") + 1]) < limit


def launch() -> Any:
    found = re.search(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found
    [configuration] = json.loads(found[1])["configurations"]
    return configuration


@pytest.mark.parametrize("workers", [1, 2])
def test_a_debugger_stops_in_a_worker(workers: int, tmp_path: Path) -> None:
    """debugpy announces each child, and the editor opens a session for it, as `subProcess` says."""
    pytest.importorskip("debugpy")
    configuration = launch()
    arguments = configuration["args"]
    if workers > 1:
        arguments = [word for word in arguments if word != "--reload"] + ["--workers", str(workers)]
    (tmp_path / "main.py").write_text(APPLICATION)
    own, port = free_port(), free_port()
    debugpy = [sys.executable, "-m", "debugpy", "--listen", f"127.0.0.1:{own}", "--wait-for-client"]
    command = [*debugpy, "-m", configuration["module"], *arguments, "--port", str(port)]
    source = str(tmp_path / "main.py")
    sessions: list[DebugAdapter] = []
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        parent = DebugAdapter(own)
        parent.attach(
            source, 4, subProcess=configuration["subProcess"], justMyCode=configuration["justMyCode"]
        )
        for _ in range(2):  # two workers, or a worker and the watcher of files
            child = parent.event("debugpyAttach")
            sessions.append(DebugAdapter(child["connect"]["port"]))
            sessions[-1].attach(source, 4, **child)
        bodies: list[bytes] = []
        eventually(lambda: _accepts(port), "the server")
        client = threading.Thread(target=lambda: bodies.append(request(port, "/").body))
        client.start()
        eventually(lambda: [one for one in sessions if one.stopped is not None], "the breakpoint")
        [session] = [one for one in sessions if one.stopped is not None]
        thread = session.stopped
        frame = session.request("stackTrace", threadId=thread)["stackFrames"][0]
        assert (frame["name"], frame["line"]) == ("app", 4)
        session.request("setExpression", expression="value", value="42", frameId=frame["id"])
        session.request("continue", threadId=thread)
        client.join(MAX_WAIT)
        assert bodies == [b"42"]
        process.terminate()
        assert process.wait(MAX_WAIT) == 0
    finally:
        process.kill()
        process.wait(MAX_WAIT)


def _accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False
