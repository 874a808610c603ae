"""Puts the drop-ins beneath the tests of packages that use httpx, httpx2 or requests. TOWLINE_SUITE is the package.

`httpx2.HTTPTransport` and the others are replaced by their drop-ins, so that every client of the package has one. With
TOWLINE_STOCK=1 nothing is replaced: the same tests without Towline, to compare.
"""

from __future__ import annotations

import importlib
import os

import pytest
from expected import SDKS, mark
from swapped import Swap

suite = os.environ["TOWLINE_SUITE"]
is_stock = os.environ.get("TOWLINE_STOCK") == "1"
BENEATH = {
    "anthropic": "httpx2",
    "huggingface_hub": "httpx2",
    "openai": "httpx2",
    "requests-oauthlib": "requests",
}
swap = Swap()


def replace_transports(package: str) -> None:
    ours, theirs = importlib.import_module(f"towline.{package}"), importlib.import_module(package)
    if package == "requests":
        swap.replace([theirs.sessions, theirs.adapters], "HTTPAdapter", ours.Adapter)
        return
    for name, made in {"HTTPTransport": ours.Transport, "AsyncHTTPTransport": ours.AsyncTransport}.items():
        swap.replace([theirs, theirs._client], name, made)


if suite == "anthropic":  # as its own tests do, so that respx mocks httpx2
    import httpx2

    httpx2.alias_httpx()
if not is_stock:
    replace_transports(BENEATH[suite])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not is_stock:
        mark(items, SDKS.get(suite, {}))


pytest_sessionfinish = swap.pytest_sessionfinish
