"""`ASGITransport`: an ASGI application instead of the network, for `AsyncClient`. Responses are streamed.

```
 task of the application                           reader of the response
   send(start)  ───────────────────────────────►   Response
   send(body) ── waits until the piece is read ─►  aiter_raw, aread
   receive() ◄── the request body, then waits ──── end of the response, or aclose()
              ── http.disconnect
```

The lifespan protocol is not run: a test has to set up what the application would set up there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from ..._aio import Signal, Task, sleep
from ...errors import ClientDisconnected, RemoteProtocolError, ServerDisconnected
from ..body_sources import AsyncByteStream
from ..encode import AsyncIterableBody
from ..request import Request
from ..response import Response
from .base import AsyncBaseTransport

# after a disconnect: an application that waits for it ends by itself, others are cancelled
_GRACE_S = 0.05
_GRACE_STEPS = 10


class ASGITransport(AsyncBaseTransport):
    """Calls `app` for each request, in a separate task.

    - raise_app_exceptions: True raises exceptions of the application in the client, False responds with 500
    - root_path: the path where the application is mounted
    - client: the address of the client in the scope
    """

    honours_trace = False

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        raise_app_exceptions: bool = True,
        root_path: str = "",
        client: tuple[str, int] = ("127.0.0.1", 123),
    ) -> None:
        self.app = app
        self.raise_app_exceptions = raise_app_exceptions
        self.root_path = root_path
        self.client = client

    async def handle_async_request(self, request: Request) -> Response:
        exchange = _AppCall(self.app, self._scope(request), request, self.raise_app_exceptions)
        try:
            status, headers = await exchange.start()
        except BaseException:
            await exchange.aclose()
            raise
        return Response(status, headers=headers, stream=exchange, request=request)

    def _scope(self, request: Request) -> dict[str, Any]:
        url = request.url
        port = url.port or (443 if url.scheme == "https" else 80)
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": url.scheme,
            "path": url.path,
            "raw_path": url.raw_path.partition(b"?")[0],
            "query_string": url.query,
            "root_path": self.root_path,
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "server": (url.raw_host.decode("ascii"), port),
            "client": self.client,
            "state": {},
        }


class _AppCall(AsyncByteStream):
    """A call of the application: its task, and at most one piece of the body that has not been read."""

    def __init__(self, app: Any, scope: dict[str, Any], request: Request, raises: bool) -> None:
        self._app = app
        self._scope = scope
        self._raises = raises
        self._is_head = request.method == "HEAD"
        self._pieces: AsyncIterator[bytes] | None = _pieces(request)
        self._changed = Signal()
        self._head: tuple[int, list[tuple[bytes, bytes]]] | None = None
        self._piece: bytes | None = None
        self._complete = False
        self._closed = False
        self._failure: BaseException | None = None
        self._task = Task(self._run)

    async def start(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        while self._head is None and not self._task.done:
            await self._changed.wait()
        if self._head is not None:
            return self._head
        if self._failure is None:
            raise RemoteProtocolError(
                "the application returned without sending http.response.start",
                rule="an ASGI application responds to each request",
                phase="head",
            )
        if self._raises or not isinstance(self._failure, Exception):
            raise self._failure
        body = b"Internal Server Error"
        self._piece, self._complete, self._failure = body, True, None
        return 500, [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body))]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            piece, self._piece = self._piece, None
            if piece is not None:
                self._changed.fire()
                if piece:
                    yield piece
            elif self._task.done:
                break
            else:
                await self._changed.wait()
        # the task includes what the application does after its response (background tasks)
        if self._failure is not None and (self._raises or not isinstance(self._failure, Exception)):
            raise self._failure
        if not self._complete:
            raise ServerDisconnected(
                "the application ended in the middle of its response",
                rule="an ASGI response ends with more_body: False",
                phase="body",
            ) from self._failure

    async def aclose(self) -> None:
        self._closed = True
        self._changed.fire()
        for _ in range(_GRACE_STEPS):
            if self._task.done:
                return
            await sleep(_GRACE_S / _GRACE_STEPS)
        self._task.cancel()

    async def _run(self) -> None:
        try:
            await self._app(self._scope, self._receive, self._send)
        except ClientDisconnected:
            pass  # raised by `send` after `aclose`
        except Exception as error:
            self._failure = error
        finally:
            self._changed.fire()

    async def _receive(self) -> dict[str, Any]:
        if self._pieces is not None and not self._closed:
            async for piece in self._pieces:
                return {"type": "http.request", "body": bytes(piece), "more_body": True}
            self._pieces = None
            return {"type": "http.request", "body": b"", "more_body": False}
        while not (self._closed or (self._complete and self._piece is None)):
            await self._changed.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if self._closed:
            raise ClientDisconnected("the response was closed")
        if message["type"] == "http.response.start":
            if self._head is not None:
                raise RuntimeError("http.response.start was sent twice")
            self._head = (
                message["status"],
                [(bytes(name), bytes(value)) for name, value in message.get("headers", ())],
            )
            self._changed.fire()
        elif message["type"] == "http.response.body":
            await self._send_body(bytes(message.get("body", b"")), bool(message.get("more_body", False)))

    async def _send_body(self, body: bytes, more: bool) -> None:
        if self._head is None or self._complete:
            raise RuntimeError(
                "http.response.body was sent before the start or after the end of the response"
            )
        if body and not self._is_head:
            while self._piece is not None:
                await self._wait_for_reader()
            self._piece = body
            self._changed.fire()
            while more and self._piece is not None:
                await self._wait_for_reader()
        if not more:
            self._complete = True
            self._changed.fire()

    async def _wait_for_reader(self) -> None:
        await self._changed.wait()
        if self._closed and self._piece is not None:
            raise ClientDisconnected("the response was closed")


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    stream: Any = request.stream
    if isinstance(stream, AsyncIterableBody) or not hasattr(stream, "__iter__"):
        async for piece in stream:
            yield piece
    else:
        pieces: Iterator[bytes] = iter(stream)
        for piece in pieces:
            yield piece
