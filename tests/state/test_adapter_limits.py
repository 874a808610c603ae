"""Storages of `limits`, and Flask-Limiter on them, with the real libraries."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

limits = pytest.importorskip("limits")
from limits.aio import strategies as aio_strategies  # noqa: E402
from limits.storage import storage_from_string  # noqa: E402
from limits.strategies import (  # noqa: E402
    FixedWindowRateLimiter,
    MovingWindowRateLimiter,
    SlidingWindowCounterRateLimiter,
)
from towline.state.adapters import limits as adapter  # noqa: E402

STRATEGIES = [FixedWindowRateLimiter, MovingWindowRateLimiter, SlidingWindowCounterRateLimiter]


def uri_of(url: str, prefix: str = "") -> str:
    return f"{prefix}towline+{url}" if "://" in url else f"{prefix}towline://{url}"


@pytest.fixture
def storage(url: str) -> Any:
    found = storage_from_string(uri_of(url))
    assert isinstance(found, adapter.StateStorage)
    return found


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_limits_and_is_cleared(storage: Any, strategy: Any) -> None:
    limiter, item = strategy(storage), limits.parse("3 per hour")
    assert [limiter.hit(item, "user", "x" * 3000) for _ in range(5)] == [True] * 3 + [False] * 2
    assert not limiter.test(item, "user", "x" * 3000)
    assert limiter.hit(item, "other")
    window = limiter.get_window_stats(item, "user", "x" * 3000)
    assert window.remaining == 0
    assert time.time() - 1 < window.reset_time <= time.time() + 7201
    assert limiter.get_window_stats(item, "unused").remaining == 3
    limiter.clear(item, "user", "x" * 3000)
    assert limiter.hit(item, "user", "x" * 3000)
    assert storage.check()
    assert storage.reset() >= 2
    assert limiter.hit(item, "other", cost=3)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_threads_pass_the_limit_exactly(storage: Any, strategy: Any) -> None:
    limiter, item = strategy(storage), limits.parse("20 per hour")
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: limiter.hit(item, "user"), range(60)))
    assert sum(results) == 20


def test_a_window_ends(storage: Any) -> None:
    limiter, item = MovingWindowRateLimiter(storage), limits.parse("1 per second")
    assert limiter.hit(item, "user")
    assert not limiter.hit(item, "user")
    time.sleep(1.1)
    assert limiter.hit(item, "user")


@pytest.mark.parametrize("strategy", [each.__name__ for each in STRATEGIES])
def test_the_asynchronous_storage(url: str, strategy: str) -> None:
    async def main() -> None:
        storage = storage_from_string(uri_of(url, "async+"))
        assert isinstance(storage, adapter.AsyncStateStorage)
        limiter, item = getattr(aio_strategies, strategy)(storage), limits.parse("3 per hour")
        results = await asyncio.gather(*(limiter.hit(item, "user") for _ in range(9)))
        assert sum(results) == 3
        assert (await limiter.get_window_stats(item, "user")).remaining == 0
        await limiter.clear(item, "user")
        assert await limiter.hit(item, "user")
        assert await storage.check()
        assert await storage.reset() >= 1

    asyncio.run(main())


def test_a_lost_store() -> None:
    pytest.importorskip("redis")
    storage: Any = storage_from_string("towline+unix:///nonexistent/socket", wrap_exceptions=True)
    assert not storage.check()
    with pytest.raises(limits.errors.StorageError):
        storage.incr("a", 1)


def test_flask_limiter(url: str) -> None:
    flask = pytest.importorskip("flask")
    flask_limiter = pytest.importorskip("flask_limiter")

    app = flask.Flask("test")
    limiter = flask_limiter.Limiter(
        lambda: flask.request.headers.get("user", "-"),
        app=app,
        storage_uri=uri_of(url),
        strategy="sliding-window-counter",
        headers_enabled=True,
    )

    @app.route("/")
    @limiter.limit("2 per hour")
    def index() -> str:
        return "hello"

    client = app.test_client()
    responses = [client.get("/", headers={"user": "a"}) for _ in range(3)]
    assert [each.status_code for each in responses] == [200, 200, 429]
    assert [each.headers["X-RateLimit-Remaining"] for each in responses] == ["1", "0", "0"]
    assert int(responses[2].headers["Retry-After"]) >= 1
    assert client.get("/", headers={"user": "b"}).status_code == 200
