"""Requests that the server refuses itself: in the access log, in the metrics, and in the server log at a bounded rate."""

from __future__ import annotations

import json
import logging
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from towline.testing import serve

from tests.support.feature_server import KINDS, every_kind, fetch, parse, serving
from tests.support.http2_client import Client
from tests.support.nightly import by_night
from tests.support.waiting import until

HEAD = b"GET /path?q=1 HTTP/1.1\r\nHost: a\r\n"
REFUSED = {
    "malformed": (b"GET /path HTTP/1.1\r\nHost: a\r\nBad Name: x\r\n\r\n", 400, "/path"),
    "malformed-port": (b"GET /path HTTP/1.1\r\nHost: a:99999\r\n\r\n", 400, "/path"),
    "no-request": (b"\x16\x03\x01\x02\r\n\r\n", 400, "\\x16\\x03\\x01\\x02"),
    "version": (b"GET /path HTTP/3.7\r\n\r\n", 505, "/path"),
    "target_too_long": (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", 414, "/" + "a" * 1023),
    "headers_too_large": (HEAD + b"Cookie: " + b"c" * 9000 + b"\r\n\r\n", 431, "/path"),
    "expectation": (HEAD + b"Expect: magic\r\n\r\n", 417, "/path"),
    "not_implemented": (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501, "/path"),
    "body_too_large": (HEAD + b"Content-Length: 5000\r\n\r\n", 413, "/path"),
    "timeout": (b"GET /path HTTP/1.1\r\nHost: a\r\nx", 408, "/path"),
    "not_implemented-connect": (b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", 501, "a:443"),
}


def send(port: int, wire: bytes) -> bytes:
    """Everything that the server sends until it closes, or until it has sent a whole response."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as conn:
        conn.sendall(wire)
        data = b""
        while part := conn.recv(65536):
            data += part
            if b"\r\n\r\n" in data and len(parse(data).body) == int(parse(data).field("content-length") or 0):
                break
        return data


def metric(server: Any, series: str) -> float:
    page = fetch(server, "/metrics").body.decode()
    found = re.search(rf"^{re.escape(series)} (\S+)$", page, re.M)
    assert found, f"no {series} in {page}"
    return float(found[1])


@every_kind
@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_is_logged_counted_and_reported(
    kind: str, case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wire, status, path = REFUSED[case]
    reason = case.partition("-")[0] if case != "no-request" else "malformed"
    log = tmp_path / "access.log"
    caplog.set_level(logging.DEBUG, "towline.server")
    logging.getLogger("towline").propagate = True
    options = {"timeout_request_header": 0.5, "limit_request_body": 1000}
    with serving(kind, access_log=str(log), access_log_format="json", metrics=True, **options) as server:
        response = parse(send(server.port, wire))
        assert response.status == status
        assert response.field("date"), "RFC 9110 6.6.1: a response of an origin server has a date"
        assert metric(server, f'towline_refused_total{{reason="{reason}"}}') == 1
        others = fetch(server, "/metrics").body.decode()
        total = sum(float(n) for n in re.findall(r"^towline_refused_total\{.*\} (\S+)$", others, re.M))
        assert total == 1
        until(lambda: reason in caplog.text)
    first = json.loads(log.read_text().splitlines()[0])
    assert (first["status"], first["refused"], first["client"]) == (status, reason, "127.0.0.1")
    assert first["path"].encode("unicode_escape").decode() == path
    assert first["refused_rule"]
    [record] = [record for record in caplog.records if "refused" in record.getMessage()]
    assert record.levelno == logging.WARNING
    assert first["refused_rule"] in record.getMessage()
    assert "from 127.0.0.1" in record.getMessage()


@pytest.mark.parametrize("kind", ["asgi", *by_night(["wsgi", "wsgi-threads"])])
def test_the_server_log_has_ten_lines_and_a_count(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("towline").propagate = True
    with serving(kind) as server:
        for _ in range(25):
            assert send(server.port, b"BAD\r\n\r\n").startswith(b"HTTP/1.1 400 ")
        until(lambda: "15 more with the reason malformed" in caplog.text, 20)
    lines = [line for line in caplog.text.splitlines() if "refused with 400" in line]
    assert len(lines) == 10


@every_kind
def test_a_body_that_grows_too_large_is_one_line_with_413(kind: str, tmp_path: Path) -> None:
    """ASGI applications have the request already, WSGI applications are not called: one line and one count either way."""
    log = tmp_path / "access.log"

    async def asgi(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass

    def wsgi(environ: Any, start_response: Any) -> Any:
        environ["wsgi.input"].read()
        start_response("200 OK", [])
        return [b"read"]

    described = dict(KINDS[kind], lifespan="off")
    app = asgi if described.pop("app") is KINDS["asgi"]["app"] else wsgi
    body = b"".join(b"8000\r\n" + b"x" * 0x8000 + b"\r\n" for _ in range(8)) + b"0\r\n\r\n"
    options = {
        "access_log": str(log),
        "access_log_format": "%(s)s %(refused)s",
        "limit_request_body": 100_000,
        "metrics": True,
    }
    with serve(app, **described, **options) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as conn:
            conn.sendall(b"POST /up HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
            assert conn.recv(65536).startswith(b"HTTP/1.1 413 ")
        until(log.read_text)
        assert log.read_text() == "413 body too large\n"
        assert metric(server, 'towline_refused_total{reason="body_too_large"}') == 1
        assert metric(server, 'towline_requests_total{method="POST",version="1.1",status="413"}') == 1
        assert metric(server, "towline_requests_in_flight") <= 1  # the page itself


@pytest.mark.parametrize("kind", ["asgi", "wsgi-threads"])
def test_http2_refusals(kind: str, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    with serving(kind, access_log=str(log), access_log_format="json", metrics=True) as server:
        with Client((server.host, server.port)) as client:
            client.conn.config.validate_outbound_headers = client.conn.config.normalize_outbound_headers = (
                False
            )
            stream = client.begin("GET", "/bad", [("Upper", "x")])
            client.until(lambda: client.exchanges[stream].reset is not None)
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as conn:
            settings = b"\0\0\0\4\0\0\0\0\0"
            conn.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + b"\0\0\0\0\0\0\0\0\1")
            while conn.recv(65536):
                pass
        until(lambda: len(log.read_text().splitlines()) >= 2)
        assert metric(server, 'towline_refused_total{reason="http2_protocol"}') == 2
    bad, broken = (json.loads(line) for line in log.read_text().splitlines()[:2])
    assert (bad["path"], bad["refused"], bad["status"]) == ("/bad", "http2_protocol", None)
    assert "RFC 9113" in broken["refused_rule"]


def test_a_handshake_with_content_does_not_reach_the_application(tmp_path: Path) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("called")

    wire = (
        b"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nContent-Length: 2\r\n\r\nhi"
    )
    log = tmp_path / "access.log"
    with serve(
        app, interface="asgi", lifespan="off", access_log=str(log), access_log_format="json"
    ) as server:
        response = parse(send(server.port, wire))
        assert (response.status, response.body) == (400, b"content in a WebSocket handshake (RFC 6455 4.1)")
    line = json.loads(log.read_text())
    assert (line["status"], line["refused"], line["path"]) == (400, "websocket", "/ws")


def test_connect_does_not_reach_an_asgi_application() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("called")

    with serve(app, interface="asgi", lifespan="off") as server:
        assert send(server.port, b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n").startswith(b"HTTP/1.1 501 ")


@every_kind
def test_no_date_if_it_is_switched_off(kind: str) -> None:
    with serving(kind, date_header=False) as server:
        assert b"date:" not in send(server.port, b"BAD\r\n\r\n")


@every_kind
def test_whitespace_in_chunk_extensions(kind: str) -> None:
    wire = HEAD.replace(b"GET", b"POST") + b"Transfer-Encoding: chunked\r\n\r\n"
    with serving(kind) as server:
        good = wire + b"5; some; parameters=stuff\r\nhello\r\n0\r\n\r\n"
        assert send(server.port, good).startswith(b"HTTP/1.1 200 ")
