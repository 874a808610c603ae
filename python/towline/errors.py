"""All exceptions that Towline raises. The native module imports these classes by name.

```
Error
├ UsageError
│  ├ ConfigError(ValueError) ─ ImportFromStringError
│  ├ ResponseStateError(RuntimeError)
│  ├ StreamError(RuntimeError) ─ StreamConsumed ResponseNotRead RequestNotRead
│  └ InvalidURL(ValueError) InvalidHeader(ValueError) CookieConflict ClientClosed
├ StartupError
├ ClientDisconnected(OSError)
├ TransportError ─ .phase .retryable .bytes_sent .bytes_received .reused
│  ├ Timeout ─ TimeoutError(builtins.TimeoutError) ─ ConnectTimeout ReadTimeout WriteTimeout PoolTimeout TotalTimeout
│  ├ NetworkError(OSError) ─ ConnectError (DNSError TLSError) ReadError WriteError
│  ├ ProxyError
│  ├ ProtocolError ─ .rule ─ RemoteProtocolError (ServerDisconnected) LocalProtocolError (InvalidHeader)
│  └ UnsupportedProtocol(InvalidURL)
├ ResponseError ─ StatusError TooManyRedirects DecodingError DecompressionLimit WebSocketRefused
├ WebSocketClosed ─ .code .reason .rule
└ StateError ─ StateFull StateConflict StateClosed StateUnavailable(OSError) LockTimeout LockLost OnceInProgress SlowSubscriber
```

Classes of httpx (HTTPError, RequestError) and requests (ConnectionError, ChunkedEncodingError) are bases of several, so that an
`except` with a name of theirs catches ours.

StartupError and ClientDisconnected belong to the server, TransportError, ResponseError and WebSocketClosed to the client,
StateError to `towline.state`, which exports it and its subclasses.
The text of an error of a call ends with the method and the URL of its request. Messages contain no secrets: URLs and header
fields in them are redacted with `_redact`.
"""

from __future__ import annotations

import builtins
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._redact import without_userinfo

if TYPE_CHECKING:
    from .client.request import Request
    from .client.response import Response


_MAX_URL = 200  # characters of a URL in a message


def _naming_request(text: str, request: Request | None) -> str:
    """Adds method and URL of the request to the text of an error."""
    if request is None:
        return text
    url = request.url._redacted()
    if len(url) > _MAX_URL:
        url = f"{url[:_MAX_URL]}..."
    return f"{text} ({request.method} {url})"


class Error(Exception):
    """The base class: `except towline.Error` catches every exception of Towline."""


class UsageError(Error):
    """The program made a mistake: a call that cannot be carried out."""


class ConfigError(UsageError, ValueError):
    """An option has an invalid value; the message starts with the name of the option."""


class ImportFromStringError(ConfigError):
    """`module:attribute` cannot be imported; the message suggests similar names."""


class ResponseStateError(UsageError, RuntimeError):
    """The application sent a message in the wrong state of its response (body before start, a second start)."""


class StartupError(Error):
    """The server could not start: a port in use, an unreadable certificate, a failed lifespan.

    The command line prints its message and exits with status 3.
    """


class ClientDisconnected(Error, OSError):
    """Raised by `send()` after the client has disconnected (ASGI specification 2.4: a subclass of OSError)."""


class InvalidURL(UsageError, ValueError):
    """A URL that cannot be requested; the message names the part and the reason."""


class StreamError(UsageError, RuntimeError):
    """The body of a message is not in the state that the program expects."""


class StreamConsumed(StreamError):
    """A stream was read a second time, or after its response had been closed."""


class ResponseNotRead(StreamError):
    """The content of a streamed response, before it was read."""


class RequestNotRead(StreamError):
    """The content of a request whose body is a stream, before it was read."""


class CookieConflict(UsageError):
    """Several cookies have the name."""


class ClientClosed(UsageError, RuntimeError):
    """A call on a client that has been closed."""


class HTTPError(Error):
    """As in httpx: a call failed, or its response has an error status. `request` and `response` are None if unknown."""

    request: Request | None = None
    response: Response | None = None


class RequestError(HTTPError):
    """As in httpx: a call failed, whatever the status of its response."""


class TransportError(RequestError):
    """A call failed before its response was complete.

    - `phase`: the failed phase: "pool", "dns", "connect", "proxy", "tls", "write", "head", "body"; None if unknown
    - `retryable`: sending the request again is safe: the server cannot have processed it, or it is idempotent
      (RFC 9110 9.2.2); and its body can be replayed
    - `bytes_sent`, `bytes_received`: bytes on the wire until the failure
    - `reused`: the connection had carried another request before
    - `request`: the `Request`; None if there is none
    """

    def __init__(
        self,
        message: str = "",
        *,
        phase: str | None = None,
        retryable: bool = False,
        bytes_sent: int = 0,
        bytes_received: int = 0,
        reused: bool = False,
        request: Request | None = None,
    ) -> None:
        super().__init__(without_userinfo(message))
        self.phase = phase
        self.retryable = retryable
        self.bytes_sent = bytes_sent
        self.bytes_received = bytes_received
        self.reused = reused
        self.request = request

    def __str__(self) -> str:
        return _naming_request(super().__str__(), self.request)


