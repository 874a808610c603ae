"""Puts Towline's adapter beneath requests' own tests: a session mounts it where it would mount HTTPAdapter."""

from __future__ import annotations

import pytest
import requests
import towline.requests
from expected import REQUESTS, mark
from swapped import Swap

swap = Swap()
swap.replace([requests.sessions, requests.adapters], "HTTPAdapter", towline.requests.Adapter)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark(items, REQUESTS)


pytest_sessionfinish = swap.pytest_sessionfinish
