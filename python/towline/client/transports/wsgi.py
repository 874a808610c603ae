"""`WSGITransport`: a WSGI application (PEP 3333) instead of the network, for `Client`."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ...errors import UsageError
from ..body_sources import SyncByteStream
from ..request import Request
from ..response import Response
from .base import BaseTransport


class WSGITransport(BaseTransport):
    """Calls `app` for each request. The response is streamed as the application yields it.

    - raise_app_exceptions: True raises exceptions of the application in the client, False responds with 500
    - script_name: the path where the application is mounted
    - remote_addr: the address of the client
    - wsgi_errors: the stream `wsgi.errors`, default stderr
    """

    honours_trace = False

    def __init__(
        self,
        app: Callable[..., Iterable[bytes]],
        raise_app_exceptions: bool = True,
        script_name: str = "",
        remote_addr: str = "127.0.0.1",
        wsgi_errors: Any = None,
    ) -> None:
        self.app = app
        self.raise_app_exceptions = raise_app_exceptions
        self.script_name = script_name
        self.remote_addr = remote_addr
        self.wsgi_errors = wsgi_errors

    def handle_request(self, request: Request) -> Response:
        start_response = _StartResponse()
        try:
            pieces = self.app(self._environ(request), start_response)
            stream = _ResponseBody(pieces, start_response, request.method == "HEAD")
            stream.begin()
        except Exception as error:
            if self.raise_app_exceptions or isinstance(error, UsageError):
                raise
            return Response(500, content=b"Internal Server Error", request=request)
        code, _, reason = (start_response.status or "500").partition(" ")
        extensions = {"reason_phrase": reason.encode("latin-1"), "http_version": b"HTTP/1.1"}
        return Response(
            int(code), headers=start_response.fields, stream=stream, request=request, extensions=extensions
        )

    def _environ(self, request: Request) -> dict[str, Any]:
        url = request.url
        path = url.path.encode("utf-8").decode("latin-1")
        script = self.script_name.rstrip("/")
        environ: dict[str, Any] = {
            "REQUEST_METHOD": request.method,
            "SCRIPT_NAME": script,
            "PATH_INFO": path[len(script) :] if script and path.startswith(script + "/") else path,
            "QUERY_STRING": url.query.decode("ascii"),
            "SERVER_NAME": url.raw_host.decode("ascii"),
            "SERVER_PORT": str(url.port or (443 if url.scheme == "https" else 80)),
            "SERVER_PROTOCOL": "HTTP/1.1",
            "REMOTE_ADDR": self.remote_addr,
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": url.scheme,
            "wsgi.input": io.BytesIO(request.read()),
            "wsgi.errors": self.wsgi_errors or sys.stderr,
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
        }
        for name, value in request.headers.raw:
            key = name.decode("ascii").upper().replace("-", "_")
            key = key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}"
            text = value.decode("latin-1")
            separator = "; " if key == "HTTP_COOKIE" else ","
            environ[key] = f"{environ[key]}{separator}{text}" if key in environ else text
        if "HTTP_TRANSFER_ENCODING" in environ:
            # the body has been read: set its length, as a server that buffers it would
            del environ["HTTP_TRANSFER_ENCODING"]
            environ["CONTENT_LENGTH"] = str(len(request.content))
        return environ


class _StartResponse:
    """The `start_response` callable. It may be called again with exc_info until the first byte is sent."""

    def __init__(self) -> None:
        self.status: str | None = None
        self.fields: list[tuple[bytes, bytes]] = []
        self.written: list[bytes] = []
        self.sent = False

    def __call__(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], Any]:
        if exc_info:
            try:
                if self.sent:
                    raise exc_info[1].with_traceback(exc_info[2])
            finally:
                exc_info = None  # PEP 3333: no cycle with the traceback
        elif self.status is not None:
            raise UsageError("the application called start_response twice without exc_info (PEP 3333)")
        self.status = status
        self.fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        return self.written.append


class _ResponseBody(SyncByteStream):
    """The pieces of the application, read one ahead: it may call start_response as late as for the first piece."""

    def __init__(self, pieces: Iterable[bytes], start_response: _StartResponse, is_head: bool) -> None:
        self._iterable = pieces
        self._pieces = iter(pieces)
        self._start_response = start_response
        self._is_head = is_head
        self._first: bytes | None = None

    def begin(self) -> None:
        for piece in self._pieces:
            if piece:
                self._first = piece
                break
        if self._start_response.status is None:
            self.close()
            raise UsageError("the application returned a body without calling start_response (PEP 3333)")
        self._start_response.sent = True

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._all():
            if piece and not self._is_head:
                yield piece

    def _all(self) -> Iterator[bytes]:
        yield from self._start_response.written
        if self._first is not None:
            yield self._first
        yield from self._pieces

    def close(self) -> None:
        if close := getattr(self._iterable, "close", None):
            close()
