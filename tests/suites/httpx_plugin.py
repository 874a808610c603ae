"""Runs httpx's own tests on Towline's transports: every client creates Towline's transport instead of httpx's."""

from __future__ import annotations

import httpx
import pytest
import towline.httpx
from expected import HTTPX, mark
from swapped import Swap

swap = Swap()
for name, ours in {"HTTPTransport": "Transport", "AsyncHTTPTransport": "AsyncTransport"}.items():
    swap.replace([httpx, httpx._client], name, getattr(towline.httpx, ours))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark(items, HTTPX)


pytest_sessionfinish = swap.pytest_sessionfinish
