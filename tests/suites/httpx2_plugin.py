"""httpx's own tests for httpx2, which ships none, on Towline's transports: `import httpx` imports httpx2."""

from __future__ import annotations

import httpx2

httpx2.alias_httpx()

import pytest  # noqa: E402
import towline.httpx2  # noqa: E402
from expected import HTTPX, HTTPX2, mark  # noqa: E402
from swapped import Swap  # noqa: E402

swap = Swap()
for name, ours in {"HTTPTransport": "Transport", "AsyncHTTPTransport": "AsyncTransport"}.items():
    swap.replace([httpx2, httpx2._client], name, getattr(towline.httpx2, ours))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark(items, {**HTTPX, **HTTPX2})


pytest_sessionfinish = swap.pytest_sessionfinish
