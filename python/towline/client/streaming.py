"""Context managers of `stream()` and `sse()`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

from .._native import ServerSentEvent
from ..errors import DecodingError
from .headers import Headers
from .response import Response


class ResponseContext:
    """Returned by `Client.stream`. Entering the block sends the request; leaving it closes the response."""

    __slots__ = ("_arguments", "_open", "_response")

    def __init__(self, open_: Callable[..., Response], *arguments: Any) -> None:
        self._open = open_
        self._arguments = arguments
        self._response: Response | None = None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            text = f"the request has not been sent; write `with client.stream(...) as response:` and response.{name}"
            raise AttributeError(text)

    def __enter__(self) -> Response:
        self._response = self._open(*self._arguments)
        return self._response

    def __exit__(self, *details: object) -> None:
        if self._response is not None:
            self._response.close()


class AsyncResponseContext:
    """Returned by `AsyncClient.stream`."""

    def __init__(self, send: Callable[[], Awaitable[Response]]) -> None:
        self._send = send
        self._response: Response | None = None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            text = f"the request has not been sent; write `async with client.stream(...) as response:` and response.{name}"
            raise AttributeError(text)

    async def __aenter__(self) -> Response:
        self._response = await self._send()
        return self._response

    async def __aexit__(self, *details: object) -> None:
        if self._response is not None:
            await self._response.aclose()


class _Events:
    response: Response

    @staticmethod
    def with_headers(arguments: dict[str, Any]) -> dict[str, Any]:
        """Adds the headers of a request for an event stream (WHATWG HTML 9.2.3) to the arguments of a call."""
        headers = Headers({"Accept": "text/event-stream", "Cache-Control": "no-store"})
        headers.update(arguments.get("headers"))
        return {**arguments, "headers": headers}

    def _check(self) -> None:
        self.response.raise_for_status()
        found = self.response.headers.get("content-type", "")
        if found.partition(";")[0].strip().lower() != "text/event-stream":
            raise DecodingError(
                f"expected text/event-stream, got {found or 'no content type'!r}; "
                "use stream() and iter_sse() to read it anyway",
                request=self.response.request,
                response=self.response,
            )


class EventStream(_Events):
    """Returned by `Client.sse`: iterates over server-sent events. Entering raises StatusError or DecodingError."""

    def __init__(self, context: ResponseContext) -> None:
        self._context = context

    def __enter__(self) -> EventStream:
        self.response = self._context.__enter__()
        try:
            self._check()
        except BaseException:
            self.response.close()
            raise
        return self

    def __iter__(self) -> Iterator[ServerSentEvent]:
        return self.response.iter_sse()

    def __exit__(self, *details: object) -> None:
        self.response.close()


class AsyncEventStream(_Events):
    """Returned by `AsyncClient.sse`."""

    def __init__(self, context: AsyncResponseContext) -> None:
        self._context = context

    async def __aenter__(self) -> AsyncEventStream:
        self.response = await self._context.__aenter__()
        try:
            self._check()
        except BaseException:
            await self.response.aclose()
            raise
        return self

    def __aiter__(self) -> AsyncIterator[ServerSentEvent]:
        return self.response.aiter_sse()

    async def __aexit__(self, *details: object) -> None:
        await self.response.aclose()
