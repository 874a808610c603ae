"""`MockTransport`: a function instead of the network."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..._either import maybe_await
from ...errors import UsageError
from ..request import Request
from ..response import Response
from .base import AsyncBaseTransport, BaseTransport


class MockTransport(AsyncBaseTransport, BaseTransport):
    """Calls `handler(request)` for the response: `Client(transport=MockTransport(lambda request: Response(200)))`.

    The request body has been read. For `AsyncClient` the handler may be asynchronous.
    """

    def __init__(self, handler: Callable[[Request], Any]) -> None:
        self.handler = handler

    def handle_request(self, request: Request) -> Response:
        request.read()
        response = self.handler(request)
        if inspect.iscoroutine(response):
            response.close()
            raise UsageError("the handler is asynchronous; a blocking Client needs a plain function")
        made: Response = response
        return made

    async def handle_async_request(self, request: Request) -> Response:
        await request.aread()
        response: Response = await maybe_await(self.handler(request))
        return response
