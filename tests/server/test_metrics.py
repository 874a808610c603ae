"""The Prometheus page of a running server."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import trustme
from cryptography import x509
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from tests.support.feature_server import every_kind, exchange, fetch, samples, serving
from tests.support.http2_client import Client
from tests.support.waiting import until


@every_kind
def test_the_page_has_its_path_and_is_off_by_default(kind: str) -> None:
    with serving(kind, metrics=True) as server:
        response = fetch(server, "/metrics")
        assert response.status == 200
        assert response.field("content-type") == "text/plain; version=0.0.4; charset=utf-8"
        assert "towline_requests_in_flight" in samples(response.body.decode())
        assert fetch(server, "/metrics", "Content-Length: 0", method="POST").status == 405
        assert fetch(server, "/other").body == b"/other"
    with serving(kind) as server:
        assert fetch(server, "/metrics").body == b"/metrics"


def test_an_address_of_its_own() -> None:
    """The page is there and nowhere else, and there is nothing else there."""
    with serving("asgi", metrics=True, metrics_address="127.0.0.1:0") as server:
        assert fetch(server, "/metrics").body == b"/metrics"


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
        assert found['towline_requests_total{method="GET",version="1.1",status="200"}'] == 30
        assert found['towline_requests_total{method="GET",version="2",status="200"}'] == 20
        assert found['towline_requests_total{method="GET",version="1.1",status="404"}'] == 3
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


OPENMETRICS = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"


@every_kind
def test_the_reference_parsers_read_both_formats(kind: str) -> None:
    with serving(kind, metrics=True) as server:
        for _ in range(3):
            fetch(server, "/a")
        fetch(server, "/b", method="HEAD")
        exchange((server.host, server.port), b"BAD\r\n\r\n")
        text = fetch(server, "/metrics")
        assert text.field("content-type") == "text/plain; version=0.0.4; charset=utf-8"
        assert text.field("vary") == "accept"
        modern = fetch(server, "/metrics", f"Accept: {OPENMETRICS}")
        assert modern.field("content-type") == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    for parse, page in [(parser.text_string_to_metric_families, text), (openmetrics, modern)]:
        families = {family.name: family for family in parse(page.body.decode())}
        found = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families.values()
            for sample in family.samples
        }

        def value(name: str, found: dict[Any, float] = found, **labels: str) -> float | None:
            return found.get((name, tuple(sorted(labels.items()))))

        assert value("towline_requests_total", method="GET", version="1.1", status="200") in (3, 4)
        assert value("towline_requests_total", method="HEAD", version="1.1", status="200") == 1
        assert value("towline_requests_total", method="other", version="1.1", status="400") == 1
        assert value("towline_refused_total", reason="malformed") == 1
        assert value("towline_connections_total") in (6, 7)
        assert value("towline_websockets_open") == 0
        assert value("towline_workers_alive") == 1
        [build] = (
            families["towline_build"].samples
            if "towline_build" in families
            else families["towline_build_info"].samples
        )
        assert build.value == 1
        assert build.labels["python"] == ".".join(map(str, sys.version_info[:3]))
        assert families["towline_request_duration_seconds"].type == "histogram"


def openmetrics(page: str) -> Any:
    return openmetrics_parser.text_string_to_metric_families(page)


def test_the_figures_of_tls() -> None:
    """A failed handshake is counted, and the end of the certificate's validity is the certificate's."""
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    with certificate.private_key_and_cert_chain_pem.tempfile() as path:
        expiry = x509.load_pem_x509_certificate(Path(path).read_bytes()).not_valid_after_utc.timestamp()
        with serving("asgi", ssl_certfile=path, metrics=True) as server:
            with socket.create_connection((server.host, server.port), timeout=10) as client:
                client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                while client.recv(65536):
                    pass
            tls = ssl.create_default_context()
            authority.configure_trust(tls)

            def page() -> dict[str, float]:
                with urllib.request.urlopen(
                    f"https://localhost:{server.port}/metrics", context=tls
                ) as response:
                    return samples(response.read().decode())

            until(lambda: page()["towline_tls_handshake_failures_total"] == 1)
            assert page()['towline_tls_certificate_expiry_timestamp_seconds{worker="0"}'] == expiry


async def blocking(scope: Any, receive: Any, send: Any) -> None:
    """Blocks the loop, as a mistake in an application would."""
    time.sleep(0.3 if scope["path"] == "/block" else 0)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"done"})


def test_a_blocked_loop_is_seen_in_lag_and_queue_wait() -> None:
    """Requests of one turn wait for each other, and a timer that is due meanwhile is late. No supervisor is needed."""
    with serving("asgi", app=blocking, metrics=True) as server:
        with contextlib.ExitStack() as stack:
            connect = socket.create_connection
            conns = [stack.enter_context(connect((server.host, server.port), timeout=20)) for _ in range(4)]
            # A connection that is not yet accepted waits in the kernel, where the server cannot see it.
            for path in (b"/", b"/block"):
                for conn in conns:
                    conn.sendall(b"GET %s HTTP/1.1\r\nHost: a\r\n\r\n" % path)
                for conn in conns:
                    data = b""
                    while b"done" not in data:
                        part = conn.recv(65536)
                        assert part
                        data += part

        def lagged() -> dict[str, float]:
            found = samples(fetch(server, "/metrics").body.decode())
            return found if found["towline_loop_lag_seconds_sum"] >= 0.05 else {}

        found = until(lagged)
        assert found["towline_loop_lag_seconds_count"] >= 2
        assert found["towline_queue_wait_seconds_count"] == 8
        assert 0.3 <= found["towline_queue_wait_seconds_sum"] <= (1 + 2 + 3) * 0.3 + 1
