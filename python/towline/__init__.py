"""Towline: an HTTP server, client and load tester for Python on one Rust engine.

The server:

    towline.serve("module:app", port=8000, workers=4)      # as `towline serve`
    towline.Server(towline.ServerConfig(app)).run()        # one worker in this process
    await towline.Server(config).serve()                   # inside a running event loop

The client:

    with towline.Client() as client:
        client.get("https://example.org").json()
    async with towline.AsyncClient() as client:
        await client.post(url, json={...})

Names are imported when they are first used, so `import towline` takes little time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._native import ServerSentEvent
    from .client.api import delete, get, head, options, patch, post, put, request, stream
    from .client.async_client import AsyncClient
    from .client.auth import Auth, BasicAuth, BearerAuth, FunctionAuth, NetRCAuth
    from .client.body_sources import AsyncByteStream, SyncByteStream
    from .client.client import Client
    from .client.cookies import Cookies
    from .client.digest import DigestAuth
    from .client.headers import Headers
    from .client.options import TLS, Limits, Progress, Proxy, Retry, Timeout
    from .client.query import QueryParams
    from .client.request import Request
    from .client.response import Response
    from .client.status_codes import codes
    from .client.transport_choice import configure
    from .client.transports import (
        ASGITransport,
        AsyncBaseTransport,
        BaseTransport,
        MockTransport,
        WSGITransport,
    )
    from .client.url import URL
    from .client.websocket import AsyncWebSocket, WebSocket
    from .config import ServerConfig
    from .errors import (
        ClientClosed,
        ClientDisconnected,
        ConfigError,
        ConnectError,
        ConnectTimeout,
        DecodingError,
        DecompressionLimit,
        DNSError,
        Error,
        ImportFromStringError,
        InvalidHeader,
        InvalidURL,
        LocalProtocolError,
        NetworkError,
        PoolTimeout,
        ProtocolError,
        ProxyError,
        ReadError,
        ReadTimeout,
        RemoteProtocolError,
        ResponseError,
        ResponseStateError,
        ServerDisconnected,
        StartupError,
        StatusError,
        StreamConsumed,
        TimeoutError,
        TLSError,
        TooManyRedirects,
        TotalTimeout,
        TransportError,
        UsageError,
        WebSocketClosed,
        WebSocketRefused,
        WriteError,
        WriteTimeout,
    )
    from .server import Server, run, serve

__all__ = [
    "TLS",
    "URL",
    "ASGITransport",
    "AsyncBaseTransport",
    "AsyncByteStream",
    "AsyncClient",
    "AsyncWebSocket",
    "Auth",
    "BaseTransport",
    "BasicAuth",
    "BearerAuth",
    "Client",
    "ClientClosed",
    "ClientDisconnected",
    "ConfigError",
    "ConnectError",
    "ConnectTimeout",
    "Cookies",
    "DNSError",
    "DecodingError",
    "DecompressionLimit",
    "DigestAuth",
    "Error",
    "FunctionAuth",
    "Headers",
    "ImportFromStringError",
    "InvalidHeader",
    "InvalidURL",
    "Limits",
    "LocalProtocolError",
    "MockTransport",
    "NetRCAuth",
    "NetworkError",
    "PoolTimeout",
    "Progress",
    "ProtocolError",
    "Proxy",
    "ProxyError",
    "QueryParams",
    "ReadError",
    "ReadTimeout",
    "RemoteProtocolError",
    "Request",
    "Response",
    "ResponseError",
    "ResponseStateError",
    "Retry",
    "Server",
    "ServerConfig",
    "ServerDisconnected",
    "ServerSentEvent",
    "StartupError",
    "StatusError",
    "StreamConsumed",
    "SyncByteStream",
    "TLSError",
    "Timeout",
    "TimeoutError",
    "TooManyRedirects",
    "TotalTimeout",
    "TransportError",
    "UsageError",
    "WSGITransport",
    "WebSocket",
    "WebSocketClosed",
    "WebSocketRefused",
    "WriteError",
    "WriteTimeout",
    "__version__",
    "codes",
    "configure",
    "delete",
    "get",
    "head",
    "options",
    "patch",
    "post",
    "put",
    "request",
    "run",
    "serve",
    "stream",
]

# module -> names; a name that is not listed is an exception
_MODULES = {
    "._native": "ServerSentEvent",
    "._version": "__version__",
    ".client.api": "delete get head options patch post put request stream",
    ".client.async_client": "AsyncClient",
    ".client.auth": "Auth BasicAuth BearerAuth FunctionAuth NetRCAuth",
    ".client.client": "Client",
    ".client.status_codes": "codes",
    ".client.cookies": "Cookies",
    ".client.digest": "DigestAuth",
    ".client.transport_choice": "configure",
    ".client.headers": "Headers",
    ".client.options": "Limits Progress Proxy Retry TLS Timeout",
    ".client.query": "QueryParams",
    ".client.request": "Request",
    ".client.response": "Response",
    ".client.body_sources": "AsyncByteStream SyncByteStream",
    ".client.transports": "ASGITransport AsyncBaseTransport BaseTransport MockTransport WSGITransport",
    ".client.url": "URL",
    ".client.websocket": "AsyncWebSocket WebSocket",
    ".config": "ServerConfig",
    ".server": "Server run serve",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in __all__ and name != "__version__":
        hint = _hint(name) if not name.startswith("_") else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    value = getattr(import_module(_MODULE_OF.get(name, ".errors"), __name__), name)
    globals()[name] = value
    return value


def _hint(name: str) -> str:
    from ._suggest import closest
    from .client.hints import MODULE

    if name in MODULE:
        return f"; here it is {MODULE[name]}"
    close = closest(name, __all__)
    return f"; did you mean {close}?" if close else ""


def __dir__() -> list[str]:
    return __all__
