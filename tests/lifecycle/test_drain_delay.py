"""`--drain-delay`: after SIGTERM readiness fails, and the server serves on until load balancers have noticed."""

from __future__ import annotations

import os
import signal
import socket
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import towline
from websockets.sync.client import connect as connect_websocket

from tests.support.process import HERE, Load, Program, connect, eventually, request, running
from tests.support.server_processes import Certified

APPS = [
    pytest.param(["apps:asgi"], id="asgi"),
    pytest.param(["apps:asgi", "--workers", "2"], id="asgi-workers"),
    pytest.param(["apps:wsgi"], id="wsgi"),
    pytest.param(["apps:wsgi", "--threads", "2", "--workers", "2"], id="wsgi-threads"),
]
LONG = ("--drain-delay", "600", "--health-path", "/healthz")


def ready(program: Program) -> int:
    return request(program.port, "/healthz").status


@contextmanager
def leaving(*options: str) -> Iterator[Program]:
    """A server within its delay, which no test waits for."""
    with running(*options, *LONG) as program:
        assert ready(program) == 200
        program.signal(signal.SIGTERM)
        eventually(lambda: ready(program) == 503, "a readiness check that fails")
        yield program


@pytest.mark.parametrize("app", APPS)
def test_a_server_that_leaves_serves_and_is_alive_until_a_second_sigterm(app: list[str]) -> None:
    with running(*app, *LONG, "--metrics") as program, connect(program.port) as before:
        assert before.get("/pid").status == 200
        assert b"towline_stopping 0" in request(program.port, "/metrics").body
        program.signal(signal.SIGTERM)
        eventually(lambda: ready(program) == 503, "a readiness check that fails")
        assert before.get("/healthz/ready").body == b"draining"
        assert b"towline_stopping 1" in request(program.port, "/metrics").body
        for _ in range(5):
            assert request(program.port, "/healthz/live").status == 200
            response = request(program.port, "/pid")
            assert (response.status, response.closes) == (200, False)
        assert not before.get("/pid").closes
        program.signal(signal.SIGTERM)
        eventually(lambda: before.get("/pid").closes, "the drain")
        assert program.wait() == 0
        assert "draining in 600 s, or at a second SIGTERM" in program.log


@pytest.mark.parametrize("app", APPS)
def test_the_drain_follows_after_the_delay(app: list[str]) -> None:
    with running(*app, "--drain-delay", "1", "--health-path", "/healthz") as program:
        with Load(program.port) as load:
            started = time.monotonic()
            program.signal(signal.SIGTERM)
            eventually(lambda: ready(program) == 503, "a readiness check that fails")
            load.more()
            load.stop()
        assert not load.failures
        assert program.wait() == 0
        assert 1 <= time.monotonic() - started < 5
        assert (
            program.log.index("stopping") < program.log.index("draining\n") < program.log.index("stopped in")
        )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
def test_other_signals_do_not_wait(number: signal.Signals) -> None:
    with running("apps:asgi", *LONG) as program:
        program.signal(number)
        assert program.wait() == 0
    with leaving("apps:asgi") as program:
        program.signal(number)
        assert program.wait() == 0


def test_a_worker_that_dies_during_the_delay_is_replaced_and_not_ready() -> None:
    with leaving("apps:asgi") as program:
        [worker] = program.children()
        os.kill(worker, signal.SIGKILL)
        assert program.pids(1) != {worker}
        assert ready(program) == 503
        program.signal(signal.SIGHUP)  # too late
        program.signal(signal.SIGTERM)
        assert program.wait() == 0
        assert "reloading" not in program.log


@pytest.mark.parametrize("app", APPS)
def test_sigterm_to_every_process_loses_no_request(app: list[str]) -> None:
    """systemd without KillMode=mixed, and Heroku: the workers drain, and others take their place for the delay."""
    with running(*app, *LONG) as program:
        workers = set(program.children())
        with Load(program.port, keep_alive=True) as load:
            for pid in (*workers, program.pid):
                os.kill(pid, signal.SIGTERM)
            eventually(lambda: not workers & set(program.children()), "the workers' end")
            load.more()
            load.stop()
        assert not load.failures
        assert ready(program) == 503
        program.signal(signal.SIGTERM)
        assert program.wait() == 0


@pytest.mark.parametrize("app", APPS)
def test_a_reload_never_fails_a_readiness_check(app: list[str]) -> None:
    with running(*app, *LONG) as program, Load(program.port, "/healthz", keep_alive=True) as probes:
        for _ in range(2):
            before = set(program.children())
            program.signal(signal.SIGHUP)
            eventually(lambda: not before & set(program.children()), "the old workers' end")  # noqa: B023
            probes.more()
        probes.stop()
        assert not probes.failures


