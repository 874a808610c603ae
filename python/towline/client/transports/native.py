"""The native transport: sends requests through a pool of Towline's engine."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

from ..._native import AsyncPool, SyncPool
from ...errors import UnsupportedProtocol
from .. import environment
from ..encode import AsyncIterableBody, Body
from ..options import Limits, PoolOptions, Progress, Proxy, Retry, tls_of
from ..request import Request
from ..response import Response
from ..websocket import handshake_response
from .base import AsyncBaseTransport, BaseTransport


class NativeTransport(BaseTransport):
    """Sends requests through a `_native.SyncPool`. The body of the response is neither read nor decoded."""

    opens_websockets = True
    uses_network = True

    def __init__(self, pool: Any, options: PoolOptions) -> None:
        self.pool, self._options = pool, options

    def handle_request(self, request: Request) -> Response:
        if options := request.extensions.get("websocket"):
            return handshake_response(
                self.pool.open_websocket(*_exchange_arguments(request), options, **_call_options(request))
            )
        if request.extensions.get("trace") is not None:
            from .traced import (
                traced_exchange,
            )  # here because few need it: it makes importing the client slower

            return traced_exchange(self._exchange, request, self._options)
        return self._exchange(request)

    def _exchange(self, request: Request) -> Response:
        reply = self.pool.exchange(*_exchange_arguments(request), _body(request), **_call_options(request))
        return Response._of_reply(reply, is_async=False)

    def close(self) -> None:
        self.pool.close()


class AsyncNativeTransport(AsyncBaseTransport):
    """Sends requests through a `_native.AsyncPool`."""

    opens_websockets = True
    uses_network = True

    def __init__(self, pool: Any, options: PoolOptions) -> None:
        self.pool, self._options = pool, options

    async def handle_async_request(self, request: Request) -> Response:
        if options := request.extensions.get("websocket"):
            return handshake_response(
                await self.pool.open_websocket(
                    *_exchange_arguments(request), options, **_call_options(request)
                )
            )
        if request.extensions.get("trace") is not None:
            from .traced import atraced_exchange

            return await atraced_exchange(self._exchange, request, self._options)
        return await self._exchange(request)

    async def _exchange(self, request: Request) -> Response:
        reply = await self.pool.exchange(
            *_exchange_arguments(request), _body(request), **_call_options(request)
        )
        return Response._of_reply(reply, is_async=True)

    async def aclose(self) -> None:
        await self.pool.aclose()


class HTTPTransport(NativeTransport):
    """As in httpx: a pool of its own, for `transport=` and `mounts=`. The arguments are those of `Client`."""

    def __init__(self, **options: Any) -> None:
        chosen = _pool_options(options)
        super().__init__(SyncPool(chosen), chosen)


class AsyncHTTPTransport(AsyncNativeTransport):
    """`HTTPTransport` for `AsyncClient`."""

    def __init__(self, **options: Any) -> None:
        chosen = _pool_options(options)
        super().__init__(AsyncPool(chosen), chosen)


def _pool_options(options: dict[str, Any]) -> PoolOptions:
    tls = tls_of(options.pop("verify", True), options.pop("cert", None))
    trust_env = options.pop("trust_env", True)
    kinds: dict[str, Any] = {"proxy": Proxy, "limits": Limits, "retries": Retry}
    chosen = {name: kinds[name].of(value) if name in kinds else value for name, value in options.items()}
    return PoolOptions(tls=environment.with_trust(tls, trust_env), **chosen)


def _exchange_arguments(request: Request) -> tuple[Any, ...]:
    url = request.url
    if url.scheme not in ("http", "https") or not url._host:
        problem = f"the scheme {url.scheme!r}" if url.scheme else "no scheme"
        missing = "" if url._host else " and no host" if not url.scheme else ", and no host"
        raise UnsupportedProtocol(
            f"{problem}{missing} in {repr(url)[4:-1]}; write http://... or https://..., or set base_url"
        )
    target = request.extensions.get("target") or url.raw_path
    target = target if isinstance(target, bytes) else target.encode("ascii")
    return request.method.encode("ascii"), url.raw_scheme, url.raw_host, url.port, target, request.headers.raw


def _call_options(request: Request) -> dict[str, Any]:
    """Returns the keyword arguments of `exchange`."""
    options: dict[str, Any] = {}
    seconds = request.extensions.get("timeout")
    if seconds is not None:
        total = None if request._deadline is None else max(request._deadline - time.monotonic(), 0.0)
        options["timeout"] = (*(seconds.get(phase) for phase in ("connect", "read", "write", "pool")), total)
    if sni := request.extensions.get("sni_hostname"):
        options["sni"] = sni.decode("ascii") if isinstance(sni, bytes) else sni
    retry = request.extensions.get("retries")
    if isinstance(retry, Retry):
        options["stale"] = {True: "idempotent", False: "never", "any": "any"}[retry.stale]
    informational = request.extensions.get("on_informational")
    if informational and "websocket" not in request.extensions:
        options["on_informational"] = informational
    return options


def _body(request: Request) -> Any:
    stream = request.stream
    if progress := request.extensions.get("progress"):
        length = request.headers.get("content-length", "")
        total = int(length) if length.isdecimal() else None
        if total != 0 and isinstance(stream, AsyncIterableBody):
            return _awith_progress(stream, progress, total)
        if total != 0:
            return _with_progress(stream, progress, total)
    if isinstance(stream, Body):
        return stream.wire
    return iter(stream) if hasattr(stream, "__iter__") else stream.__aiter__()


def _with_progress(stream: Any, progress: Any, total: int | None) -> Iterator[bytes]:
    """Reports a piece when the next one is requested: the engine has accepted it by then."""
    done = 0
    for piece in _split(stream):
        yield piece
        done += len(piece)
        progress(Progress("upload", done, total))


async def _awith_progress(stream: Any, progress: Any, total: int | None) -> AsyncIterator[bytes]:
    done = 0
    async with aclosing(stream.__aiter__()) as pieces:
        async for piece in pieces:
            yield piece
            done += len(piece)
            progress(Progress("upload", done, total))


def _split(stream: Any, size: int = 65536) -> Iterator[bytes]:
    """Splits the pieces into at most 64 KiB each, without copying, so that progress is reported in steps."""
    for piece in stream:
        view = memoryview(piece)
        for start in range(0, len(view), size):
            yield view[start : start + size]  # type: ignore[misc]  # the engine sends any buffer
