"""The metrics page over several workers: who they are, and how often one was replaced."""

from __future__ import annotations

import os
import re
import signal

from towline.bench.subjects.probe import free_port

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
            return pages[-1].get('towline_requests_total{method="GET",status="2xx"}', 0)

        before = counted()
        for _ in range(10):
            assert request(program.port, "/pid").status == 200
        # The last may be counted a little after its answer; the pages that were asked for count as requests too.
        eventually(lambda: counted() - before >= 10, "ten requests more")
        assert counted() - before <= 10 + len(pages)
        assert pages[-1]["towline_connections_total"] >= 10
