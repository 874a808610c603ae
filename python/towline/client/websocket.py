"""WebSockets of both clients: `client.websocket(url)`.

The opening handshake is a request with the auth, cookies, proxies and hooks of the client. Messages are then received
natively and on demand: flow control keeps them at the server until `recv()`, except for one message of up to 64 KiB.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from .._native import dump_json, load_json
from ..errors import ConfigError, DecodingError, InvalidHeader, UsageError, WebSocketClosed, WebSocketRefused
from .encode import BytesBody
from .headers import is_token
from .request import Request
from .response import Response
from .url import URL

if TYPE_CHECKING:
    from .._native import AsyncSocket, Handshake, SyncSocket

Message: TypeAlias = "str | bytes"

_SCHEMES = {"ws": "http", "wss": "https"}
_HANDSHAKE_HEADERS = frozenset(
    f"sec-websocket-{name}" for name in ("accept", "extensions", "key", "protocol", "version")
) | {"connection", "upgrade"}
_CLEAN_CLOSE_CODES = (1000, 1001, 1005)
_NORMAL, _INTERNAL_ERROR = 1000, 1011


@dataclass(frozen=True)
class WebSocketOptions:
    """The options of a WebSocket; docs/call.md explains each. Raises ConfigError.

    - max_message_bytes: after decompression. 16 MiB, the default of Towline's server; a larger message fails with 1009
    - ping_interval, ping_timeout: 20 s each, below the 60 s after which load balancers drop a silent connection
    - close_timeout: 10 s for the server's close frame, and again for the end of its connection
    """

    subprotocols: tuple[str, ...] = ()
    compression: bool = True
    max_message_bytes: int | None = 16 * 1024 * 1024
    ping_interval: float | None = 20.0
    ping_timeout: float | None = 20.0
    close_timeout: float = 10.0

    @classmethod
    def of(cls, subprotocols: Iterable[str] | None, **options: Any) -> WebSocketOptions:
        if isinstance(subprotocols, str):
            raise ConfigError("subprotocols: expected a list of names, not one string")
        return cls(tuple(subprotocols or ()), **options)

    def __post_init__(self) -> None:
        for name in self.subprotocols:
            if not is_token(name):
                raise ConfigError(f"subprotocols: {name!r} is not a token (RFC 6455 4.1)")
        if len(set(self.subprotocols)) < len(self.subprotocols):
            raise ConfigError("subprotocols: each may appear only once (RFC 6455 4.1)")
        max_bytes = self.max_message_bytes
        if max_bytes is not None and (
            isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 1
        ):
            raise ConfigError(
                f"max_message_bytes: expected a number of at least 1 or None, not {max_bytes!r}"
            )
        for name in ("ping_interval", "ping_timeout", "close_timeout"):
            seconds = getattr(self, name)
            if seconds is None and name != "close_timeout":
                continue
            if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
                raise ConfigError(f"{name}: expected seconds above 0, not {seconds!r}")


def websocket_request(client: Any, url: Any, options: WebSocketOptions, arguments: dict[str, Any]) -> Request:
    """Builds the request of an opening handshake, without the headers that the engine adds."""
    url = client._merged_url(URL(url))
    if url.scheme in _SCHEMES:
        url = url.copy_with(scheme=_SCHEMES[url.scheme])
    request: Request = client.build_request("GET", url, **arguments)
    for name in request.headers:
        if name.lower() in _HANDSHAKE_HEADERS:
            raise InvalidHeader(
                f"{name}: set by the handshake; see subprotocols= and compression= of websocket()"
            )
    if not getattr(client._transport_for(request), "opens_websockets", False):
        raise UsageError("websocket() needs Towline's own transport; another transport serves this URL")
    request.extensions["websocket"] = options
    return request


def handshake_response(handshake: Handshake) -> Response:
    """Converts the response to an opening handshake, for the flow."""
    extensions = {
        "http_version": handshake.version.encode("ascii"),
        "reason_phrase": handshake.reason,
        "websocket": handshake.socket,
    }
    content = BytesBody(handshake.content)
    try:
        return Response(handshake.status, headers=handshake.headers, stream=content, extensions=extensions)
    except DecodingError:  # the content is incomplete
        return Response(handshake.status, headers=handshake.headers, content=b"", extensions=extensions)


def accepted_socket(response: Response) -> Any:
    """Returns the native socket. Raises WebSocketRefused if the server rejected the handshake."""
    socket = response.extensions.pop("websocket", None)
    if socket is None:
        raise WebSocketRefused(
            f"no WebSocket: the server responded {response.status_code} {response.reason_phrase}".rstrip(),
            request=response.request,
            response=response,
        )
    return socket


class _Socket:
    """The common part of both WebSocket classes. `response`: the response that accepted the handshake."""

    response: Response
    _socket: Any
    _dumps: Callable[[Any], bytes | str]
    _loads: Callable[[Any], Any]

    def __init__(self, client: Any, response: Response) -> None:
        self.response = response
        self._socket = accepted_socket(response)
        chosen: bytes | None = self._socket.subprotocol
        self.subprotocol: str | None = None if chosen is None else chosen.decode("ascii")
        self._dumps = client._json_dumps or dump_json
        self._loads = client._json_loads or load_json

    @property
    def close_code(self) -> int | None:
        """The close code, once all messages have been received; 1006 without a close frame, None before."""
        closed: tuple[int, str] | None = self._socket.closed
        return None if closed is None else closed[0]

    @property
    def close_reason(self) -> str | None:
        """The close reason; None while `close_code` is None."""
        closed: tuple[int, str] | None = self._socket.closed
        return None if closed is None else closed[1]

    def _json(self, value: Any) -> str:
        encoded = self._dumps(value)
        return encoded if isinstance(encoded, str) else bytes(encoded).decode("utf-8")

    def __repr__(self) -> str:
        code = self.close_code
        state = "open" if code is None else f"closed {code}"
        return f"<towline.{type(self).__name__} {repr(self.response.url)[4:-1]} {state}>"


class WebSocket(_Socket):
    """A WebSocket of a `Client`. One thread may receive while others send. Methods raise WebSocketClosed after the end."""

    _socket: SyncSocket

    def send(self, message: Message | bytearray | memoryview) -> None:
        """Sends text (str) or bytes; waits while the send buffer is full. Raises WebSocketClosed after the end."""
        self._socket.send(message)

    def send_json(self, value: Any) -> None:
        """Encodes a value as JSON and sends it as text."""
        self._socket.send(self._json(value))

    def recv(self, timeout: float | None = None) -> Message:
        """Returns the next message, str or bytes. Raises WebSocketClosed after the last, ReadTimeout after `timeout` seconds."""
        return self._socket.receive(timeout)

    def recv_json(self, timeout: float | None = None) -> Any:
        """Receives the next message and parses it as JSON."""
        return self._loads(self._socket.receive(timeout))

    def ping(self, payload: bytes = b"") -> None:
        """Sends a ping of up to 125 bytes, without waiting for the pong. Raises ValueError for a longer payload."""
        self._socket.ping(payload)

    def close(self, code: int = _NORMAL, reason: str = "") -> None:
        """Performs the closing handshake, for at most `close_timeout` seconds. Messages that were not received are dropped."""
        self._socket.close(code, reason)

    def __iter__(self) -> Iterator[Message]:
        """Iterates over messages until a close with code 1000, 1001 or none; raises WebSocketClosed for any other end."""
        while True:
            try:
                message = self._socket.receive()
            except WebSocketClosed as closed:
                if closed.code in _CLEAN_CLOSE_CODES:
                    return
                raise
            yield message

    def __enter__(self) -> WebSocket:
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        self.close(_NORMAL if kind is None else _INTERNAL_ERROR)


class AsyncWebSocket(_Socket):
    """A WebSocket of an `AsyncClient`. One task may receive while others send. Pings get their pongs between operations."""

    _socket: AsyncSocket

    async def send(self, message: Message | bytearray | memoryview) -> None:
        """The asynchronous form of `WebSocket.send`. If cancelled, the whole message has been sent, or nothing."""
        await self._socket.send(message)

    async def send_json(self, value: Any) -> None:
        """The asynchronous form of `WebSocket.send_json`."""
        await self._socket.send(self._json(value))

    async def recv(self, timeout: float | None = None) -> Message:
        """The asynchronous form of `WebSocket.recv`. If cancelled, the message is left for the next call."""
        return await self._socket.receive(timeout)

    async def recv_json(self, timeout: float | None = None) -> Any:
        """The asynchronous form of `WebSocket.recv_json`."""
        return self._loads(await self._socket.receive(timeout))

    async def ping(self, payload: bytes = b"") -> None:
        """The asynchronous form of `WebSocket.ping`."""
        await self._socket.ping(payload)

    async def close(self, code: int = _NORMAL, reason: str = "") -> None:
        """The asynchronous form of `WebSocket.close`."""
        closing = self._socket.close(code, reason)
        try:
            await closing
        except BaseException:
            # cancelled: do not leave the connection open
            self._socket.abort()
            raise

    async def __aiter__(self) -> AsyncIterator[Message]:
        while True:
            try:
                message = await self._socket.receive()
            except WebSocketClosed as closed:
                if closed.code in _CLEAN_CLOSE_CODES:
                    return
                raise
            yield message

    async def __aenter__(self) -> AsyncWebSocket:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *details: object) -> None:
        await self.close(_NORMAL if kind is None else _INTERNAL_ERROR)


class AsyncWebSocketContext:
    """Returned by `AsyncClient.websocket`: to be awaited, or entered with `async with`."""

    def __init__(self, connect: Callable[[], Awaitable[AsyncWebSocket]]) -> None:
        self._connect = connect
        self._entered: AsyncWebSocket | None = None

    def __await__(self) -> Generator[Any, Any, AsyncWebSocket]:
        return self._connect().__await__()

    async def __aenter__(self) -> AsyncWebSocket:
        self._entered = await self._connect()
        return self._entered

    async def __aexit__(self, *details: Any) -> None:
        if self._entered is not None:
            await self._entered.__aexit__(*details)
