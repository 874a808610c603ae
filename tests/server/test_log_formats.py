"""Logs as JSON, request ids, redaction, and access lines through `logging`."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
from towline.server import logs
from towline.testing import serve

from tests.support.feature_server import KINDS, every_kind, fetch, serving
from tests.support.waiting import until

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@every_kind
def test_one_switch_makes_the_access_log_json(kind: str, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    options = {
        "log_format": "json",
        "access_log_headers": ("X-Tenant", "x-none"),
        "request_id_header": "X-Request-ID",
    }
    with serving(kind, access_log=str(log), **options) as server:
        fetch(server, "/a", f"traceparent: {TRACE}", "X-Tenant: t" + "\u202e".encode().decode("latin-1"))
    line = json.loads(log.read_text())
    assert (line["host"], line["scheme"], line["traceparent"]) == ("test", "http", TRACE)
    assert list(line["headers"]) == ["x-tenant", "x-none"]
    assert line["headers"]["x-none"] is None
    assert "\u202e" not in log.read_text()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d", line["time"])
    assert line["duration_ms"] == pytest.approx(line["duration_us"] / 1000)
    assert uuid.UUID(line["request_id"]).version == 7
    assert line["pid"] == os.getpid()


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    headers = [value for name, value in scope["headers"] if name == b"x-request-id"]
    if scope["path"] == "/error":
        raise ValueError("as planned")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b",".join(headers)})


def wsgi(environ: Any, start_response: Any) -> Any:
    if environ["PATH_INFO"] == "/error":
        raise ValueError("as planned")
    start_response("200 OK", [])
    return [environ["HTTP_X_REQUEST_ID"].encode()]


@every_kind
@pytest.mark.parametrize("trusted", [True, False])
def test_the_request_id_of_a_trusted_proxy_reaches_the_application(
    kind: str, trusted: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "access.log"
    described = dict(KINDS[kind], lifespan="off")
    app = asgi if described.pop("app") is KINDS["asgi"]["app"] else wsgi
    options = {
        "request_id_header": "x-request-id",
        "proxy_headers": True,
        "forwarded_allow_ips": ("127.0.0.1",) if trusted else ("192.0.2.1",),
        "log_format": "json",
    }
    logging.getLogger("towline").propagate = True
    with serve(app, access_log=str(log), **described, **options) as server:
        seen = fetch(server, "/", "X-Request-ID: from-the-proxy").body.decode()
        assert (seen == "from-the-proxy") == trusted
        bad = fetch(server, "/", "X-Request-ID: a b").body.decode()
        made = fetch(server, "/").body.decode()
        assert uuid.UUID(bad).version == uuid.UUID(made).version == 7
        assert fetch(server, "/error", "X-Request-ID: from-the-proxy").status == 500
        until(lambda: [record for record in caplog.records if record.levelno == logging.ERROR])
    # A Litestar application of another test file leaves a handler that passes each record on once more.
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    [error] = {record.getMessage(): record for record in errors}.values()
    assert re.search(r"GET /error from 127\.0\.0\.1:\d+, request id \S+$", error.getMessage())
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["request_id"] for line in lines[:3]] == [seen, bad, made]
    assert lines[3]["request_id"] in error.getMessage()


@every_kind
def test_secrets_in_a_query_are_not_logged(kind: str, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    with serving(kind, access_log=str(log), access_log_format="%(r)s|%(q)s") as server:
        fetch(server, "/a?x=1&Token=abc&password=&y=token=2")
        fetch(server, "/a?token")
    first, second = log.read_text().splitlines()
    query = "x=1&Token=[secure]&password=[secure]&y=token=2"
    assert first == f"GET /a?{query} HTTP/1.1|{query}"
    assert second == "GET /a?token HTTP/1.1|token"
    log.unlink()
    with serving(kind, access_log=str(log), access_log_format="%(q)s", access_log_redact=()) as server:
        fetch(server, "/a?token=abc")
    assert log.read_text() == "token=abc\n"


@every_kind
def test_access_lines_through_logging(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "my.access")
    with serving(kind, access_log_logger="my.access", access_log_format="%(m)s %(U)s %(s)s") as server:
        fetch(server, "/a")
        fetch(server, "/b")
    records = [record for record in caplog.records if record.name == "my.access"]
    assert [record.getMessage() for record in records] == ["GET /a 200", "GET /b 200"]
    assert {record.levelno for record in records} == {logging.INFO}
    assert all(record.thread != threading.main_thread().ident for record in records)


def test_a_slow_handler_does_not_delay_requests() -> None:
    entered, release = threading.Event(), threading.Event()

    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            entered.set()
            release.wait(10)

    logger = logging.getLogger("slow.access")
    handler = Slow()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with serving("asgi", access_log_logger="slow.access") as server:
            fetch(server, "/a")
            assert entered.wait(10)
            for _ in range(5):
                assert fetch(server, "/b").body == b"/b"
            release.set()
    finally:
        release.set()
        logger.removeHandler(handler)


def test_the_server_log_as_json() -> None:
    try:
        raise ValueError("\u202e as planned")
    except ValueError as error:
        cause = (type(error), error, error.__traceback__)
    record = logging.LogRecord("towline.server", logging.ERROR, __file__, 1, "failed: %s\n", ("x",), cause)
    text = logs.JsonFormatter().format(record)
    assert "\n" not in text
    assert "\u202e" not in text
    line = json.loads(text)
    assert (line["level"], line["logger"], line["message"]) == ("error", "towline.server", "failed: x\n")
    assert line["exception"].startswith("Traceback")
    assert "as planned" in line["exception"]
