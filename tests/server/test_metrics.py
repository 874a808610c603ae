"""The Prometheus page of a running server."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.support.feature_server import ask, every_kind, exchange, samples, serving
from tests.support.http2_client import Client
from tests.support.waiting import until


@every_kind
def test_the_page_has_its_path_and_is_off_by_default(kind: str) -> None:
    with serving(kind, metrics=True) as server:
        answer = ask(server, "/metrics")
        assert answer.status == 200
        assert answer.field("content-type") == "text/plain; version=0.0.4; charset=utf-8"
        assert "towline_requests_in_flight" in samples(answer.body.decode())
        assert ask(server, "/metrics", "Content-Length: 0", method="POST").status == 405
        assert ask(server, "/other").body == b"/other"
    with serving(kind) as server:
        assert ask(server, "/metrics").body == b"/metrics"


def test_an_address_of_its_own() -> None:
    """The page is there and nowhere else, and there is nothing else there."""
    with serving("asgi", metrics=True, metrics_address="127.0.0.1:0") as server:
        assert ask(server, "/metrics").body == b"/metrics"


PROGRAM = """
async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 404 if scope["path"] == "/x" else 200, "headers": []})
    await send({"type": "http.response.body", "body": b"12345"})
"""


def test_any_worker_answers_for_all(tmp_path: Path) -> None:
    (tmp_path / "counted.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "towline", "serve", "counted:app", "--port", "0", "--workers", "2"]
    command += ["--metrics", "--metrics-address", "127.0.0.1:0", "--lifespan", "off", "--interface", "asgi"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        addresses: list[str] = []
        while len(addresses) < 2:
            line = process.stderr.readline()
            assert line, "ended early"
            addresses += re.findall(r"127\.0\.0\.1:(\d+)", line)
        ports = [int(port) for port in dict.fromkeys(addresses)]
        application = ("127.0.0.1", ports[0])
        for path in ["/"] * 30 + ["/x"] * 3:
            data = f"GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n".encode()
            assert exchange(application, data).body == b"12345"
        with Client(application) as client:  # streams of one connection, over HTTP/2
            client.finish(*[client.begin("GET", "/") for _ in range(20)])
        found = until(lambda: _counted(ports[1], 53))
        assert found['towline_requests_total{method="GET",status="2xx"}'] == 50
        assert found['towline_requests_total{method="GET",status="4xx"}'] == 3
        assert found["towline_request_duration_seconds_count"] == 53
        assert found["towline_connections_total"] == 34
        assert found["towline_sent_bytes_total"] > 33 * 40
        assert found["towline_received_bytes_total"] >= 33 * len(
            "GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
        )
        workers = [series for series in found if series.startswith("towline_worker_pid")]
        assert len(workers) == 2
        for worker in (0, 1):
            assert found[f'towline_worker_resident_bytes{{worker="{worker}"}}'] > 1_000_000
        assert urllib.request.urlopen(f"http://127.0.0.1:{ports[0]}/metrics").read() == b"12345"
        not_metrics = exchange(
            ("127.0.0.1", ports[1]), b"GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"
        )
        assert not_metrics.status == 404
    finally:
        process.terminate()
        process.communicate(timeout=20)


def _counted(port: int, requests: int) -> dict[str, float]:
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    found = samples(page)
    counts = [value for series, value in found.items() if series.startswith("towline_requests_total")]
    return found if sum(counts) >= requests else {}
