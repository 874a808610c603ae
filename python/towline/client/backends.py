"""The two implementations of `flow.Backend`: blocking, and in an event loop."""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Callable
from typing import Any

from .._aio import sleep
from .._either import maybe_await
from ..errors import Error, UsageError
from . import observe
from .auth import Auth
from .options import UNSET
from .request import Request
from .response import Response

_DRAIN_BYTES = 65536  # bound of the content that is read of a response in `history`


class _Base:
    """The part without I/O: clocks, and the observation of the exchanges of one call."""

    def __init__(self, transport_for: Callable[[Request], Any], tracer: Any = UNSET) -> None:
        self._transport_for = transport_for
        self._tracer = tracer
        self._sent = 0

    def _observe(self, transport: Any, request: Request) -> observe.Observation | None:
        if request.extensions.get("trace") is not None:
            _check_trace(transport, request)
        resend_count, self._sent = self._sent, self._sent + 1
        return observe.begin(request, self._tracer, resend_count)

    async def send(self, request: Request, deadline: float | None) -> Response:
        transport = self._transport_for(request)
        request._deadline = deadline
        observation = self._observe(transport, request)
        started = time.monotonic()
        try:
            response = _with_request(await self._exchange(transport, request), request, started)
        except BaseException as error:
            _on_failure(error, request, observation)
            raise
        if observation is not None:
            observation.on_response(response)
        return response

    async def _exchange(self, transport: Any, request: Request) -> Any:
        raise NotImplementedError("a subclass calls the transport")

    async def drain_and_release(self, response: Response) -> None:
        pieces = []
        if response._content is None and not response.is_closed:
            remaining = _DRAIN_BYTES
            while remaining > 0 and (piece := await self._read(response, remaining)):
                pieces.append(piece)
                remaining -= len(piece)
            _keep_content(response, pieces)
            await self.close(response)

    async def _read(self, response: Response, n: int) -> bytes:
        raise NotImplementedError("a subclass reads the next bytes")

    async def close(self, response: Response) -> None:
        raise NotImplementedError("a subclass closes the response")

    def now(self) -> float:
        return time.monotonic()

    def unix_time(self) -> float:
        return time.time()

    def random(self) -> float:
        return random.random()


class SyncBackend(_Base):
    """The backend of `Client`. Its coroutines never suspend."""

    async def _exchange(self, transport: Any, request: Request) -> Any:
        return transport.handle_request(request)

    async def _read(self, response: Response, n: int) -> bytes:
        return response.read(n)

    async def close(self, response: Response) -> None:
        response.close()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def call(self, hook: Callable[[Any], Any], argument: Any) -> None:
        result = hook(argument)
        if inspect.iscoroutine(result):
            result.close()
            raise UsageError(
                f"the event hook {hook!r} is asynchronous; a blocking Client needs plain functions"
            )

    def auth_steps(self, auth: Auth, request: Request) -> SyncAuthSteps:
        return SyncAuthSteps(auth, request)


class SyncAuthSteps:
    def __init__(self, auth: Auth, request: Request) -> None:
        self._flow = auth.sync_auth_flow(request)

    async def first_request(self) -> Request:
        return next(self._flow)

    async def next_request(self, response: Response) -> Request | None:
        try:
            return self._flow.send(response)
        except StopIteration:
            return None

    async def close(self) -> None:
        self._flow.close()


class AsyncBackend(_Base):
    """The backend of `AsyncClient`, for asyncio and trio."""

    async def _exchange(self, transport: Any, request: Request) -> Any:
        return await transport.handle_async_request(request)

    async def _read(self, response: Response, n: int) -> bytes:
        return await response.aread(n)

    async def close(self, response: Response) -> None:
        await response.aclose()

    async def sleep(self, seconds: float) -> None:
        await sleep(seconds)

    async def call(self, hook: Callable[[Any], Any], argument: Any) -> None:
        await maybe_await(hook(argument))

    def auth_steps(self, auth: Auth, request: Request) -> AsyncAuthSteps:
        return AsyncAuthSteps(auth, request)


class AsyncAuthSteps:
    def __init__(self, auth: Auth, request: Request) -> None:
        self._flow = auth.async_auth_flow(request)

    async def first_request(self) -> Request:
        return await self._flow.__anext__()

    async def next_request(self, response: Response) -> Request | None:
        try:
            return await self._flow.asend(response)
        except StopAsyncIteration:
            return None

    async def close(self) -> None:
        await self._flow.aclose()


def _with_request(response: Any, request: Request, started: float) -> Response:
    if not isinstance(response, Response):
        raise UsageError(f"the transport returned {type(response).__name__}, not a towline.Response")
    response._request = request
    response._started = started
    if response.is_closed and response._elapsed is None:
        response._elapsed = time.monotonic() - started  # the content is complete already
    return response


def _keep_content(response: Response, pieces: list[bytes]) -> None:
    """Stores the pieces as the content if the body was read to its end."""
    if response.is_closed:
        response._content = b"".join(pieces)
        response._pulled_from = None


def _on_failure(error: BaseException, request: Request, observation: observe.Observation | None) -> None:
    if isinstance(error, Error) and getattr(error, "request", request) is None:
        error.request = request  # type: ignore[attr-defined]
    if observation is not None:
        observation.on_error(error)


def _check_trace(transport: Any, request: Request) -> None:
    trace = request.extensions["trace"]
    if not callable(trace):
        raise UsageError(f"extensions['trace']: expected a function, not {type(trace).__name__}")
    if "websocket" in request.extensions:
        raise UsageError("extensions['trace']: a WebSocket has no events to report")
    if not getattr(transport, "honours_trace", True):
        raise UsageError(
            f"extensions['trace']: {type(transport).__name__} has no events to report; use Towline's own transport"
        )
