"""The two base classes: subclass one to carry requests your own way."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from ..request import Request
from ..response import Response


class BaseTransport:
    """For `Client`. Raise `towline.TransportError` subclasses, and do not read the response's body."""

    def handle_request(self, request: Request) -> Response:
        raise NotImplementedError("a transport for Client has handle_request(request)")

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
    """For `AsyncClient`."""

    async def handle_async_request(self, request: Request) -> Response:
        raise NotImplementedError("a transport for AsyncClient has handle_async_request(request)")

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
