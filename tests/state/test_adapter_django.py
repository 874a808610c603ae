"""The cache of Django, with real Django."""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

django_cache = pytest.importorskip("django.core.cache")
from django.conf import settings  # noqa: E402
from django.utils.functional import empty  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def settings_of_this_module() -> Iterator[None]:
    """Django's settings are set once in a process, and other tests have their own."""
    before = settings._wrapped
    settings._wrapped = empty
    settings.configure()
    yield
    settings._wrapped = before


@pytest.fixture
def cache(url: str) -> Iterator[Any]:
    """A cache as Django makes it from CACHES."""
    configured = {
        "default": {"BACKEND": "towline.state.adapters.django.StateCache", "LOCATION": url, "KEY_PREFIX": "p"}
    }
    handler = django_cache.CacheHandler(configured)
    yield handler["default"]
    from towline.state.adapters import django

    for opened in (django._opened, django._opened_async):
        opened.cache_clear()


def test_values(cache: Any) -> None:
    value = {"set": {1, 2}, "bytes": b"\0", "none": None}
    cache.set("a", value)
    assert cache.get("a") == value
    assert cache.get("missing") is None
    assert cache.get("missing", 7) == 7
    cache.set("none", None)
    assert cache.get("none", 7) is None
    assert "a" in cache
    assert cache.delete("a")
    assert not cache.delete("a")
    assert not cache.has_key("a")
    for number in (True, 0, -5, 2**70, 1.5):
        cache.set("number", number)
        found = cache.get("number")
        assert (found, type(found)) == (number, type(number))


def test_add_and_get_or_set(cache: Any) -> None:
    assert cache.add("a", 1)
    assert not cache.add("a", 2)
    assert cache.get_or_set("a", 3) == 1
    assert cache.get_or_set("b", lambda: 4) == 4


def test_timeouts(cache: Any) -> None:
    cache.set("a", 1, 0.05)
    cache.set("b", 1, None)
    cache.set("c", 1, 0)
    cache.set("d", 1, -1)
    assert not cache.add("b", 1, 0)
    time.sleep(0.1)
    assert [cache.get(key) for key in "abcd"] == [None, 1, None, None]
    assert cache.touch("b", 100)
    assert cache.touch("b", 0)
    assert not cache.touch("b", 100)
    assert cache._state.ttl(cache._name("b", None)) is None
    cache.set("default", 1)
    assert 290 < cache._state.ttl(cache._name("default", None)) <= 300


def test_counters_keep_their_timeout(cache: Any) -> None:
    cache.set("n", 5, 100)
    assert cache.incr("n") == 6
    assert cache.incr("n", 10) == 16
    assert cache.decr("n", 20) == -4
    assert cache._state.ttl(cache._name("n", None)) <= 100
    with pytest.raises(ValueError, match="not found"):
        cache.incr("missing")

    def count() -> None:
        for _ in range(25):
            cache.incr("n")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.get("n") == 96


def test_several_at_once(cache: Any) -> None:
    assert cache.set_many({"a": 1, "b": [2]}, 60) == []
    assert cache.get_many(["a", "b", "c"]) == {"a": 1, "b": [2]}
    cache.delete_many(["a", "c"])
    assert cache.get_many(["a", "b"]) == {"b": [2]}
    cache.delete_many([])
    assert cache.get_many([]) == {}


def test_versions_and_clear(cache: Any) -> None:
    cache.set("a", 1, version=2)
    assert cache.get("a") is None
    assert cache.get("a", version=2) == 1
    assert cache.incr_version("a", version=2) == 3
    assert cache.get("a", version=3) == 1
    cache.clear()
    assert cache.get("a", version=3) is None


def test_long_keys_are_apart(cache: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(3):
            cache.set("k" * 2000 + str(number), number)
        assert [cache.get("k" * 2000 + str(number)) for number in range(3)] == [0, 1, 2]


def test_the_asynchronous_methods(cache: Any) -> None:
    async def main() -> None:
        await cache.aset("a", {"x": 1})
        assert await cache.aget("a") == {"x": 1}
        assert not await cache.aadd("a", 2)
        assert await cache.aadd("n", 2)
        assert await cache.aincr("n", 5) == 7
        assert await cache.adecr("n") == 6
        assert await cache.aset_many({"b": 1, "c": 2}) == []
        assert await cache.aget_many(["b", "c", "d"]) == {"b": 1, "c": 2}
        assert await cache.ahas_key("b")
        assert await cache.adelete("b")
        await cache.adelete_many(["c"])
        assert await cache.atouch("n", 5)
        assert await cache.atouch("n", 0)
        assert not await cache.ahas_key("n")
        assert await cache.aget_or_set("e", 5) == 5
        await cache.aclear()
        assert await cache.aget("a") is None

    asyncio.run(main())
