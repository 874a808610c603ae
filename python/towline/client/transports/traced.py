"""`extensions={"trace": f}` of the native transport: the events of httpcore, see `towline._trace`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from ..._either import maybe_await, run
from ..._network import NetworkStream
from ..._trace import Event, TraceEvents
from ...errors import Error, UsageError
from ..options import PoolOptions
from ..request import Request
from ..response import Response

Notify: TypeAlias = Callable[[Any], Awaitable[Any]]
"""Takes the result of the program's function."""


def traced_exchange(
    exchange: Callable[[Request], Response], request: Request, options: PoolOptions
) -> Response:
    """Sends the request and reports its events to the function of the program."""
    return run(atraced_exchange(exchange, request, options, _notify))


async def atraced_exchange(
    exchange: Callable[[Request], Any], request: Request, options: PoolOptions, notify: Notify = maybe_await
) -> Response:
    """The form of `traced_exchange` for an event loop. The function may be asynchronous or not."""
    http2 = options.http2 and (request.url.scheme == "https" or not options.http1)
    trace = TraceEvents(request, http2)
    await _report(trace, notify, *trace.before())
    try:
        response: Response = await maybe_await(exchange(request))
    except Error as error:
        await _report(trace, notify, *trace.after_failure(error))
        raise
    reply = response._reply
    response.extensions["network_stream"] = NetworkStream(reply)
    try:
        await _report(trace, notify, *trace.with_head(reply, response.extensions))
    except BaseException:
        await response.aclose()
        raise
    source = TracedSource if notify is _notify else AsyncTracedSource
    response._source = source(response._source, trace, notify)
    return response


class AsyncTracedSource:
    """A native reply as a body source: the events of the body, in the order in which its reads cause them."""

    is_async = True

    def __init__(self, source: Any, trace: TraceEvents, notify: Notify) -> None:
        self._source, self._trace, self._notify = source, trace, notify
        self._state = "unread"

    @property
    def buffered(self) -> int:
        buffered_bytes: int = self._source.buffered
        return buffered_bytes

    def read(self, n: int) -> Any:
        return self._traced(lambda: self._source.read(n), is_all=False)

    def read_all(self, **limits: Any) -> Any:
        return self._traced(lambda: self._source.read_all(**limits), is_all=True)

    async def _traced(self, read: Callable[[], Any], is_all: bool) -> bytes:
        if self._state == "unread":
            self._state = "reading"
            await _report(self._trace, self._notify, self._trace.body("started"))
        try:
            data: bytes = await maybe_await(read())
        except Error as error:
            await _report(self._trace, self._notify, self._trace.body("failed", exception=error))
            raise
        if (is_all or not data) and self._state == "reading":
            self._state = "read"
            await _report(self._trace, self._notify, self._trace.body("complete", return_value=None))
        return data

    def close(self) -> Any:
        return self._close()

    async def _close(self) -> None:
        try:
            await _report(self._trace, self._notify, self._trace.closed("started"))
        finally:
            await maybe_await(self._source.close())
        await _report(self._trace, self._notify, self._trace.closed("complete"))


class TracedSource(AsyncTracedSource):
    """The source of a blocking client."""

    is_async = False

    def read(self, n: int) -> bytes:
        data: bytes = run(super().read(n))
        return data

    def read_all(self, **limits: Any) -> bytes:
        data: bytes = run(super().read_all(**limits))
        return data

    def close(self) -> None:
        run(self._close())


async def _report(trace: TraceEvents, notify: Notify, *events: Event) -> None:
    for name, info in events:
        await notify(trace.notify(name, info))


async def _notify(result: Any) -> None:
    """The result of the function of a blocking client."""
    if inspect.iscoroutine(result):
        result.close()
        raise UsageError(
            "extensions['trace']: a blocking Client needs a plain function, not an asynchronous one"
        )
