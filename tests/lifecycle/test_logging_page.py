"""The examples of docs/logging.md, as they are written, with the real libraries."""

from __future__ import annotations

import gzip
import json
import re
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.pages.run_page import ROOT, blocks_of
from tests.support.process import Program, eventually, request, running

PAGE = (ROOT / "docs" / "logging.md").read_text()
JSON = ("--log-format", "json", "--request-id-header")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The modules of the page."""
    for block in blocks_of(PAGE):
        if name := re.match(r"# (\w+\.py)\n", block.text):
            (tmp_path / name[1]).write_text(block.text)
    return tmp_path


def objects(program: Program, **members: Any) -> list[dict[str, Any]]:
    """The lines with these members. Every line is an object."""
    lines = [json.loads(line) for line in program.lines]
    return [line for line in lines if all(line.get(name) == value for name, value in members.items())]


def one(program: Program, **members: Any) -> dict[str, Any]:
    eventually(lambda: objects(program, **members), f"a line with {members}")
    [line] = objects(program, **members)
    return line


class Collector(ThreadingHTTPServer):
    """Receives what an exporter posts."""

    def __init__(self) -> None:
        self.bodies: list[tuple[str, bytes]] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def text(self) -> bytes:
        return b"".join(body for _, body in self.bodies)


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        assert isinstance(self.server, Collector)
        self.server.bodies.append((self.path, body))
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_PUT = do_POST

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_application_of_the_page(folder: Path) -> None:
    filters = ("--access-log", "-", "--access-log-exclude", "/healthz", "--access-log-slow", "1s")
    with running("shop:app", "--workers", "4", *JSON, *filters, cwd=folder) as program:
        for path in ("/orders/7", "/healthz", "/orders/101"):
            request(program.port, path)
        late = one(program, logger="shop")
        access = one(program, path="/orders/7")
        failure = one(program, level="error")
        assert (late["message"], late["number"]) == ("order 7 is late", 7)
        assert late["request_id"] == access["request_id"]
        assert failure["request_id"] == one(program, path="/orders/101")["request_id"]
        assert not objects(program, path="/healthz")
        shown = [json.loads(line) for line in PAGE.splitlines() if line.startswith("{")]
        assert [list(line) for line in shown[1:]] == [list(late), list(access)]


def test_the_rules_of_the_page(folder: Path) -> None:
    [line] = re.findall(
        r"^\$ towline serve shop:app --access-log --access-log-exclude .*\n.*", PAGE, re.MULTILINE
    )
    import shlex

    options = shlex.split(line.replace("\\\n", ""))[4:]
    with running("shop:app", *options, cwd=folder) as program:
        for path in ("/healthz", "/static/a", "/a.map", "/nothing", "/metrics", "/orders/7"):
            request(program.port, path)
        eventually(lambda: '"GET /orders/7 ' in program.log, "the access line")
        assert re.findall(r'"GET (\S+) ', program.log) == ["/orders/7"]


def test_ecs(folder: Path) -> None:
    with running("shop_ecs:app", *JSON, cwd=folder) as program:
        request(program.port, "/orders/7")
        line = one(program, **{"log.logger": "shop"})
        assert (line["service.name"], line["log.level"], line["number"]) == ("shop", "warning", 7)
        assert {"@timestamp", "process.pid", "http.request.id", "message"} <= set(line)


def test_sentry(folder: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTRY_DSN", f"http://key@127.0.0.1:{collector.server_port}/1")
    # Sentry imports every library that it knows. These take most of the start.
    (folder / "sitecustomize.py").write_text(
        "import sys\nsys.modules['openai'] = sys.modules['anthropic'] = None\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(folder))
    with running("shop_sentry:app", *JSON, cwd=folder) as program:
        request(program.port, "/orders/101")
        failure = one(program, level="error")
        eventually(lambda: b"LookupError" in collector.text, "the event")
        program.signal(signal.SIGTERM)
        program.wait()
    assert failure["exception_type"] == "LookupError"
    events = [
        json.loads(line)
        for path, body in collector.bodies
        if path == "/api/1/envelope/"
        for line in body.splitlines()
        if b'"exception"' in line
    ]
    assert len(events) == 1
    [value] = [value for value in events[0]["exception"]["values"] if value["type"] == "LookupError"]
    assert value["value"] == "no order 101"


def test_structlog(folder: Path) -> None:
    pytest.importorskip("structlog")
    with running("shop_structlog:app", *JSON, cwd=folder) as program:
        request(program.port, "/stock/book")
        line = one(program, logger="shop.stock")
        assert (line["message"], line["item"], line["shelf"]) == ("stock read", "book", 4)
        assert "request_id" in line


def test_loguru(folder: Path) -> None:
    pytest.importorskip("loguru")
    with running("shop_loguru:app", *JSON, cwd=folder) as program:
        request(program.port, "/carts/anna")
        line = one(program, logger="shop_loguru")
        assert (line["level"], line["message"], line["user"]) == ("info", "cart of anna", "anna")


def test_loguru_writes_all_records(folder: Path) -> None:
    pytest.importorskip("loguru")
    (folder / "intercepted.py").write_text(
        "import logging, sys\n"
        "from loguru import logger\n"
        "from shop import app\n"
        "class InterceptHandler(logging.Handler):\n"
        "    def emit(self, record):\n"
        "        logger.opt(exception=record.exc_info).log(record.levelname, record.getMessage())\n"
        "logger.remove()\n"
        "logger.add(sys.stdout, serialize=True)\n"
        "logging.basicConfig(handlers=[InterceptHandler()], level=0)\n"
    )
    with running("intercepted:app", *JSON, cwd=folder) as program:
        request(program.port, "/orders/7")
        eventually(lambda: "order 7 is late" in program.log, "the line")
        [line] = [json.loads(line) for line in program.lines if "order 7" in line]
        assert line["record"]["message"] == "order 7 is late"


def test_opentelemetry(folder: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    pytest.importorskip("opentelemetry.instrumentation.logging.handler")
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
    with running("shop_otel:app", *JSON, "--otel", cwd=folder) as program:
        request(program.port, "/orders/7")
        request(program.port, "/orders/101")
        late, failure = one(program, logger="shop"), one(program, level="error")
        program.signal(signal.SIGTERM)
        assert program.wait() == 0
    records = {}
    for path, body in collector.bodies:
        assert path == "/v1/logs"
        for resource in ExportLogsServiceRequest.FromString(body).resource_logs:
            for scope in resource.scope_logs:
                records |= {record.body.string_value: record for record in scope.log_records}
    exported = records["order 7 is late"]
    assert (exported.trace_id.hex(), exported.span_id.hex()) == (late["trace_id"], late["span_id"])
    attributes = {each.key: each.value for each in records[failure["message"]].attributes}
    assert attributes["exception.type"].string_value == "LookupError"


def test_datadog(folder: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ddtrace")
    monkeypatch.setenv("DD_TRACE_AGENT_URL", f"http://127.0.0.1:{collector.server_port}")
    for name, value in {
        "DD_SERVICE": "shop",
        "DD_ENV": "production",
        "DD_LOGS_INJECTION": "true",
        "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false",
        "DD_REMOTE_CONFIGURATION_ENABLED": "false",
    }.items():
        monkeypatch.setenv(name, value)
    # The work of ddtrace-run.
    bootstrap = Path(__import__("ddtrace").__file__).parent / "bootstrap"
    monkeypatch.setenv("PYTHONPATH", str(bootstrap))
    with running("shop:app", *JSON, cwd=folder) as program:
        request(program.port, "/orders/7")
        line = one(program, logger="shop")
        assert (line["dd.service"], line["dd.env"], line["message"]) == (
            "shop",
            "production",
            "order 7 is late",
        )
        assert int(line["dd.span_id"]) > 0
        assert len(line["dd.trace_id"]) == 32
