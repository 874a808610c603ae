"""A WSGI server on a thread of the test, and a client that says exactly what is written."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from towline import _native
from towline.config import Bind, ServerConfig

from tests.support.sockets import read_all

MODES = {"inline": 1, "threads": 3}


class RunningServer:
    def __init__(self, server: Any, port: int, log: list[tuple[int, str, BaseException | None]]) -> None:
        self.server = server
        self.port = port
        self.log = log

    def connect(self, timeout: float = 10.0) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def raw(self, wire: bytes, *, half_close: bool = False) -> bytes:
        """Send `wire`, give back everything until the server closes."""
        with self.connect() as conn:
            conn.sendall(wire)
            if half_close:
                conn.shutdown(socket.SHUT_WR)
            return read_all(conn)

    def request(
        self,
        method: str = "GET",
        path: str = "/",
        body: Any = None,
        headers: dict[str, str] | None = None,
        **more: Any,
    ) -> http.client.HTTPResponse:
        conn = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        conn.request(method, path, body=body, headers=headers or {}, **more)
        response = conn.getresponse()
        response.content = response.read()  # type: ignore[attr-defined]
        conn.close()
        return response

    def errors(self) -> list[str]:
        return [text for _, text, _ in self.log]


@contextlib.contextmanager
def serving(app: Any, **options: Any) -> Iterator[RunningServer]:
    """Serve `app` on a free port; on leaving, the server must end by itself."""
    log: list[tuple[int, str, BaseException | None]] = []
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        port = listener.getsockname()[1]
        bind = Bind(fd=listener.fileno(), address=f"127.0.0.1:{port}")
        server = _native.WsgiServer(
            app,
            ServerConfig(app=app, **options),
            [bind],
            log=lambda level, text, error: log.append((level, text, error)),
        )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield RunningServer(server, port, log)
    finally:
        server.stop()
        thread.join(5)
        assert not thread.is_alive(), "run() did not return after stop()"


def plain(body: bytes = b"ok") -> Callable[..., list[bytes]]:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [body]

    return app
