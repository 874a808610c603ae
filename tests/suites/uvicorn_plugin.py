"""Runs Uvicorn's own tests against Towline.

Uvicorn's HTTP tests use a protocol object in memory: bytes in by `data_received`, one application call
by `loop.run_one`, bytes out in `transport.buffer`. `Connected` has the same interface and uses a real
Towline server and a real socket. Tests that use `run_server` get a Towline server as well.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import queue
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import expected
import pytest
from towline.testing import serve

QUIET_SECONDS = 0.05
MAX_WAIT_SECONDS = 10.0


class Connected:
    """One client connection to a Towline server that waits for `run_one` before each application call."""

    def __init__(self, app: Any, protocol: Any = None, lifespan: Any = None, **options: Any) -> None:
        self._app = _as_asgi3(app)
        self._state = getattr(lifespan, "state", None)
        self._permits: collections.deque[bool] = collections.deque()
        self._ended: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._received = b""
        self._closed = False
        self.scope: dict[str, Any] = {}
        self.loop = self.transport = self
        settings = {"timeout_keep_alive": 5.0, "access_log": None, "timeout_graceful_shutdown": 1.0}
        for name in ("root_path", "limit_concurrency"):
            if name in options:
                settings[name] = options[name]
        self._serving = contextlib.ExitStack()
        server = self._serving.enter_context(serve(self._gated, lifespan="on", **settings))
        self._socket = socket.create_connection((server.host, server.port), timeout=MAX_WAIT_SECONDS)

    async def _gated(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
            return
        self.scope = scope
        while not self._permits:
            await asyncio.sleep(0.001)
        self._permits.popleft()
        try:
            await self._app(scope, receive, send)
        finally:
            self._ended.put(True)

    async def _lifespan(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        scope["state"].update(self._state or {})
        for _ in range(2):
            kind = (await receive())["type"]
            await send({"type": f"{kind}.complete"})

    # Methods that the tests call on the protocol, its loop and its transport:

    def data_received(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendall(data)
        self._wait_until_idle()

    async def run_one(self) -> None:
        self._permits.append(True)
        await asyncio.to_thread(self._ended.get, True, MAX_WAIT_SECONDS)
        self._wait_until_idle()

    def run_later(self, with_delay: float) -> None:
        time.sleep(with_delay + 0.3)

    def eof_received(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def connection_lost(self, error: Exception | None) -> None:
        self._socket.close()
        self._closed = True

    def shutdown(self) -> None:
        threading.Thread(target=self._serving.close).start()
        time.sleep(QUIET_SECONDS)

    @property
    def buffer(self) -> bytes:
        self._wait_until_idle()
        return self._received

    def clear_buffer(self) -> None:
        self._received = b""

    def is_closing(self) -> bool:
        self._wait_until_idle()
        return self._closed

    def _wait_until_idle(self) -> None:
        """Reads until no data has arrived for a while."""
        if self._closed:
            return
        self._socket.settimeout(QUIET_SECONDS)
        try:
            while piece := self._socket.recv(65536):
                self._received += piece
            self._closed = True
        except TimeoutError:
            pass
        except OSError:
            self._closed = True

    def finish(self) -> None:
        self._socket.close()
        self._permits.extend([True] * 8)
        self._serving.close()


def _as_asgi3(app: Any) -> Any:
    from uvicorn.config import Config

    config = Config(app)
    config.load()
    return config.loaded_app if config.interface == "asgi2" else app


class _Stoppable:
    """A server as the tests stop it."""

    def __init__(self, server: Any) -> None:
        self._server = server

    async def shutdown(self) -> None:
        self._server.stop()


@contextlib.asynccontextmanager
async def run_server(config: Any, sockets: Any = None) -> AsyncIterator[Any]:
    """`tests.utils.run_server` with a Towline server of the same settings."""
    import towline

    options = {
        "host": config.host or "127.0.0.1",
        "port": config.port,
        "ssl_certfile": config.ssl_certfile,
        "ssl_keyfile": config.ssl_keyfile,
        "ssl_keyfile_password": config.ssl_keyfile_password,
        "ssl_ca_certs": config.ssl_ca_certs,
        "server_header": config.server_header,
        "date_header": config.date_header,
        "headers": tuple((name.encode(), value.encode()) for name, value in config.headers),
        "access_log": None,
        "timeout_graceful_shutdown": 1.0,
        "lifespan": config.lifespan,
        "root_path": config.root_path,
        "limit_concurrency": config.limit_concurrency,
        "ws_max_size": config.ws_max_size,
        "ws_ping_interval": config.ws_ping_interval or None,
        "ws_ping_timeout": config.ws_ping_timeout,
        "ws_per_message_deflate": config.ws_per_message_deflate,
    }
    server = towline.Server(towline.ServerConfig(app=config.app, **options))
    task = asyncio.ensure_future(server.serve())
    while not server.started.is_set():
        if task.done():
            task.result()
        await asyncio.sleep(0.005)
    try:
        yield _Stoppable(server)
    finally:
        server.stop()
        await task


@pytest.fixture(autouse=True)
def _use_towline(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    opened: list[Connected] = []

    def connected(*args: Any, **options: Any) -> Connected:
        opened.append(Connected(*args, **options))
        return opened[-1]

    for name, module in list(sys.modules.items()):
        if name.startswith("tests.") and hasattr(module, "run_server"):
            monkeypatch.setattr(module, "run_server", run_server)
        if name == "tests.protocols.test_http":
            monkeypatch.setattr(module, "get_connected_protocol", connected)
    yield
    for one in opened:
        one.finish()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # The protocol class is Towline's for every value of the parameter: one of them is enough.
    expected.select(config, items, deselect=("httptools", "zttp", "websockets-sansio"))
    expected.mark(items, expected.UVICORN)
