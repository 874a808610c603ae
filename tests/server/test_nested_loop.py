"""Applications that run the event loop inside a request, with nest_asyncio."""

from __future__ import annotations

import socket
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process import Program, connect, request, running

pytest.importorskip("nest_asyncio")
pytestmark = pytest.mark.skipif(sys.version_info >= (3, 14), reason="nest_asyncio does not support it")

APP = """
    import asyncio, os
    import nest_asyncio

    if os.environ["PATCHED"] == "import":
        nest_asyncio.apply()

    async def fetch(port, path):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\\r\\nhost: a\\r\\nconnection: close\\r\\n\\r\\n".encode())
        response = await reader.read()
        writer.close()
        return response.partition(b"\\r\\n\\r\\n")[2]

    async def read(receive):
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                return body

    RELEASED = asyncio.Event()

    async def released():
        while not RELEASED.is_set():
            await asyncio.sleep(0.01)

    async def app(scope, receive, send):
        if scope["type"] != "http":
            raise NotImplementedError
        path, loop, port = scope["path"], asyncio.get_running_loop(), scope["server"][1]
        if path == "/late":
            await asyncio.sleep(0.01)
        if path not in ("/plain", "/release", "/waits"):
            nest_asyncio.apply()
        body = b"ok"
        if path == "/self":
            body = b"self " + loop.run_until_complete(fetch(port, "/plain"))
        elif path == "/deep":
            body = b"deep " + loop.run_until_complete(fetch(port, "/self"))
        elif path == "/late":
            body = b"late " + loop.run_until_complete(fetch(port, "/plain"))
        elif path == "/body":
            body = b"%d" % len(loop.run_until_complete(read(receive)))
        elif path == "/nested":
            loop.run_until_complete(released())
        elif path == "/waits":
            await released()
        elif path == "/release":
            RELEASED.set()
        async def respond():
            headers = [(b"content-length", b"%d" % len(body))]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body[:1], "more_body": True})
            await asyncio.sleep(0.01)
            await send({"type": "http.response.body", "body": body[1:]})
        if path == "/respond":
            loop.run_until_complete(respond())
        else:
            await respond()
"""


@pytest.fixture(params=["import", "request"])
def program(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Program]:
    """A new server for each test: the first request in which the loop runs is special."""
    (tmp_path / "nested.py").write_text(textwrap.dedent(APP))
    monkeypatch.setenv("PATCHED", request.param)
    with running("nested:app", "--loop", "asyncio", cwd=tmp_path) as started:
        yield started
        assert len(started.lines) == 1, started.log


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/self", b"self ok"),
        ("/deep", b"deep self ok"),
        ("/late", b"late ok"),
        ("/respond", b"ok"),
        ("/plain", b"ok"),
    ],
)
def test_a_request_inside_a_request(program: Program, path: str, body: bytes) -> None:
    for _ in range(3):
        assert request(program.port, path).body == body


def test_a_body_that_is_read_in_the_inner_loop(program: Program) -> None:
    size = 1_000_000
    begun = time.monotonic()
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", program.port), 20) as conn:
            conn.sendall(
                b"POST /body HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % size
            )
            conn.sendall(bytes(size))
            response = b""
            while data := conn.recv(65536):
                response += data
        assert response.endswith(b"\r\n\r\n1000000")
    assert time.monotonic() - begun < 5, "the bytes must wake the inner loop, not a timer"


def test_others_are_served_while_the_loop_runs_inside_a_request(program: Program) -> None:
    """A request that was waiting before is served too."""
    found: dict[str, bytes] = {}

    def ask(path: str) -> None:
        found[path] = request(program.port, path).body

    waits, nested = (threading.Thread(target=ask, args=(path,)) for path in ("/waits", "/nested"))
    with connect(program.port) as conn:
        waits.start()
        assert conn.get("/plain").body == b"ok"
        nested.start()
        for _ in range(10):
            assert conn.get("/plain").body == b"ok"
        assert conn.get("/release").body == b"ok"
        waits.join(20)
        nested.join(20)
    assert found == {"/waits": b"ok", "/nested": b"ok"}
