"""One test body for both clients: the asynchronous one, driven from outside, has the interface of the blocking one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import towline

MIB = 1 << 20


Call = tuple[str, str, dict[str, Any]]


class SyncBackend:
    name = "sync"

    def __init__(self, **options: Any) -> None:
        self.client = towline.Client(**options)
        self.streamed: Any = None

    def get(self, url: str, **arguments: Any) -> Any:
        return self.client.get(url, **arguments)

    def call(self, method: str, url: str, **arguments: Any) -> Any:
        return self.client.request(method, url, **arguments)

    def concurrently(self, method: str, url: str, times: int, **arguments: Any) -> list[Any]:
        """So many calls at once: of as many threads, up to 32."""
        with ThreadPoolExecutor(min(times, 32)) as threads:
            calls = [threads.submit(self.call, method, url, **arguments) for _ in range(times)]
            return [call.result() for call in calls]

    def at_once(self, *calls: Call) -> list[Any]:
        """Returns the response of each call, or its error."""

        def attempt(call: Call) -> Any:
            method, url, arguments = call
            try:
                return self.client.request(method, url, **arguments)
            except towline.Error as error:
                return error

        with ThreadPoolExecutor(len(calls)) as threads:
            return list(threads.map(attempt, calls))

    @contextlib.contextmanager
    def opened(self, method: str, url: str, **arguments: Any) -> Iterator[Any]:
        """A response to read from piece by piece: `read(n)`."""
        with self.client.stream(method, url, **arguments) as response:
            yield response

    def body(self, *pieces: bytes) -> Any:
        """A body that is generated."""
        return iter(pieces)

    def pieces(self, url: str, mode: str, *values: Any) -> Iterator[Any]:
        """Items of `response.iter_HOW`."""
        with self.client.stream("GET", url) as self.streamed:
            response = self.streamed
            yield from getattr(response, f"iter_{mode}")(*values)

    def rest(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        self.client.close()


class AsyncBackend:
    name = "async"

    def __init__(self, **options: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.client = towline.AsyncClient(**options)
        self.streamed: Any = None

    def get(self, url: str, **arguments: Any) -> Any:
        async def get() -> Any:
            return await self.client.get(url, **arguments)

        return self.loop.run_until_complete(get())

    def call(self, method: str, url: str, **arguments: Any) -> Any:
        return self.concurrently(method, url, 1, **arguments)[0]

    def concurrently(self, method: str, url: str, times: int, **arguments: Any) -> list[Any]:
        async def call() -> list[Any]:
            calls = (self.client.request(method, url, **arguments) for _ in range(times))
            return await asyncio.gather(*calls)

        return self.loop.run_until_complete(call())

    def at_once(self, *calls: Call) -> list[Any]:
        async def gather() -> list[Any]:
            requests = [self.client.request(method, url, **options) for method, url, options in calls]
            return await asyncio.gather(*requests, return_exceptions=True)

        return self.loop.run_until_complete(gather())

    @contextlib.contextmanager
    def opened(self, method: str, url: str, **arguments: Any) -> Iterator[Any]:
        block = self.client.stream(method, url, **arguments)
        response = self.loop.run_until_complete(block.__aenter__())
        try:
            yield _Awaited(self.loop, response)
        finally:
            self.loop.run_until_complete(block.__aexit__(None, None, None))

    def body(self, *pieces: bytes) -> Any:
        async def generate() -> Any:
            for piece in pieces:
                yield piece

        return generate()

    def pieces(self, url: str, mode: str, *values: Any) -> Iterator[Any]:
        async def stream() -> Any:
            async with self.client.stream("GET", url) as self.streamed:
                response = self.streamed
                async for piece in getattr(response, f"aiter_{mode}")(*values):
                    yield piece

        pieces = stream()
        try:
            while True:
                try:
                    yield self.loop.run_until_complete(pieces.__anext__())
                except StopAsyncIteration:
                    return
        finally:
            self.loop.run_until_complete(pieces.aclose())

    def rest(self, seconds: float) -> None:
        """A moment in which the loop turns."""
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def close(self) -> None:
        if not self.loop.is_closed():
            self.loop.run_until_complete(self.client.aclose())
            self.loop.close()


class _Awaited:
    """Response whose bytes are awaited from outside its loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, response: Any) -> None:
        self._loop = loop
        self._response = response

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._loop.run_until_complete(self._response.aread(*([size] if size > 0 else [])))
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._response, name)


BACKENDS: dict[str, Callable[..., Any]] = {"sync": SyncBackend, "async": AsyncBackend}
HTTP2_BACKENDS = ("sync", "async")
"""Backends that support HTTP/2."""


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
