"""HTTP/2 in both clients, against nghttpd."""

# ruff: noqa: F401, F811 - the fixture `backend` is imported

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import towline
import towline.httpx
import towline.httpx2
from towline.bench.subjects.ports import free_port

from tests.support.client_fixtures import Make, backend, check_forking, run_program
from tests.support.server_processes import MAX_WAIT, Certified

NGHTTPD = shutil.which("nghttpd")
needs_nghttpd = pytest.mark.skipif(NGHTTPD is None, reason="nghttpd is not installed (apt: nghttp2-server)")


@contextmanager
def nghttpd(root: Path, *options: str, tls: tuple[str, str] | None = None) -> Iterator[int]:
    """A server of the files below `root`."""
    port = free_port()
    arguments = [*options, *(() if tls else ("--no-tls",)), f"--htdocs={root}", "--address=127.0.0.1"]
    process = subprocess.Popen([str(NGHTTPD), *arguments, str(port), *(tls or ())], stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + MAX_WAIT
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert time.monotonic() < until, "nghttpd does not listen"
                assert process.poll() is None, "nghttpd has ended"
                time.sleep(0.02)
        yield port
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "small").write_bytes(b"hello")
    (tmp_path / "large").write_bytes(bytes(range(256)) * 12_000)
    return tmp_path


def certificate(folder: Path) -> tuple[tuple[str, str], str]:
    """Key and certificate for the server, and the trust of its clients."""
    certified = Certified(folder)
    certified.issue()
    return (certified.key, certified.cert), certified.ca


def prior_knowledge_caller(backend: Make, port: int, **options: Any) -> Any:
    return backend(http1=False, http2=True, base_url=f"http://127.0.0.1:{port}", **options)


@needs_nghttpd
def test_one_connection_carries_everything_with_prior_knowledge(root: Path, backend: Make) -> None:
    with nghttpd(root) as port:
        caller = prior_knowledge_caller(backend, port)
        responses = caller.concurrently("GET", "/small", 300)
        assert {(response.http_version, response.text) for response in responses} == {("HTTP/2", "hello")}
        large = caller.concurrently("GET", "/large", 10)
        assert {response.content for response in large} == {(root / "large").read_bytes()}
        assert caller.get("/absent").status_code == 404
        assert caller.call("HEAD", "/large").headers["content-length"] == str(256 * 12_000)
        posted = caller.concurrently("POST", "/small", 5, content=b"x" * 300_000)
        assert {response.status_code for response in posted} == {200}
        pool = caller.client.pool_status()
        # A first burst may exceed the limit of the server.
        assert pool["idle"] + pool["active"] <= 3


@needs_nghttpd
def test_a_paused_reader_does_not_block_others(root: Path, backend: Make) -> None:
    with nghttpd(root) as port:
        caller = prior_knowledge_caller(backend, port)
        pieces = caller.pieces("/large", "bytes", 1000)
        read = [next(pieces)]
        slow = caller.streamed
        for _ in range(5):
            assert len(caller.get("/large").content) == 256 * 12_000
            # Data buffered for chunking is in addition to the window.
            assert slow.buffered <= 2 * 65_536
        read.extend(pieces)
        assert b"".join(read) == (root / "large").read_bytes()
        assert caller.client.pool_status()["idle"] == 1


@needs_nghttpd
def test_closing_a_body_ends_only_its_stream(root: Path, backend: Make) -> None:
    with nghttpd(root) as port:
        caller = prior_knowledge_caller(backend, port)
        unread = caller.pieces("/large", "bytes")
        read = [next(unread)]
        for _ in range(10):
            closed = caller.pieces("/large", "bytes")
            next(closed)
            closed.close()
        read.extend(unread)
        assert b"".join(read) == (root / "large").read_bytes()
        assert caller.client.pool_status() == {"active": 0, "idle": 1, "connecting": 0, "waiting": 0}


@needs_nghttpd
def test_cancelled_tasks_do_not_affect_others(root: Path) -> None:
    async def main(port: int) -> None:
        async with towline.AsyncClient(
            http1=False, http2=True, base_url=f"http://127.0.0.1:{port}"
        ) as client:
            tasks = [asyncio.create_task(client.get("/large")) for _ in range(20)]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(result, asyncio.CancelledError) for result in done[::2])
            assert {len(result.content) for result in done[1::2]} == {256 * 12_000}  # type: ignore[union-attr]

    with nghttpd(root) as port:
        asyncio.run(main(port))


@needs_nghttpd
def test_alpn_chooses(root: Path, tmp_path: Path, backend: Make) -> None:
    tls, trust = certificate(tmp_path)
    with nghttpd(root, tls=tls) as port:
        for http1 in (True, False):
            caller = backend(verify=trust, http1=http1, http2=True)
            responses = caller.concurrently("GET", f"https://127.0.0.1:{port}/large", 10)
            assert {(response.http_version, len(response.content)) for response in responses} == {
                ("HTTP/2", 256 * 12_000)
            }


@needs_nghttpd
@pytest.mark.parametrize("drop_in", [towline.httpx, towline.httpx2], ids=["httpx", "httpx2"])
def test_alpn_chooses_in_the_drop_ins(root: Path, tmp_path: Path, drop_in: Any) -> None:
    tls, trust = certificate(tmp_path)

    async def asynchronous(url: str) -> Any:
        async with drop_in.AsyncClient(verify=trust, http2=True) as client:
            return await client.get(url)

    with nghttpd(root, tls=tls) as port:
        url = f"https://127.0.0.1:{port}/small"
        with drop_in.Client(verify=trust, http2=True) as client:
            responses = [client.get(url), asyncio.run(asynchronous(url))]
    assert {(response.http_version, response.text) for response in responses} == {("HTTP/2", "hello")}


def test_control_c_ends_one_call_and_the_connection_stays_open() -> None:
    """The main thread polls for all threads when the signal arrives."""
    silent = socket.create_server(("127.0.0.1", 0))
    program = f"""
import os, signal, threading, time, towline
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job inherits it ignored
client = towline.Client(http1=False, http2=True)
silent = "http://127.0.0.1:{silent.getsockname()[1]}/"
other = threading.Thread(target=lambda: client.get(silent, timeout=20.0), daemon=True)
threading.Timer(0.3, other.start).start()
threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT)).start()
begun = time.monotonic()
try:
    client.get(silent, timeout=20.0)
except KeyboardInterrupt:
    assert time.monotonic() - begun < 10
    assert client.pool_status()["active"] == 1, client.pool_status()
    print("interrupted")
"""
    with silent:
        run_program(program, says="interrupted\n", timeout=MAX_WAIT)


@needs_nghttpd
def test_a_forked_child_uses_a_connection_of_its_own(root: Path) -> None:
    with nghttpd(root) as port:
        check_forking(f"http://127.0.0.1:{port}", "http1=False, http2=True", "/large")
