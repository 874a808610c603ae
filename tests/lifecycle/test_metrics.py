"""The metrics page of several workers: their number, and replacements."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from towline.bench.subjects.ports import free_port

from tests.support.process import Program, eventually, request, running


def page(program: Program, port: int) -> dict[str, float]:
    text = request(port, "/metrics").body.decode()
    return {name: float(value) for name, value in re.findall(r"^(towline_\S+) (\S+)$", text, re.MULTILINE)}


def pids(found: dict[str, float]) -> set[int]:
    return {int(value) for name, value in found.items() if name.startswith("towline_worker_pid")}


def test_workers_and_their_replacement_are_on_the_page() -> None:
    port = free_port()
    with running("apps:asgi", "--workers", "2", "--metrics-address", f"127.0.0.1:{port}") as program:
        eventually(lambda: pids(page(program, port)) == set(program.children()), "both workers on the page")
        first = page(program, port)
        assert first["towline_worker_restarts_total"] == 0
        resident = [
            value for name, value in first.items() if name.startswith("towline_worker_resident_bytes")
        ]
        assert len(resident) == 2
        assert f"http://127.0.0.1:{port}/metrics" in program.log

        os.kill(program.children()[0], signal.SIGKILL)
        eventually(lambda: page(program, port)["towline_worker_restarts_total"] == 1, "a death counted")
        eventually(lambda: pids(page(program, port)) == set(program.children()), "the new worker on the page")

        program.signal(signal.SIGHUP)
        eventually(
            lambda: page(program, port)["towline_worker_restarts_total"] == 3, "two replacements counted"
        )


def test_requests_are_counted_over_all_workers() -> None:
    port = free_port()
    with running("apps:asgi", "--workers", "2", "--metrics-address", f"127.0.0.1:{port}") as program:
        pages: list[dict[str, float]] = []

        def counted() -> float:
            pages.append(page(program, port))
            return pages[-1].get('towline_requests_total{method="GET",version="1.1",status="200"}', 0)

        before = counted()
        for _ in range(10):
            assert request(program.port, "/pid").status == 200
        # The last may be counted shortly after its response; requests for the page count too.
        eventually(lambda: counted() - before >= 10, "ten requests more")
        assert counted() - before <= 10 + len(pages)
        assert pages[-1]["towline_connections_total"] >= 10


def test_a_replacement_that_fails_is_no_restart(tmp_path: Path) -> None:
    """Figures of the process, and workers configured, alive, replaced and failed, each separately."""
    port = free_port()
    application = tmp_path / "broken.py"
    good = (
        "async def app(scope, receive, send):\n"
        "    await send({'type': 'http.response.start', 'status': 200, 'headers': []})\n"
        "    await send({'type': 'http.response.body', 'body': b''})\n"
    )
    application.write_text(good)
    options = ("--workers", "2", "--lifespan", "off", "--interface", "asgi")
    with running("broken:app", *options, "--metrics-address", f"127.0.0.1:{port}", cwd=tmp_path) as program:
        eventually(lambda: page(program, port)["towline_workers_accepting"] == 2, "both workers accept")
        found = page(program, port)
        assert (found["towline_workers_wanted"], found["towline_workers_alive"]) == (2, 2)
        eventually(lambda: page(program, port)['towline_worker_open_fds{worker="0"}'] > 3, "descriptors")
        assert page(program, port)['towline_worker_cpu_seconds_total{worker="0"}'] > 0
        application.write_text("syntax error")
        program.signal(signal.SIGHUP)
        eventually(lambda: page(program, port)["towline_worker_boot_failures_total"] >= 2, "failed start-ups")
        found = page(program, port)
        assert found["towline_worker_restarts_total"] == 0
        assert found["towline_worker_deaths_total"] == 0
        assert found["towline_workers_wanted"] == 2
