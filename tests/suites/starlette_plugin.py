"""Runs Starlette's own tests through a real server: its TestClient sends over a socket to Towline."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import expected
import pytest
import towline
from starlette import testclient
from starlette.testclient import TestClient, httpx

MAX_WAIT_SECONDS = 10.0
PORTS = {"http": 80, "https": 443}


@contextlib.asynccontextmanager
async def running(app: Any, root_path: str) -> AsyncIterator[str]:
    """Serves `app` in the loop that runs this; yields `host:port`."""
    config = towline.ServerConfig(
        app,
        port=0,
        lifespan="off",
        root_path=root_path.rstrip("/"),
        access_log=None,
        timeout_graceful_shutdown=1.0,
    )
    server = towline.Server(config)
    task = asyncio.ensure_future(server.serve())
    while not server.started.is_set():
        if task.done():
            task.result()
        await asyncio.sleep(0.001)
    try:
        yield server.addresses[0]
    finally:
        server.stop()
        await task


class TowlineStream(httpx.SyncByteStream):
    def __init__(self, stream: Any, stop: contextlib.ExitStack) -> None:
        self._stream, self._stop = stream, stop

    def __iter__(self) -> Iterator[bytes]:
        yield from self._stream

    def close(self) -> None:
        self._stream.close()
        self._stop.close()


class TowlineTransport(httpx.BaseTransport):
    """`_TestClientTransport` over a socket instead of in memory."""

    def __init__(self, client: TestClient, inner: Any) -> None:
        self._client, self._inner = client, inner

    def handle_request(self, request: Any) -> Any:
        if request.url.scheme in ("ws", "wss"):
            return self._inner.handle_request(request)
        finished: concurrent.futures.Future[None] = concurrent.futures.Future()
        debug: dict[str, Any] = {}

        async def app(scope: Any, receive: Any, send: Any) -> None:
            finished.set_running_or_notify_cancel()
            scope["client"] = list(self._inner.client)
            scope["scheme"] = request.url.scheme
            scope["server"] = (request.url.host, request.url.port or PORTS[request.url.scheme])
            scope["state"] = self._client.app_state.copy()
            scope["extensions"]["http.response.debug"] = {}

            async def note_debug(message: Any) -> None:
                if message["type"] == "http.response.debug":
                    debug.update(message["info"])
                else:
                    await send(message)

            try:
                await self._client.app(scope, receive, note_debug)
            except BaseException as error:
                finished.set_exception(error)
                raise
            finished.set_result(None)

        with contextlib.ExitStack() as stack:
            portal = stack.enter_context(self._client._portal_factory())
            serving = running(app, self._inner.root_path)
            address = stack.enter_context(portal.wrap_async_context_manager(serving))
            stack.callback(self._conclude, finished)
            transport = stack.enter_context(httpx.HTTPTransport())
            response = transport.handle_request(self._to(address, request))
            stop = stack.pop_all()
        result = httpx.Response(
            response.status_code,
            headers=response.headers.raw,
            stream=TowlineStream(response.stream, stop),
            request=request,
        )
        for name, value in debug.items():
            setattr(result, name, value)
        return result

    def _conclude(self, finished: concurrent.futures.Future[None]) -> None:
        if not finished.running() and not finished.done():
            return  # the server refused the request itself
        error = finished.exception(MAX_WAIT_SECONDS)
        if error is not None and self._inner.raise_server_exceptions:
            raise error

    def _to(self, address: str, request: Any) -> Any:
        host, _, port = address.rpartition(":")
        url = request.url.copy_with(scheme="http", host=host, port=int(port))
        return httpx.Request(
            request.method,
            url,
            headers=request.headers.raw,
            stream=request.stream,
            extensions=request.extensions,
        )


class TowlineClient(TestClient):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._transport = TowlineTransport(self, self._transport)


@pytest.fixture(autouse=True)
def _use_towline(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["tests.conftest"], "TestClient", TowlineClient)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    assert testclient.TestClient is TestClient
    # The server runs on asyncio; Starlette's tests also run on trio.
    expected.select(config, items, deselect=("trio",), needs_fixture="test_client_factory")
    expected.mark(items, expected.STARLETTE)