def test_a_server_that_has_not_started_ends_at_once(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(600)\n")
    pid = os.fork()
    if pid == 0:
        os.chdir(tmp_path)
        command = [
            sys.executable,
            "-m",
            "towline",
            "serve",
            "slow:app",
            "--port",
            "0",
            "--pid-file",
            "pid",
            *LONG,
        ]
        os.execv(sys.executable, command)
    eventually((tmp_path / "pid").exists, "the supervisor")
    os.kill(pid, signal.SIGTERM)
    eventually(lambda: os.waitpid(pid, os.WNOHANG)[0], "the end")


HTTP_VERSIONS = {
    "1.1": {"http2": False},
    "2": {"http1": False, "http2": True},
    "3": {"http1": False, "http3": True},
}


@pytest.mark.parametrize("version", HTTP_VERSIONS)
@pytest.mark.parametrize("app", [APPS[1], APPS[3]])
def test_new_connections_of_every_version_are_served(app: list[str], version: str, tmp_path: Path) -> None:
    certified = Certified(tmp_path)
    certified.issue()
    options = ["--ssl-certfile", certified.cert, "--ssl-keyfile", certified.key, "--http3"]
    with running(*app, *LONG, *options) as program:
        url = f"https://127.0.0.1:{program.port}"

        def get(path: str) -> towline.Response:
            with towline.Client(verify=certified.ca, **HTTP_VERSIONS[version]) as client:  # type: ignore[arg-type]
                return client.get(url + path)

        assert get("/healthz").status_code == 200
        program.signal(signal.SIGTERM)
        eventually(lambda: get("/healthz").status_code == 503, "a readiness check that fails")
        response = get("/pid")
        assert (response.status_code, response.http_version) == (200, f"HTTP/{version}")
        assert get("/healthz/live").status_code == 200
        program.signal(signal.SIGTERM)
        assert program.wait() == 0


def test_websockets_open_and_stay_open_during_the_delay() -> None:
    with running("apps:asgi", *LONG) as program:
        url = f"ws://127.0.0.1:{program.port}/"
        with connect_websocket(url) as before:
            program.signal(signal.SIGTERM)
            eventually(lambda: ready(program) == 503, "a readiness check that fails")
            with connect_websocket(url) as later:
                for websocket in (before, later):
                    websocket.send("still here")
                    assert websocket.recv(20) == "still here"
                program.signal(signal.SIGTERM)
                assert program.wait() == 0
        assert before.close_code == 1012


def test_systemd_hears_of_the_stop_at_the_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with leaving("apps:asgi") as program:
            assert systemd.recv(4096).startswith(b"READY=1")
            assert systemd.recv(4096) == b"STOPPING=1\nSTATUS=serving for 600 s while readiness checks fail"
            program.signal(signal.SIGTERM)
            assert program.wait() == 0
            assert systemd.recv(4096) == b"STOPPING=1\nSTATUS=finishing requests in flight"


EMBEDDED = """
    import sys, towline
    from tests.lifecycle import apps
    config = towline.ServerConfig(getattr(apps, sys.argv[1]), port=int(sys.argv[2]), drain_delay=float(sys.argv[3]),
                                  health_path="/healthz", threads=int(sys.argv[4]))
    towline.Server(config).run()
"""


@pytest.mark.parametrize("app", ["asgi", "wsgi"])
@pytest.mark.parametrize("delay", [0.5, 600.0])
def test_a_server_in_a_program_delays_its_drain_too(app: str, delay: float) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    pid = os.fork()
    if pid == 0:
        os.chdir(HERE.parents[1])
        threads = "1" if app == "asgi" else "2"
        script = [sys.executable, "-c", textwrap.dedent(EMBEDDED), app, str(port), str(delay), threads]
        os.execv(sys.executable, script)
    eventually(lambda: _status(port, "/healthz") == 200, "the server")
    os.kill(pid, signal.SIGTERM)
    eventually(lambda: _status(port, "/healthz") in (503, None), "a readiness check that fails")
    if delay > 1:
        assert _status(port, "/pid") == _status(port, "/healthz/live") == 200
        os.kill(pid, signal.SIGTERM)
    ended: list[int] = []
    eventually(lambda: ended.extend(os.waitpid(pid, os.WNOHANG)) or ended[-2], "the end")
    assert os.waitstatus_to_exitcode(ended[-1]) == 0


def _status(port: int, path: str) -> int | None:
    """None if the server does not listen."""
    try:
        return request(port, path).status
    except OSError:
        return None
