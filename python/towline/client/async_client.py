"""`AsyncClient`: the client for asyncio, uvloop and trio. One client works in successive and in concurrent event loops."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .._native import AsyncClientCore, AsyncPool
from . import flow
from .auth import AuthTypes
from .backends import AsyncBackend
from .base import BaseClient
from .observe import log_events
from .options import UNSET, Proxy
from .request import Request
from .response import Response
from .streaming import AsyncEventStream, AsyncResponseContext
from .transports.native import AsyncNativeTransport
from .url import URL
from .websocket import AsyncWebSocket, AsyncWebSocketContext, WebSocketOptions, websocket_request

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from .call_options import BuildOptions, CallOptions, HandshakeOptions


class AsyncClient(BaseClient, AsyncClientCore):
    """A client for event loops: `async with AsyncClient() as client: await client.get(url)`. It works in several loops."""

    # The native base class handles simple calls without Python code between the `await` and the engine. Other calls go
    # through `_slow_request`, and responses that need Python through `_finish_in_python`.

    _is_async = True

    async def send(
        self,
        request: Request,
        *,
        stream: bool = False,
        auth: AuthTypes = UNSET,
        follow_redirects: bool = UNSET,
    ) -> Response:
        """Sends a `Request`.

        - stream: do not read the body; the program has to close the response (default False)
        - auth, follow_redirects: as for `request`
        """
        request._streamed = stream
        settings = self._call_settings(request, auth, follow_redirects)
        response = self._finish_response(await flow.call(self._backend, settings, request), request)
        return response if stream else await _aread(response)

    def stream(
        self,
        method: str,
        url: URL | str,
        *,
        auth: AuthTypes = UNSET,
        follow_redirects: bool = UNSET,
        **arguments: Unpack[BuildOptions],
    ) -> AsyncResponseContext:
        """`async with client.stream("GET", url) as response:` reads the body on demand; leaving the block closes it.

        The arguments are those of `request`.
        """
        request = self.build_request(method, url, **arguments)
        return AsyncResponseContext(
            lambda: self.send(request, stream=True, auth=auth, follow_redirects=follow_redirects)
        )

    def sse(
        self, url: URL | str, *, method: str = "GET", **arguments: Unpack[CallOptions]
    ) -> AsyncEventStream:
        """`async with client.sse(url) as events: async for event in events: ...` (server-sent events).

        - method: the method of the request (default "GET")

        The other arguments are those of `request`. Raises StatusError unless the status is 2xx, DecodingError unless the content is text/event-stream.
        """
        return AsyncEventStream(self.stream(method, url, **AsyncEventStream.with_headers({**arguments})))

    def websocket(
        self,
        url: URL | str,
        *,
        subprotocols: Iterable[str] | None = None,
        compression: bool = True,
        max_message_bytes: int | None = 16777216,
        ping_interval: float | None = 20.0,
        ping_timeout: float | None = 20.0,
        close_timeout: float = 10.0,
        auth: AuthTypes = UNSET,
        follow_redirects: bool = False,
        **arguments: Unpack[HandshakeOptions],
    ) -> AsyncWebSocketContext:
        """`async with client.websocket("wss://host/chat") as ws: async for message in ws: ...`; leaving the block closes it.

        The arguments are those of `Client.websocket`. Raises WebSocketRefused.
        """
        options = WebSocketOptions.of(
            subprotocols,
            compression=compression,
            max_message_bytes=max_message_bytes,
            ping_interval=ping_interval,
            ping_timeout=ping_timeout,
            close_timeout=close_timeout,
        )
        request = websocket_request(self, url, options, {**arguments})

        async def connect() -> AsyncWebSocket:
            response = await self.send(request, auth=auth, follow_redirects=follow_redirects)
            return AsyncWebSocket(self, response)

        return AsyncWebSocketContext(connect)

    async def prewarm(self, url: URL | str, n: int = 1) -> int:
        """Opens connections to the origin of `url` until `n` are idle (default 1). Returns how many are."""
        pool, scheme, host, port = self._prewarm_target(url)
        warm: int = await pool.prewarm(scheme, host, port, n)
        return warm

    async def aclose(self) -> None:
        """Closes connections and transports. Later calls raise ClientClosed."""
        if not self._closed:
            self._closed = True
            self._fast_path = False
            for transport in self._own_transports():
                await transport.aclose()
            for pool in self._pools.values():
                await pool.aclose()
            log_events()

    async def __aenter__(self) -> Self:
        for transport in self._own_transports():
            if hasattr(transport, "__aenter__"):
                await transport.__aenter__()
        return self

    async def __aexit__(self, *details: Any) -> None:
        await self.aclose()

    @property
    def _backend(self) -> AsyncBackend:
        return AsyncBackend(self._transport_for, self._tracer)

    async def _slow_request(
        self, method: str, url: Any, *, auth: Any = UNSET, follow_redirects: Any = UNSET, **arguments: Any
    ) -> Response:
        """Called by the native base class for a call that needs Python."""
        request = self.build_request(method, url, **arguments)
        return await self.send(request, auth=auth, follow_redirects=follow_redirects)

    async def _finish_in_python(self, response: Response) -> Response:
        """Called by the native base class for a response that needs Python: a redirect, a cookie, a status to retry."""
        settings, request = self._resume(response)
        response = self._finish_response(await flow.call(self._backend, settings, request, response), request)
        return await _aread(response)

    def _new_pool(self, proxy: Proxy | None) -> Any:
        return AsyncPool(dataclasses.replace(self._options, proxy=proxy))

    def _native_transport(self, pool: Any) -> AsyncNativeTransport:
        return AsyncNativeTransport(pool, self._options)


async def _aread(response: Response) -> Response:
    try:
        await response.aread()
    except BaseException:
        await response.aclose()
        raise
    return response
