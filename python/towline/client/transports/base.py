"""The base classes of transports: subclass one to implement a custom transport."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from ..request import Request
from ..response import Response


class BaseTransport:
    """A transport of `Client`. It raises subclasses of `towline.TransportError` and does not read the response body."""

    def handle_request(self, request: Request) -> Response:
        """Sends a request and returns its response, the body unread. Raises a `TransportError`."""
        raise NotImplementedError("a transport for Client defines handle_request(request)")

    def close(self) -> None:
        """Called when the client is closed."""

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self.close()


class AsyncBaseTransport:
    """A transport of `AsyncClient`. It raises subclasses of `towline.TransportError` and does not read the response body."""

    async def handle_async_request(self, request: Request) -> Response:
        """Sends a request and returns its response, the body unread. Raises a `TransportError`."""
        raise NotImplementedError("a transport for AsyncClient defines handle_async_request(request)")

    async def aclose(self) -> None:
        """Called when the client is closed."""

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.aclose()
