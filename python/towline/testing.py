"""For tests: serves an application, and replaces the network below `towline.Client` and `towline.AsyncClient`.

    from towline.testing import serve

    def test_hello():
        with serve(app) as server:
            assert urllib.request.urlopen(server.url).status == 200

As a pytest fixture:

    @pytest.fixture(scope="module")
    def server():
        with towline.testing.serve(app) as running:
            yield running

    from towline.testing import Mock

    def test_users():
        with Mock() as mock:
            mock.get("https://api.example/users", json=[])
            assert towline.get("https://api.example/users").json() == []

The pytest plugin has both as fixtures, `towline_server` and `towline_mock`. docs/testing.md has examples.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any

from .client.mocking import Mock, Route, UnexpectedRequest
from .config import ServerConfig

__all__ = ["Mock", "Route", "Running", "UnexpectedRequest", "serve"]

START_TIMEOUT = 30.0
STOP_TIMEOUT = 10.0


@dataclasses.dataclass(frozen=True)
class Running:
    """A running server. `address` is `host:port`, or `unix:PATH`."""

    url: str
    host: str
    port: int
    address: str


@contextlib.contextmanager
def serve(app: Any, **options: Any) -> Iterator[Running]:
    """Serves an ASGI or WSGI application on a free port of 127.0.0.1, from a thread with its own event loop.

    `options` are those of `ServerConfig`. `timeout_graceful_shutdown`, the time for requests in flight at the end, is
    2 s by default here, and idle connections are closed at once. Raises `StartupError` if the application does not start, and `TimeoutError` if it takes longer
    than 30 s to start.
    """
    options.setdefault("port", 0)
    options.setdefault("timeout_graceful_shutdown", 2.0)
    options.setdefault("timeout_drain_idle", 0.0)
    config = ServerConfig(app, **options)
    thread = _ServerThread(config)
    thread.start()
    try:
        yield thread.running()
    finally:
        thread.finish()


class _ServerThread(threading.Thread):
    def __init__(self, config: ServerConfig) -> None:
        super().__init__(name="towline-testing", daemon=True)
        self._config = config
        self._ready = threading.Event()
        self._stop_worker: Callable[[], None] = lambda: None
        self._address, self._scheme = "", "http"
        self._error: BaseException | None = None

    def run(self) -> None:
        from .server import application, listeners

        try:
            loaded = application.load(self._config)
            opened = listeners.open_all(self._config)
            first = opened.of_worker(0)[0]
            self._address = first.address
            self._scheme = "https" if first.settings and first.settings.tls else "http"
            try:
                serve_one = self._wsgi if loaded.interface == "wsgi" else self._asgi
                serve_one(loaded.call, opened)
            finally:
                opened.close()
                opened.remove_unix_sockets()
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()

    def _asgi(self, app: Any, opened: Any) -> None:
        from .server.asgi import AsgiWorker, new_loop, run_to_end

        loop, _ = new_loop(self._config.loop)

        async def main() -> None:
            worker = AsgiWorker(app, self._config, opened.of_worker(0))

            def stop() -> None:
                loop.call_soon_threadsafe(worker.stop)

            self._stop_worker = stop
            await worker.serve(lambda: self._has_started(opened))

        run_to_end(loop, main())

    def _wsgi(self, app: Any, opened: Any) -> None:
        from .server.wsgi import WsgiWorker

        worker = WsgiWorker(app, self._config, opened.of_worker(0))
        self._stop_worker = worker.stop
        worker.serve(lambda: self._has_started(opened))

    def _has_started(self, opened: Any) -> None:
        opened.close()  # the worker has copies
        self._ready.set()

    def running(self) -> Running:
        if not self._ready.wait(START_TIMEOUT):
            raise TimeoutError(f"the server did not start within {START_TIMEOUT:g} s")
        if self._error is not None:
            raise self._error
        host, _, port = self._address.rpartition(":")
        if self._address.startswith("unix:"):
            return Running(self._address, self._address.removeprefix("unix:"), 0, self._address)
        return Running(f"{self._scheme}://{self._address}", host.strip("[]"), int(port), self._address)

    def finish(self) -> None:
        if self.is_alive():
            try:
                self._stop_worker()
            except RuntimeError:
                pass  # its loop has ended in the meantime
            self.join(self._config.timeout_graceful_shutdown + STOP_TIMEOUT)
        if self.is_alive():
            raise TimeoutError("the server did not stop")
        if self._error is not None:
            raise self._error
