"""One test body for both faces of the client: an asynchronous one driven from outside looks like the other."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import towline

MIB = 1 << 20


class SyncFace:
    name = "sync"

    def __init__(self, **options: Any) -> None:
        self.client = towline.Client(**options)
        self.streamed: Any = None

    def get(self, url: str, **arguments: Any) -> Any:
        return self.client.get(url, **arguments)

    def pieces(self, url: str, how: str, *values: Any) -> Iterator[Any]:
        """What `response.iter_HOW` gives."""
        with self.client.stream("GET", url) as self.streamed:
            response = self.streamed
            yield from getattr(response, f"iter_{how}")(*values)

    def rest(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        self.client.close()


class AsyncFace:
    name = "async"

    def __init__(self, **options: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.client = towline.AsyncClient(**options)
        self.streamed: Any = None

    def get(self, url: str, **arguments: Any) -> Any:
        async def get() -> Any:
            return await self.client.get(url, **arguments)

        return self.loop.run_until_complete(get())

    def pieces(self, url: str, how: str, *values: Any) -> Iterator[Any]:
        async def stream() -> Any:
            async with self.client.stream("GET", url) as self.streamed:
                response = self.streamed
                async for piece in getattr(response, f"aiter_{how}")(*values):
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
        self.loop.run_until_complete(self.client.aclose())
        self.loop.close()


FACES: dict[str, Callable[..., Any]] = {"sync": SyncFace, "async": AsyncFace}


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
