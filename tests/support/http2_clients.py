"""Fixture of the tests of clients over HTTP/2: a client with prior knowledge, synchronous or asynchronous."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.client_backends import BACKENDS, HTTP2_BACKENDS

Open = Callable[..., Any]


@pytest.fixture(params=HTTP2_BACKENDS)
def h2_client(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens HTTP/2-only clients and closes them."""
    clients: list[Any] = []

    def open_client(**options: Any) -> Any:
        backend = BACKENDS[request.param](**{"http1": False, "http2": True, "trust_env": False, **options})
        clients.append(backend)
        return backend

    yield open_client
    for backend in clients:
        backend.close()
