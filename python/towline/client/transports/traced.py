"""`extensions={"trace": f}` of the native transport: the events of httpcore, see `towline._trace`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from ..._network import NetworkStream
from ..._trace import Event, TraceEvents
from ...errors import Error, UsageError
from ..body_sources import maybe_await
from ..options import PoolOptions
from ..request import Request
from ..response import Response


def traced_exchange(
    exchange: Callable[[Request], Response], request: Request, options: PoolOptions
) -> Response:
    """Sends the request and reports its events to the function of the program."""
    trace = TraceEvents(request, _expects_http2(request, options))
    _notify(trace, trace.before())
    try:
        response = exchange(request)
    except Error as error:
        _notify(trace, trace.after_failure(error))
        raise
    try:
        _notify(trace, _head_events(trace, response))
    except BaseException:
        response.close()
        raise
    response._source = TracedSource(response._source, trace)
    return response


async def atraced_exchange(
    exchange: Callable[[Request], Awaitable[Response]], request: Request, options: PoolOptions
) -> Response:
    """As `traced_exchange`. The function may be asynchronous or not."""
    trace = TraceEvents(request, _expects_http2(request, options))
    await _anotify(trace, trace.before())
    try:
        response = await exchange(request)
    except Error as error:
        await _anotify(trace, trace.after_failure(error))
        raise
    try:
        await _anotify(trace, _head_events(trace, response))
    except BaseException:
        await response.aclose()
        raise
    response._source = AsyncTracedSource(response._source, trace)
    return response


class _Traced:
    """A native reply as a body source: the events of the body, in the order in which its reads cause them."""

    def __init__(self, source: Any, trace: TraceEvents) -> None:
        self._source, self._trace = source, trace
        self._state = "unread"

    @property
    def buffered(self) -> int:
        buffered_bytes: int = self._source.buffered
        return buffered_bytes

    def _before_read(self) -> list[Event]:
        if self._state != "unread":
            return []
        self._state = "reading"
        return [self._trace.body("started")]

    def _after_read(self, is_end: bool) -> list[Event]:
        if not is_end or self._state != "reading":
            return []
        self._state = "read"
        return [self._trace.body("complete", return_value=None)]


class TracedSource(_Traced):
    """The source of a blocking client."""

    is_async = False

    def read(self, n: int) -> bytes:
        return self._traced(lambda: self._source.read(n), is_all=False)

    def read_all(self, **limits: Any) -> bytes:
        return self._traced(lambda: self._source.read_all(**limits), is_all=True)

    def _traced(self, read: Callable[[], bytes], is_all: bool) -> bytes:
        _notify(self._trace, self._before_read())
        try:
            data = read()
        except Error as error:
            _notify(self._trace, [self._trace.body("failed", exception=error)])
            raise
        _notify(self._trace, self._after_read(is_all or not data))
        return data

    def close(self) -> None:
        try:
            _notify(self._trace, [self._trace.closed("started")])
        finally:
            self._source.close()
        _notify(self._trace, [self._trace.closed("complete")])


class AsyncTracedSource(_Traced):
    """The source of an asynchronous client."""

    is_async = True

    async def read(self, n: int) -> bytes:
        return await self._traced(lambda: self._source.read(n), is_all=False)

    async def read_all(self, **limits: Any) -> bytes:
        return await self._traced(lambda: self._source.read_all(**limits), is_all=True)

    async def _traced(self, read: Callable[[], Awaitable[bytes]], is_all: bool) -> bytes:
        await _anotify(self._trace, self._before_read())
        try:
            data = await read()
        except Error as error:
            await _anotify(self._trace, [self._trace.body("failed", exception=error)])
            raise
        await _anotify(self._trace, self._after_read(is_all or not data))
        return data

    async def close(self) -> None:
        try:
            await _anotify(self._trace, [self._trace.closed("started")])
        finally:
            await maybe_await(self._source.close())
        await _anotify(self._trace, [self._trace.closed("complete")])


def _expects_http2(request: Request, options: PoolOptions) -> bool:
    return options.http2 and (request.url.scheme == "https" or not options.http1)


def _head_events(trace: TraceEvents, response: Response) -> list[Event]:
    reply = response._reply
    response.extensions["network_stream"] = NetworkStream(reply)
    return trace.with_head(reply, response.extensions)


def _notify(trace: TraceEvents, events: list[Event]) -> None:
    for name, info in events:
        result = trace.notify(name, info)
        if inspect.iscoroutine(result):
            result.close()
            raise UsageError(
                "extensions['trace']: a blocking Client needs a plain function, not an asynchronous one"
            )


async def _anotify(trace: TraceEvents, events: list[Event]) -> None:
    for name, info in events:
        await maybe_await(trace.notify(name, info))
