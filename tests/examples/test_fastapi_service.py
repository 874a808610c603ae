"""examples/fastapi_service: its own tests as its users run them, and its one command on two workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import towline
from towline.testing import serve

from tests.support.process import running

FOLDER = Path(__file__).parents[2] / "examples" / "fastapi_service"


def test_its_own_tests_pass() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER)]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


async def catalogue(scope, receive, send):  # type: ignore[no-untyped-def]
    body = b'{"name": "tea", "price": "2.50"}'
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
    )
    await send({"type": "http.response.body", "body": body})


def test_workers_share_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(catalogue, lifespan="off") as prices:
        monkeypatch.setenv("CATALOGUE", prices.url)
        options = ("--factory", "--workers", "2", "--timeout-worker-healthcheck", "120")
        with running("orders:create_app", *options, cwd=FOLDER) as program:
            url = f"http://127.0.0.1:{program.port}/orders"
            orders = []
            for _ in program.each_worker(2):
                if not orders:
                    made = towline.post(url, json={"item": "tea", "quantity": 2}).raise_for_status().json()
                orders.append(towline.get(f"{url}/{made['id']}").json())
    assert orders == [made, made]


def test_a_wrong_state_fails_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE", "/dev/null/no")
    command = [sys.executable, "-m", "towline", "serve", "orders:create_app", "--factory", "--port", "0"]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert "/dev/null/no" in done.stderr