class _TimeoutType(type):
    """`Timeout` is a setting in httpx and an exception in requests, and Python can only catch exceptions. So `Timeout(5.0)` makes
    the settings, which are instances, and `except Timeout` catches what is derived from it."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        return (_settings() if cls is Timeout else super().__call__)(*args, **options)

    def __instancecheck__(cls, instance: Any) -> bool:
        return super().__instancecheck__(instance) or (cls is Timeout and isinstance(instance, _settings()))


def _settings() -> Any:
    # Loaded by name when it is needed: errors are below the client.
    return import_module("towline.client.options").Timeout


class Timeout(TransportError, metaclass=_TimeoutType):
    """As in requests: every timeout of a call. A call makes the settings of `timeout=`, as in httpx: `Timeout(5.0)`."""


class TimeoutError(Timeout, builtins.TimeoutError):
    """A timeout of `timeout=` has expired; each subclass corresponds to a field of `Timeout`."""


class ConnectionError(TransportError):
    """As in requests: there was no connection, or it failed."""


class ChunkedEncodingError(TransportError):
    """As in requests: the body of a response is incomplete or malformed."""


class ConnectTimeout(TimeoutError, ConnectionError):
    """No connection was established within `Timeout.connect`, including name resolution, handshakes and proxies."""


class ReadTimeout(TimeoutError):
    """The peer sent nothing for `Timeout.read` seconds."""


class WriteTimeout(TimeoutError):
    """The peer accepted nothing for `Timeout.write` seconds."""


class PoolTimeout(TimeoutError, ConnectionError):
    """No connection was available within `Timeout.pool`, or the queue is full (`Limits.max_queue`)."""


class TotalTimeout(TimeoutError):
    """The call did not complete within `Timeout.total`."""


class NetworkError(ConnectionError, OSError):
    """The network failed; `errno` is the error number of the system, or None."""

    def __init__(self, message: str = "", *, errno: int | None = None, **details: Any) -> None:
        super().__init__(message, **details)
        self.errno = errno


class ConnectError(NetworkError):
    """No connection could be established: refused, unreachable, no such socket."""


class DNSError(ConnectError):
    """The host has no address, or the resolver did not respond."""


class TLSError(ConnectError):
    """The TLS handshake failed, or the certificate was rejected; the message gives the reason."""


class ReadError(NetworkError, ChunkedEncodingError):
    """The connection failed while the response was read."""


class WriteError(NetworkError):
    """The connection failed while the request was sent."""


class ProxyError(ConnectionError):
    """The proxy rejected the connection, or violated its protocol."""


class ProtocolError(TransportError):
    """A rule of HTTP was violated; `rule` names it and its section."""

    def __init__(self, message: str = "", *, rule: str | None = None, **details: Any) -> None:
        super().__init__(message, **details)
        self.rule = rule


class RemoteProtocolError(ProtocolError, ConnectionError, ChunkedEncodingError):
    """The peer violated the rule; its connection is closed."""


class ServerDisconnected(RemoteProtocolError):
    """The peer closed the connection before its response was complete."""


class LocalProtocolError(ProtocolError):
    """The program violated the rule, for example with a body shorter than its Content-Length."""


class InvalidHeader(LocalProtocolError, UsageError, ValueError):
    """A header name or value that is not allowed on the wire (RFC 9110 5.1, 5.5)."""


class UnsupportedProtocol(InvalidURL, TransportError):
    """The URL has no host, or a scheme other than http and https."""


class ResponseError(Error):
    """A response was received that is not usable. `response` and `request` are None if they are not known."""

    def __init__(
        self, message: str = "", *, request: Request | None = None, response: Response | None = None
    ) -> None:
        super().__init__(without_userinfo(message))
        self.response = response
        self.request = request

    def __str__(self) -> str:
        return _naming_request(super().__str__(), self.request)


class StatusError(ResponseError, HTTPError):
    """Raised by `raise_for_status()` for a status other than 2xx; it has a response and a request."""

    request: Request
    response: Response


class TooManyRedirects(ResponseError, RequestError):
    """More than `max_redirects` redirects in a row."""


class DecodingError(ResponseError, RequestError):
    """The content cannot be decoded: a malformed content coding or event stream, a line that is too long."""


class DecompressionLimit(ResponseError):
    """The decoded content is larger than `max_decompressed_size`, or there are too many content codings."""


class WebSocketRefused(ResponseError):
    """The server rejected the opening handshake of a WebSocket; `response` is its response, its content read."""


class WebSocketClosed(Error):
    """The WebSocket is closed: nothing more can be received or sent.

    - `code`, `reason`: of the close frame (RFC 6455 7.4); 1005: without a code, 1006: without a close frame
    - `rule`: the cause of an abnormal end: the rule that the server violated, or the timeout that expired; else None
    """

    def __init__(self, code: int = 1006, reason: str = "", *, rule: str | None = None) -> None:
        cause = f": {reason}" if reason else f": {rule}" if rule else ""
        super().__init__(f"the WebSocket was closed ({code}){cause}")
        self.code = code
        self.reason = reason
        self.rule = rule


class StateError(Error):
    """The shared state cannot do this: a value of another kind, a file that is no store."""


class StateFull(StateError):
    """The store has reached its size, and nothing may be evicted. Nothing has been changed."""


class StateConflict(StateError):
    """Another writer changed a key that the transaction had read, as often as it was tried. Nothing has been changed."""


class StateClosed(StateError):
    """This process has closed the state: open it again, because another try does not help."""


class StateUnavailable(StateError, OSError):
    """The store cannot be reached or opened."""


class LockTimeout(StateError, builtins.TimeoutError):
    """The lock or semaphore was not free within its `timeout`."""


class LockLost(StateError):
    """The lease had expired before the lock was released or extended: another may have held it since."""


class OnceInProgress(StateError):
    """Another caller runs this once-only operation, which has no result yet."""


class SlowSubscriber(StateError):
    """Messages were lost because the subscriber did not read in time, and its rule is "disconnect"."""
