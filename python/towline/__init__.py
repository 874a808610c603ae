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
    from ._json import JSONDecodeError as JSONDecodeError
    from ._native import ServerSentEvent as ServerSentEvent
    from .client.api import (
        delete as delete,
        get as get,
        head as head,
        options as options,
        patch as patch,
        post as post,
        put as put,
        request as request,
        stream as stream,
    )
    from .client.async_client import AsyncClient as AsyncClient
    from .client.auth import (
        Auth as Auth,
        BasicAuth as BasicAuth,
        BearerAuth as BearerAuth,
        FunctionAuth as FunctionAuth,
        NetRCAuth as NetRCAuth,
    )
    from .client.body_sources import AsyncByteStream as AsyncByteStream, SyncByteStream as SyncByteStream
    from .client.client import Client as Client
    from .client.cookies import Cookies as Cookies
    from .client.digest import DigestAuth as DigestAuth
    from .client.headers import Headers as Headers
    from .client.options import (
        TLS as TLS,
        Limits as Limits,
        Progress as Progress,
        Proxy as Proxy,
        Retry as Retry,
        Timeout as Timeout,
    )
    from .client.query import QueryParams as QueryParams
    from .client.request import Request as Request
    from .client.response import Response as Response
    from .client.status_codes import codes as codes
    from .client.transport_choice import configure as configure
    from .client.transports import (
        ASGITransport as ASGITransport,
        AsyncBaseTransport as AsyncBaseTransport,
        BaseTransport as BaseTransport,
        MockTransport as MockTransport,
        WSGITransport as WSGITransport,
    )
    from .client.transports.native import (
        AsyncHTTPTransport as AsyncHTTPTransport,
        HTTPTransport as HTTPTransport,
    )
    from .client.url import URL as URL
    from .client.websocket import AsyncWebSocket as AsyncWebSocket, WebSocket as WebSocket
    from .config import Address as Address, ServerConfig as ServerConfig
    from .errors import (
        ClientClosed as ClientClosed,
        ClientDisconnected as ClientDisconnected,
        ConfigError as ConfigError,
        ConnectError as ConnectError,
        ConnectTimeout as ConnectTimeout,
        CookieConflict as CookieConflict,
        DecodingError as DecodingError,
        DecompressionLimit as DecompressionLimit,
        DNSError as DNSError,
        Error as Error,
        HTTPError as HTTPError,
        ImportFromStringError as ImportFromStringError,
        InvalidHeader as InvalidHeader,
        InvalidURL as InvalidURL,
        LocalProtocolError as LocalProtocolError,
        NetworkError as NetworkError,
        PoolTimeout as PoolTimeout,
        ProtocolError as ProtocolError,
        ProxyError as ProxyError,
        ReadError as ReadError,
        ReadTimeout as ReadTimeout,
        RemoteProtocolError as RemoteProtocolError,
        RequestError as RequestError,
        RequestNotRead as RequestNotRead,
        ResponseError as ResponseError,
        ResponseNotRead as ResponseNotRead,
        ResponseStateError as ResponseStateError,
        ServerDisconnected as ServerDisconnected,
        StartupError as StartupError,
        StatusError as StatusError,
        StreamConsumed as StreamConsumed,
        StreamError as StreamError,
        TimeoutError as TimeoutError,
        TLSError as TLSError,
        TooManyRedirects as TooManyRedirects,
        TotalTimeout as TotalTimeout,
        TransportError as TransportError,
        UnsupportedProtocol as UnsupportedProtocol,
        UsageError as UsageError,
        WebSocketClosed as WebSocketClosed,
        WebSocketRefused as WebSocketRefused,
        WriteError as WriteError,
        WriteTimeout as WriteTimeout,
    )
    from .server import Server as Server, run as run, serve as serve

# Names by module.
_MODULES = {
    "._json": "JSONDecodeError",
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
    ".client.options": "Limits Progress Proxy Retry TLS",
    ".client.query": "QueryParams",
    ".client.request": "Request",
    ".client.response": "Response",
    ".client.body_sources": "AsyncByteStream SyncByteStream",
    ".client.transports.native": "AsyncHTTPTransport HTTPTransport",
    ".client.transports": "ASGITransport AsyncBaseTransport BaseTransport MockTransport WSGITransport",
    ".client.url": "URL",
    ".client.websocket": "AsyncWebSocket WebSocket",
    ".config": "Address ServerConfig",
    ".server": "Server run serve",
    ".errors": (
        "ClientClosed ClientDisconnected ConfigError ConnectError ConnectTimeout CookieConflict DNSError "
        "DecodingError DecompressionLimit Error HTTPError ImportFromStringError InvalidHeader "
        "InvalidURL LocalProtocolError NetworkError PoolTimeout ProtocolError ProxyError ReadError ReadTimeout "
        "RemoteProtocolError RequestError RequestNotRead ResponseError ResponseNotRead ResponseStateError "
        "ServerDisconnected StartupError StatusError StreamConsumed StreamError TLSError Timeout TimeoutError "
        "TooManyRedirects TotalTimeout TransportError UnsupportedProtocol UsageError WebSocketClosed "
        "WebSocketRefused WriteError WriteTimeout"
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = sorted(_MODULE_OF)  # type checkers read the imports above


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        value = getattr(import_module(_MODULE_OF[name], __name__), name)
    elif name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    else:
        value = import_module(".client.peers", __name__).find(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
