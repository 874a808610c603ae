"""Slow and fast streams on one HTTP/2 connection: the fast ones complete, and memory is bounded."""

from __future__ import annotations

import pytest
from towline.config import ServerConfig

from tests.support.http2_client import Client
from tests.support.process import running
from tests.support.process_resources import HERE, resident_bytes, worker

WINDOW = ServerConfig("").http2_initial_stream_window_size
CLIENT_WINDOW, HIGH_WATER = 65_535, 65_536
"""The server sends as much of a response as the client's window allows, and buffers as much as `send()` accepts."""
SLACK = 4 << 20
"""Arenas of the allocator, caches, and Python's objects for the streams."""

ASGI, WSGI, THREADS = ["apps:asgi"], ["apps:wsgi"], ["apps:wsgi", "--threads", "3"]
STREAMING = [*THREADS, "--wsgi-request-buffer", "0"]
"""The application is called before the request has arrived."""


@pytest.mark.parametrize(
    ("serving", "path", "streams"),
    [
        pytest.param(ASGI, "/stream", 50, id="asgi-pieces"),
        pytest.param(ASGI, "/large", 50, id="asgi-whole"),
        pytest.param(WSGI, "/large", 50, id="wsgi-whole"),
        pytest.param(THREADS, "/large", 50, id="threads-whole"),
        # An iterable that is waited for keeps its thread.
        pytest.param(THREADS, "/stream", 2, id="threads-pieces"),
    ],
)
def test_unread_responses(serving: list[str], path: str, streams: int) -> None:
    with running(*serving, cwd=HERE) as program, Client(("127.0.0.1", program.port)) as client:
        assert client.fetch(path="/ok").body == b"ok"
        before = resident_bytes(worker(program))
        client.reads = set()
        stuck = [client.begin("GET", path) for _ in range(streams)]
        client.until(lambda: all(len(client.exchanges[one].body) == CLIENT_WINDOW for one in stuck))
        client.reads = set(range(stuck[-1] + 2, 10_000))
        for _ in range(20):
            assert client.fetch(path="/ok").body == b"ok"
            assert len(client.fetch(path="/large").body) == 1 << 20
        grown = resident_bytes(worker(program)) - before
        print(f"{streams} answers that nobody reads: {grown >> 10} KiB")
        assert grown < streams * (CLIENT_WINDOW + HIGH_WATER) + SLACK
        assert not any(client.exchanges[one].over for one in stuck)


@pytest.mark.parametrize(
    ("serving", "streams"),
    [pytest.param(ASGI, 50, id="asgi"), pytest.param(STREAMING, 2, id="threads")],
)
def test_unread_uploads(serving: list[str], streams: int) -> None:
    with running(*serving, cwd=HERE) as program, Client(("127.0.0.1", program.port)) as client:
        assert client.fetch("POST", "/read", bytes(1 << 20)).body == b"ok"
        before = resident_bytes(worker(program))
        stuck = [client.begin("POST", "/never", end=False) for _ in range(streams)]
        for one in stuck:
            client.write(one, bytes(WINDOW))
        for _ in range(20):
            assert client.fetch("POST", "/read", bytes(1 << 20)).body == b"ok"
        grown = resident_bytes(worker(program)) - before
        print(f"{streams} uploads that nobody reads: {grown >> 10} KiB")
        assert grown < streams * WINDOW + SLACK
        for one in stuck:
            assert client.conn.local_flow_control_window(one) == 0
            assert not client.exchanges[one].over
