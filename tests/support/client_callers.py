"""One test body for both backends: calls on a `Client` or, in an event loop, on an `AsyncClient`."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import towline
import trio
from towline import AsyncClient, Client

BACKENDS = ("blocking", "asyncio", "trio")


class Caller:
    """`caller.get(...)` on any backend; `caller.client` for methods that do not block."""

    def __init__(self, backend: str, **settings: Any) -> None:
        self.backend = backend
        self.client: Any = (Client if backend == "blocking" else AsyncClient)(**settings)

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.backend == "blocking":
            return function(*args, **kwargs)

        async def main() -> Any:
            return await function(*args, **kwargs)

        return asyncio.run(main()) if self.backend == "asyncio" else trio.run(main)

    def __getattr__(self, name: str) -> Any:
        return functools.partial(self.run, getattr(self.client, name))

    def read_stream(self, method: str, url: str, **arguments: Any) -> tuple[Any, bytes]:
        def blocking() -> Any:
            with self.client.stream(method, url, **arguments) as response:
                return response, b"".join(response.iter_bytes())

        async def asynchronous() -> Any:
            async with self.client.stream(method, url, **arguments) as response:
                return response, b"".join([piece async for piece in response.aiter_bytes()])

        return self.run(blocking if self.backend == "blocking" else asynchronous)

    def close(self) -> None:
        self.run(self.client.close if self.backend == "blocking" else self.client.aclose)


class Recorder:
    """Handler for MockTransport that records requests and responds by path."""

    def __init__(self, **responses: Any) -> None:
        self.responses = responses
        self.requests: list[towline.Request] = []

    def __call__(self, request: towline.Request) -> towline.Response:
        self.requests.append(request)
        response = self.responses.get(
            request.url.path.strip("/") or "root", towline.Response(200, text="end")
        )
        return response(request) if callable(response) else response

    @property
    def lines(self) -> list[str]:
        return [f"{request.method} {request.url}" for request in self.requests]
