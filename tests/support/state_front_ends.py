"""An `AsyncState` that a test calls as if it were a `State`, so that one body tests both."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from typing import Any

from towline.state import AsyncLock, AsyncState, AsyncSubscription, AsyncTransaction

WRAPPED = (AsyncState, AsyncLock, AsyncSubscription, AsyncTransaction)


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, awaitable: Any) -> Any:
        async def awaited() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result(60)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Blocking:
    """Calls methods of an asynchronous object and waits for them."""

    def __init__(self, inner: Any, loop: Loop) -> None:
        self.inner = inner
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        return self._method(found) if callable(found) else found

    def _method(self, function: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            if function.__name__ == "receive" and ("timeout" in named or arguments):
                return self._receive(function, *arguments, **named)
            return self._finished(function(*arguments, **named))

        return call

    def _receive(self, function: Any, timeout: float | None) -> Any:
        try:
            return self._loop.run(asyncio.wait_for(function(), timeout))
        except asyncio.TimeoutError:
            return None

    def _finished(self, result: Any) -> Any:
        if inspect.isawaitable(result):
            result = self._loop.run(result)
        if inspect.isasyncgen(result):
            return self._iterated(result)
        return Blocking(result, self._loop) if self._is_wrapped(result) else result

    def _is_wrapped(self, result: Any) -> bool:
        return isinstance(result, WRAPPED) or hasattr(result, "__aenter__")

    def _iterated(self, found: Any) -> Iterator[Any]:
        while True:
            try:
                yield self._loop.run(anext(found))
            except StopAsyncIteration:
                return

    def __enter__(self) -> Any:
        return self._finished(self.inner.__aenter__())

    def __exit__(self, *exception: Any) -> Any:
        return self._loop.run(self.inner.__aexit__(*exception))

    def __iter__(self) -> Iterator[Any]:
        return self._iterated(self.inner.__aiter__())
