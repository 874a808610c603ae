"""Requests through real proxies with the files of deploy/: nginx, HAProxy and Caddy."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.sync.client import connect as connect_websocket

from tests.support.feature_server import samples
from tests.support.posting import Posting
from tests.support.process import MAX_WAIT, Program, eventually, running
from tests.support.proxies import SETUPS, Setup

HERE = Path(__file__).parent
CLIENT = "127.0.0.2"
"""An address that is not a trusted proxy."""
UPLOAD = bytes(range(256)) * (8 << 12)
RELOADS = int(os.environ.get("TOWLINE_RELOADS", "2"))


class Deployment:
    """A server with two workers on a Unix socket, and the port of the proxy in front of it."""

    def __init__(self, program: Program, port: int, setup: Setup) -> None:
        self.program, self.port, self.setup = program, port, setup

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=MAX_WAIT, source_address=(CLIENT, 0)
        )

    def metrics(self) -> dict[str, float]:
        [address] = set(re.findall(r"http://\S+/metrics", self.program.log))
        with urllib.request.urlopen(address, timeout=MAX_WAIT) as page:
            return samples(page.read().decode())


@pytest.fixture(scope="module", params=SETUPS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    setup, folder = SETUPS[request.param], tmp_path_factory.mktemp("proxy")
    upstream = f"unix:{folder}/http.sock"
    options = ["--workers", "2", "--metrics-address", "127.0.0.1:0", "--metrics", *setup.server_options]
    binds = ["--bind", upstream, "--bind", "127.0.0.1:0"]
    with (
        running("apps:app", "--lifespan", "off", *binds, *options, cwd=HERE) as program,
        setup.running(upstream, folder) as port,
    ):
        yield Deployment(program, port, setup)


def test_the_application_sees_the_client_scheme_host_and_version(served: Deployment) -> None:
    connection = served.connect()
    forged = {"X-Forwarded-For": "203.0.113.9", "X-Forwarded-Proto": "https"}
    for headers in ({}, forged):
        connection.request("GET", "/seen", headers={"Host": "example.test:81", **headers})
        expected = f"http {CLIENT} example.test:81 {served.setup.http_version}"
        assert connection.getresponse().read().decode() == expected
    connection.close()


def test_an_event_stream_is_not_buffered(served: Deployment, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    connection = served.connect()
    connection.request("GET", f"/events?{gate}")
    response = connection.getresponse()
    assert response.headers["content-type"] == "text/event-stream"
    # The application sends nothing more yet: a proxy that waits for more, or for the end, fails by timeout.
    assert response.readline() == b"data: first\n"
    gate.touch()
    assert [response.readline(), response.readline()] == [b"\n", b"data: next\n"]
    response.close()
    connection.close()
    eventually(lambda: _in_flight(served) == 0, "the application's notice that the client has left")


def _in_flight(served: Deployment) -> float:
    return served.metrics()["towline_requests_in_flight"]


@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunked"])
def test_an_upload_of_8_mib_arrives_whole(served: Deployment, is_chunked: bool) -> None:
    connection = served.connect()
    body = (UPLOAD[at : at + 65536] for at in range(0, len(UPLOAD), 65536)) if is_chunked else UPLOAD
    connection.request("POST", "/upload", body=body, encode_chunked=is_chunked)
    expected = f"{8 << 20} {hashlib.sha256(UPLOAD).hexdigest()}"
    assert connection.getresponse().read().decode() == expected
    connection.close()


def test_websocket_messages_pass_both_ways(served: Deployment) -> None:
    if served.setup.is_go_http2:
        pytest.skip("Caddy passes WebSockets to an upstream of HTTP/1.1 only")
    with connect_websocket(f"ws://127.0.0.1:{served.port}/", open_timeout=MAX_WAIT) as websocket:
        for message in ("text", b"binary", "x" * 100_000):
            websocket.send(message)
            assert websocket.recv(MAX_WAIT) == message


@pytest.mark.parametrize("think_time", [0.0, 0.05])
def test_reloads_lose_no_request_of_kept_connections(served: Deployment, think_time: float) -> None:
    program, connections = served.program, "towline_connections_total"
    opened = served.metrics()[connections]
    body = b"" if served.setup.is_go_http2 else b"body"
    with Posting(served.port, 16, think_time, body) as posting:
        for _ in range(RELOADS):
            before = set(program.children())
            program.signal(signal.SIGHUP)
            eventually(lambda: not before & set(program.children()), "the old workers' end")  # noqa: B023
            posting.more()
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            posting.more()
    assert not posting.lost
    assert posting.responses > 4 * (served.metrics()[connections] - opened), "no connection was kept"
