"""Every exception Towline raises, defined once. The native module imports these classes by name.

```
Error
├ UsageError
│  ├ ConfigError(ValueError) ─ ImportFromStringError
│  ├ ResponseStateError(RuntimeError)
│  └ InvalidURL(ValueError) InvalidHeader(ValueError) StreamConsumed ClientClosed
├ StartupError
├ ClientDisconnected(OSError)
├ TransportError ─ .phase .retryable .bytes_sent .bytes_received .reused
│  ├ TimeoutError(builtins.TimeoutError) ─ ConnectTimeout ReadTimeout WriteTimeout PoolTimeout TotalTimeout
│  ├ NetworkError(OSError) ─ ConnectError DNSError TLSError ReadError WriteError
│  ├ ProxyError
│  └ ProtocolError ─ .rule ─ RemoteProtocolError (ServerDisconnected) LocalProtocolError
├ ResponseError ─ StatusError TooManyRedirects DecodingError DecompressionLimit WebSocketRefused
└ WebSocketClosed ─ .code .reason .rule
```

The upper half is the server's, TransportError and ResponseError are the client's, UsageError is both's. No secret
stands in a message: whoever writes one takes URLs and fields through `_redact`.
"""

from __future__ import annotations

import builtins
from typing import Any

from ._redact import without_userinfo


class Error(Exception):
    """The root: `except towline.Error` catches whatever is ours."""


class UsageError(Error):
    """The calling program asked for something that cannot be done."""


class ConfigError(UsageError, ValueError):
    """An option has a value that makes no sense; the message starts with the option's name."""


class ImportFromStringError(ConfigError):
    """`module:attribute` names nothing that can be imported; the message suggests what may be meant."""


class ResponseStateError(UsageError, RuntimeError):
    """The application sent a message that its response cannot take now (body before start, two starts)."""


class StartupError(Error):
    """The server could not begin to serve: a port in use, an unreadable certificate, a failed lifespan.

    On the command line it becomes one message and exit status 3.
    """


class ClientDisconnected(Error, OSError):
    """`send()` after the client has gone (ASGI specification 2.4 asks for an OSError)."""


class InvalidURL(UsageError, ValueError):
    """A URL that cannot be requested; the message says which part and why."""


class InvalidHeader(UsageError, ValueError):
    """A field name or value that must not go on the wire (RFC 9110 5.1, 5.5)."""


class StreamConsumed(UsageError):
    """The body was read, or its response closed, before: a stream can be read once."""


class ClientClosed(UsageError):
    """The client was closed before this call."""


class TransportError(Error):
    """The exchange failed on its way.

    - `phase`: where it was: "pool", "dns", "connect", "proxy", "tls", "write", "head", "body"; None: unknown
    - `retryable`: the request cannot have been acted on, or is idempotent: sending it again is safe
    - `bytes_sent`, `bytes_received`: how far it got, in bytes of the wire
    - `reused`: it went out on a connection that had carried an exchange before
    - `request`: the `Request`, where one was made
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
        request: Any = None,
    ) -> None:
        super().__init__(without_userinfo(message))
        self.phase = phase
        self.retryable = retryable
        self.bytes_sent = bytes_sent
        self.bytes_received = bytes_received
        self.reused = reused
        self.request = request


class TimeoutError(TransportError, builtins.TimeoutError):
    """A time of `timeout=` has run out; each class names the part of `Timeout` to raise."""


class ConnectTimeout(TimeoutError):
    """No connection within `Timeout.connect`: names, handshakes and proxies included."""


class ReadTimeout(TimeoutError):
    """The peer sent nothing for `Timeout.read` seconds."""


class WriteTimeout(TimeoutError):
    """The peer took nothing for `Timeout.write` seconds."""


class PoolTimeout(TimeoutError):
    """No connection came free within `Timeout.pool`, or the queue is full (`Limits.max_queue`)."""


class TotalTimeout(TimeoutError):
    """The call was not complete within `Timeout.total`."""


class NetworkError(TransportError, OSError):
    """The network failed; `errno` is the system's number where there is one."""

    def __init__(self, message: str = "", *, errno: int | None = None, **details: Any) -> None:
        super().__init__(message, **details)
        self.errno = errno


class ConnectError(NetworkError):
    """No connection could be made: refused, unreachable, no such socket."""


class DNSError(NetworkError):
    """The host's name has no address, or the resolver did not answer."""


class TLSError(NetworkError):
    """The handshake failed, or the certificate was refused; the message says which and why."""


class ReadError(NetworkError):
    """The connection broke while the response was read."""


class WriteError(NetworkError):
    """The connection broke while the request was written."""


class ProxyError(TransportError):
    """The proxy refused, or spoke nonsense."""


class ProtocolError(TransportError):
    """A rule of HTTP was broken; `rule` names it with its section."""

    def __init__(self, message: str = "", *, rule: str | None = None, **details: Any) -> None:
        super().__init__(message, **details)
        self.rule = rule


class RemoteProtocolError(ProtocolError):
    """The peer broke it: its connection is closed and carries nothing more."""


class ServerDisconnected(RemoteProtocolError):
    """The peer closed the connection before its response was complete."""


class LocalProtocolError(ProtocolError):
    """The calling program broke it, for instance with a body shorter than its Content-Length."""


class ResponseError(Error):
    """A response came, and it is not what was asked for. `response` and `request` are where they are known."""

    def __init__(self, message: str = "", *, request: Any = None, response: Any = None) -> None:
        super().__init__(without_userinfo(message))
        self.response = response
        self.request = request


class StatusError(ResponseError):
    """`raise_for_status()` of a response that is not a success."""


class TooManyRedirects(ResponseError):
    """More than `max_redirects` redirects in a row."""


class DecodingError(ResponseError):
    """The content does not decode: a broken content coding, an event stream against its rules."""


class DecompressionLimit(ResponseError):
    """The decoded content passes `max_decompressed_size`, or there are more codings than are undone."""


class WebSocketRefused(ResponseError):
    """The server answered a request for a WebSocket with something else; `response` is that, its content read."""


class WebSocketClosed(Error):
    """The WebSocket has ended: nothing more can be received or sent.

    - `code`, `reason`: of the close frame (RFC 6455 7.4); 1005: it had no code, 1006: there was none
    - `rule`: where it did not end in order, what was wrong: the rule that the server broke, or what did not come in time
    """

    def __init__(self, code: int = 1006, reason: str = "", *, rule: str | None = None) -> None:
        because = f": {reason}" if reason else f": {rule}" if rule else ""
        super().__init__(f"the WebSocket was closed ({code}){because}")
        self.code = code
        self.reason = reason
        self.rule = rule
