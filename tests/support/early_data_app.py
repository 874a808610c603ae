"""Application that records which requests came in early data."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class App:
    """Records each request as method, path and values of early-data; `/refuse` is 425 in early data, `/always` always."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, tuple[str, ...]]] = []
        self._lock = threading.Lock()

    def of(self, kind: str) -> Callable[..., Any]:
        return self.asgi if kind == "asgi" else self.wsgi

    def respond(self, method: str, path: str, early: tuple[str, ...], body: bytes) -> tuple[int, bytes]:
        with self._lock:
            self.requests.append((method, path, early))
        status = 425 if path == "/always" or (path == "/refuse" and early) else 200
        return status, b"%s %s %s %d" % (method.encode(), path.encode(), ",".join(early).encode(), len(body))

    async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
        early = tuple(value.decode() for name, value in scope["headers"] if name == b"early-data")
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        status, content = self.respond(scope["method"], scope["path"], early, body)
        length = str(len(content)).encode()
        await send(
            {"type": "http.response.start", "status": status, "headers": [(b"content-length", length)]}
        )
        await send({"type": "http.response.body", "body": content})

    def wsgi(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        value = environ.get("HTTP_EARLY_DATA")
        body = environ["wsgi.input"].read()
        early = () if value is None else (value,)
        status, content = self.respond(environ["REQUEST_METHOD"], environ["PATH_INFO"], early, body)
        start_response(f"{status} Status", [("content-length", str(len(content)))])
        return [content]
