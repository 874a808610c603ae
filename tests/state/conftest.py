"""Stores for the tests of the contract: embedded, Redis and Valkey, each blocking and on an event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from towline import state as towline_state

from tests.support.redis_servers import Server, server
from tests.support.state_front_ends import Blocking, Loop
from tests.support.state_stores import STORES


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Server]:
    with server("redis") as running:
        yield running


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[Server]:
    with server("valkey") as running:
        yield running


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store."""
    if request.param == "embedded":
        return str(tmp_path / "store")
    running: Server = request.getfixturevalue(f"{request.param}_server")
    import redis

    with redis.Redis(unix_socket_path=running.socket) as client:
        client.flushall()
    return running.url


@pytest.fixture
def loop() -> Iterator[Loop]:
    running = Loop()
    yield running
    running.close()


Opened = Callable[..., Any]


@pytest.fixture(params=["blocking", "asyncio"])
def opened(request: pytest.FixtureRequest, url: str) -> Iterator[Opened]:
    """A function that opens the store, with the arguments of `open`; what it opened is closed at the end."""
    if request.param == "asyncio":
        running: Loop = request.getfixturevalue("loop")
    states: list[Any] = []

    def open_store(**arguments: Any) -> Any:
        if request.param == "blocking":
            states.append(towline_state.open(url, **arguments))
        else:
            states.append(Blocking(towline_state.open_async(url, **arguments), running))
        return states[-1]

    yield open_store
    for each in states:
        each.close()


@pytest.fixture
def state(opened: Opened) -> Any:
    """A store with JSON values."""
    return opened()
