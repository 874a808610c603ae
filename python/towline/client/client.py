"""`Client`: the blocking client. It is thread-safe: all threads share one connection pool."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .._either import run
from .._native import ClientCore, SyncPool, open_stream
from . import flow, hints
from .auth import AuthTypes
from .backends import SyncBackend
from .base import BaseClient
from .observe import log_events
from .options import UNSET, Proxy
from .request import Request
from .response import Response
from .streaming import EventStream, ResponseContext
from .transports.native import NativeTransport
from .url import URL
from .websocket import WebSocket, WebSocketOptions, websocket_request

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from .call_options import BuildOptions, CallOptions, HandshakeOptions


class Client(BaseClient, ClientCore):
    """A client for threads: `with Client() as client: client.get(url)`. All threads may share one."""

    # The native base class handles simple calls. Other calls go through `_slow_request`, and responses that need Python
    # through `_finish_in_python`.

    _is_async = False

    def send(
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
        response = self._finish_response(run(flow.call(self._backend, settings, request)), request)
        return response if stream else _read(response)

    def stream(
        self,
        method: str,
        url: URL | str,
        *,
        auth: AuthTypes = UNSET,
        follow_redirects: bool = UNSET,
        **arguments: Unpack[BuildOptions],
    ) -> ResponseContext:
        """`with client.stream("GET", url) as response:` reads the body on demand; leaving the block closes it.

        The arguments are those of `request`.
        """
        given: dict[str, Any] = {**arguments}
        if auth is not UNSET:
            given["auth"] = auth
        if follow_redirects is not UNSET:
            given["follow_redirects"] = follow_redirects
        return ResponseContext(self._open_stream, method, url, given)

    def sse(self, url: URL | str, *, method: str = "GET", **arguments: Unpack[CallOptions]) -> EventStream:
        """`with client.sse(url) as events: for event in events: ...` (server-sent events).

        - method: the method of the request (default "GET")

        The other arguments are those of `request`. Raises StatusError unless the status is 2xx, DecodingError unless the content is text/event-stream.
        """
        return EventStream(self.stream(method, url, **EventStream.with_headers({**arguments})))

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
    ) -> WebSocket:
        """`with client.websocket("wss://host/chat") as ws: for message in ws: ...`; leaving the block closes it.

        - subprotocols: names to offer, the preferred one first (default None)
        - compression: offer permessage-deflate, RFC 7692 (default True)
        - max_message_bytes: bytes of a message after decompression; a larger one closes with 1009; None: no limit
          (default 16777216)
        - ping_interval: seconds between pings; None: no pings (default 20)
        - ping_timeout: seconds to wait for the pong; then 1011; None: no limit (default 20)
        - close_timeout: seconds for the server's close frame, and again for the end of its connection (default 10)
        - auth, follow_redirects, params, headers, cookies, timeout, retries, extensions: as for `request`; redirects are
          not followed by default

        Raises WebSocketRefused.
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
        return WebSocket(self, self.send(request, auth=auth, follow_redirects=follow_redirects))

    def prewarm(self, url: URL | str, n: int = 1) -> int:
        """Opens connections to the origin of `url` until `n` are idle (default 1). Returns how many are."""
        pool, scheme, host, port = self._prewarm_target(url)
        warm: int = pool.prewarm(scheme, host, port, n)
        return warm

    def close(self) -> None:
        """Closes connections and transports. Later calls raise ClientClosed."""
        if not self._closed:
            self._closed = True
            self._fast_path = False
            for transport in self._own_transports():
                transport.close()
            for pool in self._pools.values():
                pool.close()
            log_events()

    def __enter__(self) -> Self:
        for transport in self._own_transports():
            if hasattr(transport, "__enter__"):
                transport.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self.close()

    @property
    def _backend(self) -> SyncBackend:
        return SyncBackend(self._transport_for, self._tracer)

    def _slow_request(
        self, method: str, url: Any, *, auth: Any = UNSET, follow_redirects: Any = UNSET, **arguments: Any
    ) -> Response:
        """Called by the native base class for a call that needs Python."""
        request = self.build_request(method, url, **arguments)
        return self.send(request, auth=auth, follow_redirects=follow_redirects)

    def _open_stream(self, method: str, url: Any, arguments: dict[str, Any]) -> Response:
        """Sends the request of `stream` when its block is entered, natively if possible."""
        started = time.monotonic()
        opened = open_stream(self, method, url, arguments) if self._stream_transport is None else None
        if opened is None:
            kwargs = dict(arguments)
            options = {name: kwargs.pop(name) for name in ("auth", "follow_redirects") if name in kwargs}
            return self.send(self.build_request(method, url, **kwargs), stream=True, **options)
        response: Response = opened[0]
        response._source, response._started = response._reply, started
        if opened[1]:
            settings, request = self._resume(response, time.monotonic() - started)
            request._streamed, response._request = True, request
            response = run(flow.call(self._backend, settings, request, response))
        else:
            request = None
        return self._finish_response(response, request)

    def _finish_in_python(self, response: Response) -> Response:
        """Called by the native base class for a response that needs Python: a redirect, a cookie, a status to retry."""
        settings, request = self._resume(response)
        response = self._finish_response(run(flow.call(self._backend, settings, request, response)), request)
        return _read(response)

    def _new_pool(self, proxy: Proxy | None) -> Any:
        return SyncPool(dataclasses.replace(self._options, proxy=proxy))

    def _native_transport(self, pool: Any) -> NativeTransport:
        return NativeTransport(pool, self._options)


class Session(Client):
    """`requests.Session` by its name: a `Client` that follows redirects, 30 at most, as it does there."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"follow_redirects": True, "max_redirects": 30, **options})

    def __setattr__(self, name: str, value: Any) -> None:
        if name in hints.CLIENT_NAMES:  # `verify` or `proxies`, which would be ignored
            raise hints.missing("Session", name, hints.CLIENT_NAMES)
        super().__setattr__(name, value)


def _read(response: Response) -> Response:
    try:
        response.read()
    except BaseException:
        response.close()
        raise
    return response
