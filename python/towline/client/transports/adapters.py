"""Adapters for the transports of other libraries: for comparison, and for features that Towline does not have.

Each sends one request, without redirects, cookies and decoding. Errors of the library, while sending and while reading
the body, are raised as Towline's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from importlib import import_module
from typing import Any

from ... import errors
from ..body_sources import AsyncByteStream, SyncByteStream
from ..encode import AsyncIterableBody, BytesBody
from ..request import Request
from ..response import Response
from .base import AsyncBaseTransport, BaseTransport

_READ_BYTES = 65536


class _Httpx:
    """A transport of httpx or httpx2, by default the one that `default` names."""

    default: str

    def __init__(self, inner: Any = None) -> None:
        self.uses_network = inner is None  # else the program chose it, as a mock maybe
        if inner is None:
            import httpx

            inner = getattr(httpx, self.default)(http2=False)
        self.inner = inner
        names = [kind.__module__.partition(".")[0] for kind in type(inner).__mro__]
        self._package: Any = import_module(next(name for name in names if name in ("httpx", "httpx2")))


class HttpxTransport(_Httpx, BaseTransport):
    """Uses a transport of httpx or httpx2, by default `httpx.HTTPTransport`."""

    default = "HTTPTransport"

    def handle_request(self, request: Request) -> Response:
        with _translate_errors(self._package.HTTPError, _HTTPX):
            reply = self.inner.handle_request(_httpx_request(self._package, request))
        stream = _HttpxStream(reply, self._package)
        return _response(reply.status_code, reply.headers.raw, stream, reply.extensions)

    def close(self) -> None:
        self.inner.close()


class AsyncHttpxTransport(_Httpx, AsyncBaseTransport):
    """Uses an asynchronous transport of httpx or httpx2, by default `httpx.AsyncHTTPTransport`."""

    default = "AsyncHTTPTransport"

    async def handle_async_request(self, request: Request) -> Response:
        with _translate_errors(self._package.HTTPError, _HTTPX):
            reply = await self.inner.handle_async_request(_httpx_request(self._package, request))
        stream = _AsyncHttpxStream(reply, self._package)
        return _response(reply.status_code, reply.headers.raw, stream, reply.extensions)

    async def aclose(self) -> None:
        await self.inner.aclose()


class Urllib3Transport(BaseTransport):
    """Uses a `urllib3.PoolManager`, for `Client`."""

    honours_trace = False
    uses_network = True

    def __init__(self) -> None:
        import urllib3

        self._library: Any = urllib3
        self._manager: Any = urllib3.PoolManager()

    def handle_request(self, request: Request) -> Response:
        seconds = request.extensions.get("timeout") or {}
        headers = self._library.HTTPHeaderDict()
        for name, value in request.headers.raw:
            headers.add(name.decode("ascii"), value.decode("latin-1"))
        stream = request.stream
        with _translate_errors(self._library.exceptions.HTTPError, _URLLIB3):
            reply = self._manager.urlopen(
                request.method,
                str(request.url.copy_with(userinfo=None, fragment=None)),
                body=stream.data or None if isinstance(stream, BytesBody) else stream,
                headers=headers,
                redirect=False,
                retries=False,
                preload_content=False,
                decode_content=False,
                timeout=self._library.Timeout(connect=seconds.get("connect"), read=seconds.get("read")),
            )
        fields = [
            (name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers.iteritems()
        ]
        extensions = {
            "http_version": b"HTTP/1.0" if reply.version == 10 else b"HTTP/1.1",
            "reason_phrase": (reply.reason or "").encode("latin-1", "replace"),
        }
        return _response(reply.status, fields, _Urllib3Stream(reply, self._library), extensions)

    def close(self) -> None:
        self._manager.clear()


class AiohttpTransport(AsyncBaseTransport):
    """Uses an `aiohttp.ClientSession` for each event loop, for `AsyncClient`."""

    honours_trace = False
    uses_network = True

    def __init__(self) -> None:
        import aiohttp

        self._library: Any = aiohttp
        self._session: Any = None
        self._loop: Any = None

    async def handle_async_request(self, request: Request) -> Response:
        session = await self._session_of_loop()
        seconds = request.extensions.get("timeout") or {}
        stream = request.stream
        with _translate_errors((self._library.ClientError, TimeoutError, asyncio.TimeoutError), _AIOHTTP):
            reply = await session.request(
                request.method,
                str(request.url.copy_with(userinfo=None, fragment=None)),
                headers=[
                    (name.decode("ascii"), value.decode("latin-1")) for name, value in request.headers.raw
                ],
                data=stream.data or None if isinstance(stream, BytesBody) else _async_pieces(stream),
                allow_redirects=False,
                timeout=self._library.ClientTimeout(
                    total=seconds.get("total"),
                    sock_connect=seconds.get("connect"),
                    sock_read=seconds.get("read"),
                ),
            )
        extensions = {"reason_phrase": (reply.reason or "").encode("latin-1", "replace")}
        return _response(
            reply.status, list(reply.raw_headers), _AiohttpStream(reply, self._library), extensions
        )

    async def _session_of_loop(self) -> Any:
        loop = asyncio.get_running_loop()
        if self._session is None or self._loop is not loop:
            self._loop = loop
            self._session = self._library.ClientSession(
                auto_decompress=False,
                cookie_jar=self._library.DummyCookieJar(),
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            )
        return self._session

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


class _Stream:
    """The body of a response of another library."""

    def __init__(self, reply: Any, library: Any) -> None:
        self._reply = reply
        self._library = library


class _HttpxStream(_Stream, SyncByteStream):
    def __iter__(self) -> Iterator[bytes]:
        with _translate_errors(self._library.HTTPError, _HTTPX):
            yield from self._reply.stream

    def close(self) -> None:
        self._reply.close()


class _AsyncHttpxStream(_Stream, AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _translate_errors(self._library.HTTPError, _HTTPX):
            async for piece in self._reply.stream:
                yield piece

    async def aclose(self) -> None:
        await self._reply.aclose()


class _Urllib3Stream(_Stream, SyncByteStream):
    def __iter__(self) -> Iterator[bytes]:
        with _translate_errors(self._library.exceptions.HTTPError, _URLLIB3):
            yield from self._reply.stream(_READ_BYTES, decode_content=False)

    def close(self) -> None:
        if not self._reply.isclosed():
            self._reply.close()  # unread bytes must not be taken for the next response
        self._reply.release_conn()


class _AiohttpStream(_Stream, AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _translate_errors((self._library.ClientError, TimeoutError, asyncio.TimeoutError), _AIOHTTP):
            async for piece in self._reply.content.iter_any():
                yield piece

    async def aclose(self) -> None:
        if self._reply.content.is_eof():
            self._reply.release()
        else:
            self._reply.close()


def _response(status: int, fields: Any, stream: Any, extensions: dict[str, Any]) -> Response:
    kept = {name: value for name, value in extensions.items() if name in ("http_version", "reason_phrase")}
    response = Response(status, stream=stream, extensions=kept)
    # the library has parsed the fields, maybe more leniently than `Headers` checks those of programs
    response._init_head(status, fields, version=response.http_version, reason=kept.get("reason_phrase", b""))
    response._headers = None
    return response


def _httpx_request(package: Any, request: Request) -> Any:
    seconds = request.extensions.get("timeout") or {}
    timeout = {phase: seconds.get(phase) for phase in ("connect", "read", "write", "pool")}
    extensions: dict[str, Any] = {
        name: request.extensions[name]
        for name in ("target", "sni_hostname", "trace")
        if name in request.extensions
    }
    stream = request.stream
    if isinstance(stream, BytesBody):
        stream = package.ByteStream(stream.data)
    elif isinstance(stream, AsyncIterableBody) or not hasattr(stream, "__iter__"):
        stream = _stream_over(package.AsyncByteStream, stream)
    else:
        stream = _stream_over(package.SyncByteStream, stream)
    return package.Request(
        request.method,
        str(request.url),
        headers=request.headers.raw,
        stream=stream,
        extensions={**extensions, "timeout": timeout},
    )


def _stream_over(base: Any, stream: Any) -> Any:
    """Returns an instance of a stream class of the package that iterates over `stream`."""

    class Stream(base):  # type: ignore[misc]
        def __iter__(self) -> Iterator[bytes]:
            return iter(stream)

        def __aiter__(self) -> AsyncIterator[bytes]:
            return _async_pieces(stream)

    return Stream()


async def _async_pieces(stream: Any) -> AsyncIterator[bytes]:
    if isinstance(stream, AsyncIterableBody) or not hasattr(stream, "__iter__"):
        async for piece in stream:
            yield piece
    else:
        for piece in stream:
            yield piece


@contextlib.contextmanager
def _translate_errors(theirs: Any, names: dict[str, type[errors.Error]]) -> Iterator[None]:
    try:
        yield
    except errors.Error:
        raise
    except theirs as error:
        bases = (base.__name__ for base in type(error).__mro__)
        kind = next((names[name] for name in bases if name in names), errors.TransportError)
        raise kind(str(error) or type(error).__name__) from error


_SAME = "ConnectTimeout ReadTimeout WriteTimeout PoolTimeout ConnectError ReadError WriteError NetworkError "
_SAME += "LocalProtocolError RemoteProtocolError ProtocolError ProxyError UnsupportedProtocol"
_HTTPX: dict[str, type[errors.Error]] = {
    **{name: getattr(errors, name) for name in _SAME.split()},
    "TimeoutException": errors.TimeoutError,
}
_URLLIB3: dict[str, type[errors.Error]] = {
    "ConnectTimeoutError": errors.ConnectTimeout,
    "ReadTimeoutError": errors.ReadTimeout,
    "TimeoutError": errors.TimeoutError,
    "NameResolutionError": errors.DNSError,
    "NewConnectionError": errors.ConnectError,
    "SSLError": errors.TLSError,
    "ProxyError": errors.ProxyError,
    "IncompleteRead": errors.ServerDisconnected,
    "ProtocolError": errors.RemoteProtocolError,
    "LocationParseError": errors.InvalidURL,
}
_AIOHTTP: dict[str, type[errors.Error]] = {
    "ConnectionTimeoutError": errors.ConnectTimeout,
    "SocketTimeoutError": errors.ReadTimeout,
    "ClientConnectorDNSError": errors.DNSError,
    "ClientSSLError": errors.TLSError,
    "ClientConnectorCertificateError": errors.TLSError,
    "ClientProxyConnectionError": errors.ProxyError,
    "ClientConnectorError": errors.ConnectError,
    "ServerDisconnectedError": errors.ServerDisconnected,
    "ServerTimeoutError": errors.ReadTimeout,
    "ClientOSError": errors.NetworkError,
    "ClientPayloadError": errors.RemoteProtocolError,
    "ClientResponseError": errors.RemoteProtocolError,
    "InvalidURL": errors.InvalidURL,
    "TimeoutError": errors.TotalTimeout,
}
