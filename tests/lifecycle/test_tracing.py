"""OpenTelemetry in worker processes: where the provider is made, what is exported at a stop, a missing package."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import Program, request, running

PROVIDER = """
    import json, os, time
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class ToFile(SpanExporter):
        def export(self, spans):
            time.sleep(float(os.environ.get("EXPORT_SECONDS", "0")))
            with open(os.environ["SPANS"], "a") as file:
                for span in spans:
                    line = {"pid": os.getpid(), "name": span.name, "kind": span.kind.name}
                    file.write(json.dumps(line) + "\\n")
            return SpanExportResult.SUCCESS

    # Nothing is exported but by a flush.
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(ToFile(), schedule_delay_millis=600_000))
    trace.set_tracer_provider(provider)
"""
APPS = """
    import os
    from opentelemetry import trace

    def work():
        with trace.get_tracer("application").start_as_current_span("work"):
            return str(os.getpid()).encode()

    async def asgi(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": work()})

    def wsgi(environ, start_response):
        start_response("200 OK", [])
        return [work()]
"""
# The import in the process that starts the server, as opentelemetry-instrument does it.
STARTED_EARLY = "sitecustomize.py"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPANS", str(tmp_path / "spans"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "provider.py").write_text(textwrap.dedent(PROVIDER))
    (tmp_path / "traced.py").write_text(textwrap.dedent(APPS))
    return tmp_path


def stop(program: Program) -> float:
    """Seconds of a stop by TERM."""
    started = time.monotonic()
    program.signal(signal.SIGTERM)
    assert program.wait() == 0, program.log
    return time.monotonic() - started


def exported(directory: Path) -> list[dict[str, Any]]:
    path = directory / "spans"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("app", ["asgi", "wsgi"])
@pytest.mark.parametrize("made", ["in the application", "before the fork", "before the server"])
def test_the_spans_of_every_worker_are_exported_at_a_stop(app: str, made: str, directory: Path) -> None:
    options = ["--otel", "--workers", "2"]
    if made == "before the server":
        (directory / STARTED_EARLY).write_text("import provider\n")
    else:
        source = (directory / "traced.py").read_text()
        (directory / "traced.py").write_text("import provider\n" + source)
        options += ["--preload"] if made == "before the fork" else []
    with running(f"traced:{app}", *options, cwd=directory) as program:
        workers = set(program.children())
        assert len(workers) == 2
        served = [int(request(program.port, "/").body) for _ in range(20)]
        assert exported(directory) == []
        stop(program)
        assert set(served) <= workers
        for name, kind in (("GET", "SERVER"), ("work", "INTERNAL")):
            found = [span["pid"] for span in exported(directory) if span["kind"] == kind]
            assert sorted(found) == sorted(served), name
        assert "Traceback" not in program.log


def test_an_exporter_that_hangs_does_not_hold_up_the_stop(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXPORT_SECONDS", "60")
    with (directory / "traced.py").open("a") as file:
        file.write("import provider\n")
    with running("traced:asgi", "--otel", cwd=directory) as program:
        request(program.port, "/")
        assert stop(program) < 10
        assert "--otel: the last spans are lost" in program.log


@pytest.mark.parametrize("option", [None, "--preload", "--check"])
def test_the_start_is_refused_without_the_package(option: str | None, tmp_path: Path) -> None:
    (tmp_path / "opentelemetry.py").write_text("raise ImportError('not installed')\n")
    (tmp_path / "traced.py").write_text("async def asgi(scope, receive, send): pass\n")
    command = [sys.executable, "-m", "towline", "serve", "traced:asgi", "--port", "0"]
    done = subprocess.run(
        [*command, *([option] if option else []), "--otel"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert line.endswith(
        "--otel needs opentelemetry-api, which cannot be imported (not installed): "
        "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
    )


def test_the_server_does_not_import_the_package_without_the_option(tmp_path: Path) -> None:
    (tmp_path / "opentelemetry.py").write_text("raise ImportError('not installed')\n")
    (tmp_path / "plain.py").write_text(
        "import sys\n"
        "def app(environ, start_response):\n"
        "    start_response('200 OK', [])\n"
        "    return [str([name for name in sys.modules if 'tracing' in name]).encode()]\n"
    )
    with running("plain:app", cwd=tmp_path) as program:
        assert request(program.port, "/").body == b"[]"
