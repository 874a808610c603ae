"""Code that is written once for blocking and asynchronous callers, as coroutines."""

from __future__ import annotations

import inspect
from collections.abc import Coroutine
from typing import Any, TypeVar

from .errors import UsageError

T = TypeVar("T")


def run(flow: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never suspends, so that it ends at the first step."""
    try:
        flow.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    flow.close()
    raise UsageError("an event hook or Auth of a blocking Client awaited something; use AsyncClient instead")


async def maybe_await(value: Any) -> Any:
    """Returns the value, awaited if it is awaitable: hooks and sources may be of either kind."""
    return await value if inspect.isawaitable(value) else value
