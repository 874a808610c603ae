"""Waiting for a condition, and for a claim that needs an idle machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], timeout: float = 10.0) -> Any:
    """The first true value of `condition`."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout} s"
        time.sleep(0.01)
    return value


async def until_async(condition: Callable[[], Any], timeout: float = 20.0) -> Any:
    """The first true value of `condition`, for tests on an event loop."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout} s"
        await asyncio.sleep(0.01)
    return value


def holds_once(claim: Callable[[], Any], timeout: float = 20.0) -> Any:
    """Tries a claim that needs an idle machine until it holds: the value of `claim` when it raises no AssertionError."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return claim()
        except AssertionError:
            if time.monotonic() >= deadline:
                raise
