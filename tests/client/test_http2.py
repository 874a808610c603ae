"""HTTP/2 in both clients, against nghttpd."""

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
import trustme
from towline.bench.subjects.ports import free_port

from tests.support.client_backends import BACKENDS

NGHTTPD = shutil.which("nghttpd")
needs_nghttpd = pytest.mark.skipif(NGHTTPD is None, reason="nghttpd is not installed (apt: nghttp2-server)")
MAX_WAIT = 20.0


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
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    key, chain, trust = (str(folder / name) for name in ("key.pem", "cert.pem", "ca.pem"))
    issued.private_key_pem.write_to_path(key)
    issued.cert_chain_pems[0].write_to_path(chain)
    authority.cert_pem.write_to_path(trust)
    return (key, chain), trust


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    backends: list[Any] = []

    def make(**options: Any) -> Any:
        backends.append(BACKENDS[request.param](**options))
        return backends[-1]

    yield make
    for created in backends:
        created.close()


def prior_knowledge_caller(backend: Callable[..., Any], port: int, **options: Any) -> Any:
    return backend(http1=False, http2=True, base_url=f"http://127.0.0.1:{port}", **options)


@needs_nghttpd
def test_one_connection_carries_everything_with_prior_knowledge(
    root: Path, backend: Callable[..., Any]
) -> None:
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
def test_a_paused_reader_does_not_block_others(root: Path, backend: Callable[..., Any]) -> None:
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
def test_closing_a_body_ends_only_its_stream(root: Path, backend: Callable[..., Any]) -> None:
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
def test_alpn_chooses(root: Path, tmp_path: Path, backend: Callable[..., Any]) -> None:
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
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=MAX_WAIT, check=False
        )
    assert done.stdout == "interrupted\n", done.stderr


@needs_nghttpd
def test_a_forked_child_uses_a_connection_of_its_own(root: Path) -> None:
    program = """
import os, sys, threading, towline
client = towline.Client(http1=False, http2=True, base_url=sys.argv[1])
stop = threading.Event()
def work():
    while not stop.is_set():
        assert client.get("/large").status_code == 200
threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
for _ in range(5):
    with client.stream("GET", "/large") as parents:
        child = os.fork()
        if child == 0:
            try:
                assert client.get("/small").text == "hello"
                try:
                    parents.read()
                except towline.Error:
                    os._exit(7)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7, status
        assert len(parents.read()) == 256 * 12_000
stop.set()
[thread.join() for thread in threads]
print(client.get("/small").text)
"""
    with nghttpd(root) as port:
        done = subprocess.run(
            [sys.executable, "-c", program, f"http://127.0.0.1:{port}"],
            capture_output=True,
            text=True,
            timeout=3 * MAX_WAIT,
            check=False,
        )
    assert done.stdout == "hello\n", done.stderr
