"""`--health-path`: health checks that the server handles without the application."""

from __future__ import annotations

import re
import signal
import time

import pytest

from tests.support.process import Program, connect, eventually, request, running

APPS = [
    pytest.param(["apps:asgi"], id="asgi"),
    pytest.param(["apps:wsgi"], id="wsgi"),
    pytest.param(["apps:wsgi", "--threads", "2"], id="wsgi-threads"),
]


def _status(program: Program, path: str) -> tuple[int, bytes]:
    response = request(program.port, path)
    return response.status, response.body


@pytest.mark.parametrize("app", APPS)
def test_health_of_a_serving_worker(app: list[str]) -> None:
    with running(*app, "--health-path", "/healthz") as program:
        for path in ("/healthz", "/healthz/ready", "/healthz/live", "/healthz?probe=1"):
            assert _status(program, path) == (200, b"ok")
        assert _status(program, "/healthz/other") == (200, b"")  # the application's
        assert _status(program, "/healthzz") == (200, b"")
        with connect(program.port) as conn:
            conn.sock.sendall(b"POST /healthz HTTP/1.1\r\nhost: test\r\ncontent-length: 0\r\n\r\n")
            assert conn.response().status == 405
            conn.sock.sendall(b"HEAD /healthz HTTP/1.1\r\nhost: test\r\n\r\n")
            head = conn.head()
            assert "200 ok" in head
            assert "cache-control: no-store" in head
            assert conn.get("/pid").status == 200


@pytest.mark.parametrize("app", [APPS[0], APPS[2]])
def test_a_stop_is_not_ready_but_alive(app: list[str]) -> None:
    with running(*app, "--workers", "2", "--health-path", "/healthz", "--timeout-drain-idle", "5") as program:
        with connect(program.port) as busy, connect(program.port) as probe, connect(program.port) as live:
            assert probe.get("/healthz").status == live.get("/healthz/live").status == 200
            busy.send("/sleep/3")
            time.sleep(0.2)
            program.signal(signal.SIGTERM)
            eventually(lambda: "stopping" in program.log, "the log")
            time.sleep(0.5)
            response = probe.get("/healthz")
            assert (response.status, response.body, response.closes) == (503, b"draining", True)
            response = live.get("/healthz/live")
            assert (response.status, response.closes) == (200, True)
            assert busy.response().status == 200


def test_a_reload_stays_ready() -> None:
    """Probes on a connection of an old worker report the new worker's readiness."""
    with running("apps:asgi", "--health-path", "/healthz", "--timeout-drain-idle", "10") as program:
        before = set(program.children())
        with connect(program.port) as probe:
            assert probe.get("/healthz").status == 200
            program.signal(signal.SIGHUP)
            eventually(lambda: program.pids(1, 5) - before, "the new worker")
            time.sleep(0.2)
            response = probe.get("/healthz")
            assert (response.status, response.closes) == (200, True)


def test_health_on_the_metrics_address_and_under_load() -> None:
    """A request that blocks the threads of a WSGI worker does not block its health."""
    options = ["--threads", "2", "--health-path", "/healthz", "--metrics-address", "127.0.0.1:0"]
    with running("apps:wsgi", *options) as program:
        found = re.search(r"127\.0\.0\.1:(\d+)/metrics", program.log)
        assert found
        with connect(program.port) as one, connect(program.port) as other:
            for conn in (one, other):
                conn.send("/sleep/2")
            time.sleep(0.2)
            started = time.monotonic()
            assert request(int(found[1]), "/healthz").body == b"ok"
            assert _status(program, "/healthz") == (200, b"ok")
            assert time.monotonic() - started < 1
            assert request(int(found[1]), "/other").status == 404


def test_without_the_option_the_path_goes_to_the_application() -> None:
    with running("apps:asgi") as program:
        assert _status(program, "/healthz") == (200, b"")
