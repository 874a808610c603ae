"""Parts of a server in the test's own process that do not depend on its interface: address, log and requests to it.

`asgi_server` (a thread with an event loop) and `wsgi_server` (a thread that calls `run`) start one.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Iterator
from typing import Any

from towline.config import Bind

from tests.support.sockets import read_all


class RunningServer:
    """The native server, its port, and the lines it has logged: level, text, exception."""

    def __init__(self, server: Any, port: int, log: list[tuple[int, str, BaseException | None]]) -> None:
        self.server, self.port, self.log = server, port, log

    def connect(self, timeout: float = 10.0) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def raw(self, wire: bytes, *, half_close: bool = False) -> bytes:
        """Sends `wire` and returns everything until the server closes."""
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
        """One request on a new connection; the body is in `content`."""
        conn = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        conn.request(method, path, body=body, headers=headers or {}, **more)
        response = conn.getresponse()
        response.content = response.read()  # type: ignore[attr-defined]
        conn.close()
        return response

    def get(self, path: str = "/", method: str = "GET", **more: Any) -> tuple[int, dict[str, str], bytes]:
        """Status, headers with names in lower case, and body of one request."""
        response = self.request(method, path, **more)
        headers = {name.lower(): value for name, value in response.getheaders()}
        return response.status, headers, response.content  # type: ignore[attr-defined]

    def errors(self) -> list[str]:
        return [text for _, text, _ in self.log]


@contextlib.contextmanager
def listening() -> Iterator[tuple[int, Bind]]:
    """A free port and a `Bind` of its descriptor, which the server duplicates."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        port = listener.getsockname()[1]
        yield port, Bind(fd=listener.fileno(), address=f"127.0.0.1:{port}")
