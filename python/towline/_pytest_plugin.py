"""The pytest plugin: the fixtures `towline_server` and `towline_mock`. They import Towline when a test uses them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .testing import Mock, Running


@pytest.fixture
def towline_server() -> Iterator[Callable[..., Running]]:
    """`towline_server(app, **options)` serves an ASGI or WSGI application on a free port until the end of the test."""
    from .testing import serve

    with contextlib.ExitStack() as servers:

        def start(app: Any, **options: Any) -> Running:
            return servers.enter_context(serve(app, **options))

        yield start


@pytest.fixture
def towline_mock() -> Iterator[Mock]:
    """Routes instead of the network for `towline.Client`, `towline.AsyncClient` and `towline.get`; see `towline.testing.Mock`."""
    from .testing import Mock

    with Mock() as mock:
        yield mock
