"""Values by key: `State`, and `AsyncState`, which must do the same."""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import towline.state
from hypothesis import given, settings
from hypothesis import strategies as st
from towline.errors import StateConflict, StateError, UsageError
from towline.state import AsyncState, State


class Blocking:
    """An `AsyncState` with the methods of `State`, so that one test covers both."""

    def __init__(self, state: AsyncState[Any], loop: asyncio.AbstractEventLoop) -> None:
        self._state, self._loop = state, loop

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._state, name)
        if name == "namespace":
            return lambda *arguments: Blocking(method(*arguments), self._loop)
        if inspect.isasyncgenfunction(method):
            return lambda *arguments: iter(self._loop.run_until_complete(collect(method(*arguments))))
        return lambda *arguments, **options: self._loop.run_until_complete(method(*arguments, **options))

    def __contains__(self, key: str) -> bool:
        return self._loop.run_until_complete(self._state.contains(key))


async def collect(items: Any) -> list[Any]:
    return [item async for item in items]


@pytest.fixture(params=["sync", "async"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "sync":
        with towline.state.open(str(tmp_path / "store")) as opened:
            yield opened
        return
    loop = asyncio.new_event_loop()
    blocking = Blocking(towline.state.open_async(str(tmp_path / "store")), loop)
    yield blocking
    blocking.close()
    loop.close()


def test_get_and_set(state: State[Any]) -> None:
    assert state.get("missing") is None
    assert state.get("missing", 5) == 5
    for value in (None, 0, "text", [1, {"a": None}], 1.5, 2**70, "ü" * 1000):
        state.set("key", value)
        assert state.get("key", "default") == value
    assert "key" in state
    assert state.delete("key", "other") == 1
    assert "key" not in state
    state.set(b"\xff\xfe", 1)
    assert list(state.keys()) == ["\udcff\udcfe"]


def test_large_values(state: State[Any]) -> None:
    text = "x" * 3_000_000
    state.set("large", text)
    assert state.get("large") == text
    assert state.get_many(["large"]) == {"large": text}


def test_many_at_once(state: State[Any]) -> None:
    values = {f"key-{number}": number for number in range(1000)}
    state.set_many(values)
    assert state.get_many([*values, "missing"]) == values
    assert dict(state.scan("key-")) == values
    assert dict(state.scan("key-99")) == {
        key: value for key, value in values.items() if key.startswith("key-99")
    }
    assert list(state.keys("key-1")) == sorted(key for key in values if key.startswith("key-1"))
    assert state.clear() == 1000


def test_compare_and_set(state: State[Any]) -> None:
    assert state.compare_and_set("key", None, {"a": 1, "b": 2})
    assert not state.compare_and_set("key", None, 1)
    assert not state.compare_and_set("key", {"a": 1}, 1)
    assert state.compare_and_set("key", {"b": 2, "a": 1}, 1), "compared as values, not as text"
    assert state.compare_and_set("key", 1, None)
    assert "key" not in state
    assert state.set_if_absent("key", 1)
    assert not state.set_if_absent("key", 2)


def test_counters(state: State[Any]) -> None:
    assert state.increment("count") == 1
    assert state.increment("count", 41) == 42
    assert state.decrement("count", 50) == -8
    assert state.get("count") == -8
    state.set("count", 2**63 - 1)
    with pytest.raises(StateError, match="integer"):
        state.increment("count")
    state.set("count", "text")
    with pytest.raises(StateError, match="integer"):
        state.increment("count")
    assert state.get("count") == "text"


def test_update(state: State[Any]) -> None:
    assert state.update("list", lambda value: [*(value or []), 1]) == [1]
    assert state.update("list", lambda value: [*value, 2], ttl=100) == [1, 2]
    assert state.update("list", lambda value: [*value, 3], keep_ttl=True) == [1, 2, 3]
    assert 90 < state.ttl("list") <= 100
    assert state.update("list", lambda value: None) is None
    assert "list" not in state


def test_expiry(state: State[Any]) -> None:
    state.set("key", 1, ttl=0.05)
    state.set("other", 1)
    assert 0 < state.ttl("key") <= 0.05
    assert state.ttl("other") == math.inf
    assert state.ttl("missing") is None
    assert state.expire("other", 60)
    assert 59 < state.ttl("other") <= 60
    assert state.expire("other", None)
    assert state.ttl("other") == math.inf
    assert not state.expire("missing", 1)
    assert state.increment("hits", ttl=0.05) == 1
    time.sleep(0.06)
    assert state.get("key") is None
    assert state.increment("hits", ttl=60) == 1
    assert not state.expire("key", 60)
    assert dict(state.scan()) == {"other": 1, "hits": 1}
    with pytest.raises(UsageError, match="more than 0 seconds"):
        state.set("key", 1, ttl=0)


def test_expired_values_are_removed(tmp_path: Path) -> None:
    with towline.state.open(str(tmp_path / "store")) as state:
        for number in range(1000):
            state.set(f"session-{number}", "x" * 100, ttl=0.01)
        assert state.info()["expiring"] > 0
        deadline = time.monotonic() + 20
        while state.info()["keys"] > 1 and time.monotonic() < deadline:
            state.set("other", 1)
            time.sleep(0.001)
        assert (state.info()["keys"], state.info()["expiring"]) == (1, 0)


def test_namespaces(state: State[Any]) -> None:
    users, chats = state.namespace("users"), state.namespace("chats")
    users.set("ada", 1)
    chats.set("ada", 2)
    nested = users.namespace("admins")
    nested.set("ada", 3)
    assert (users.get("ada"), chats.get("ada"), nested.get("ada")) == (1, 2, 3)
    assert dict(nested.scan()) == {"ada": 3}
    assert dict(state.scan()) == {"users:ada": 1, "chats:ada": 2, "users:admins:ada": 3}
    assert users.clear() == 2
    assert dict(state.scan()) == {"chats:ada": 2}


def test_codecs(tmp_path: Path) -> None:
    with towline.state.open(str(tmp_path / "store"), codec="bytes", namespace="raw") as raw:
        raw.set("key", b"\x00\xff")
        assert raw.get("key") == b"\x00\xff"
        assert raw.increment("count", 7) == 7
        with pytest.raises(TypeError, match="is bytes, not int"):
            raw.set("key", 1)  # type: ignore[arg-type]
        as_json = raw.namespace("x", codec="json")
        with pytest.raises(TypeError, match='codec="bytes" stores bytes'):
            as_json.set("key", b"1")
        with pytest.raises(UsageError, match="there is no codec 'pickle'"):
            raw.namespace("x", codec="pickle")


def test_msgpack(tmp_path: Path) -> None:
    pytest.importorskip("msgpack")
    with towline.state.open(str(tmp_path / "store"), codec="msgpack") as state:
        for value in (None, True, 0, 5, 48, -1, 2**40, 1.5, "text", b"bytes", [1, "a"], {"a": b"b"}):
            state.set("key", value)
            assert state.get("key", "default") == value
        state.set("count", 40)
        assert state.increment("count", 2) == state.get("count") == 42


def fail_within(state: State[Any]) -> None:
    with state.transaction() as changes:
        changes.delete("a")
        1 / 0


def change_under(state: State[Any]) -> None:
    with state.transaction() as changes:
        changes.set("b", changes.get("a"))
        state.set("a", 100)


def test_transactions(tmp_path: Path) -> None:
    with towline.state.open(str(tmp_path / "store")) as state:
        state.set_many({"a": 10, "b": 0})
        with state.transaction() as changes:
            changes.set("a", changes.get("a") - 3)
            changes.set("b", changes.get("b") + 3)
            assert changes.get("a") == 7, "its own writes are seen"
            assert state.get("a") == 10, "others see them at the end"
        assert state.get_many(["a", "b"]) == {"a": 7, "b": 3}
        with pytest.raises(ZeroDivisionError):
            fail_within(state)
        with pytest.raises(StateConflict):
            change_under(state)
        assert state.get_many(["a", "b"]) == {"a": 100, "b": 3}


def test_transactions_are_tried_again(tmp_path: Path) -> None:
    def move(changes: towline.state.Transaction[Any]) -> int:
        changes.set("a", changes.get("a") - 1)
        changes.set("b", changes.get("b") + 1)
        return changes.get("b")

    with towline.state.open(str(tmp_path / "store")) as state:
        state.set_many({"a": 400, "b": 0})
        threads = [
            threading.Thread(target=lambda: [state.transact(move) for _ in range(100)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert state.get_many(["a", "b"]) == {"a": 0, "b": 400}


def test_async_transactions(tmp_path: Path) -> None:
    async def move(changes: towline.state.AsyncTransaction[Any]) -> int:
        changes.set("a", await changes.get("a") - 1)
        await asyncio.sleep(0)
        changes.set("b", await changes.get("b", 0) + 1)
        return await changes.get("b")

    async def main() -> None:
        async with towline.state.open_async(str(tmp_path / "store")) as state:
            await state.set("a", 20)
            await asyncio.gather(*(state.transact(move) for _ in range(20)))
            assert await state.get_many(["a", "b"]) == {"a": 0, "b": 20}
            async with state.transaction() as changes:
                changes.delete("a")
            assert not await state.contains("a")

    asyncio.run(main())


KEYS = st.text("ab\xff:", min_size=1, max_size=3)
VALUES = st.binary(max_size=40) | st.integers(1, 9000).map(bytes)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, VALUES),
        st.tuples(st.just("delete"), KEYS),
        st.tuples(st.just("cas"), KEYS, st.none() | VALUES, st.none() | VALUES),
        st.tuples(st.just("many"), st.dictionaries(KEYS, VALUES, max_size=5)),
        st.tuples(st.just("scan"), st.text("ab\xff:", max_size=2)),
    ),
    max_size=60,
)


@settings(max_examples=60)
@given(STEPS)
def test_it_is_a_dictionary(tmp_path_factory: pytest.TempPathFactory, steps: list[Any]) -> None:
    model: dict[str, bytes] = {}
    path = str(tmp_path_factory.mktemp("model") / "store")
    with towline.state.open(path, codec="bytes") as state:
        for name, *arguments in steps:
            if name == "set":
                state.set(*arguments)
                model[arguments[0]] = arguments[1]
            elif name == "delete":
                assert state.delete(arguments[0]) == (model.pop(arguments[0], None) is not None)
            elif name == "cas":
                key, expected, value = arguments
                holds = model.get(key) == expected
                assert state.compare_and_set(key, expected, value) == holds
                if holds and value is None:
                    model.pop(key, None)
                elif holds:
                    model[key] = value
            elif name == "many":
                state.set_many(arguments[0])
                model.update(arguments[0])
            else:
                prefix = arguments[0]
                expected_pairs = {key: value for key, value in model.items() if key.startswith(prefix)}
                assert dict(state.scan(prefix)) == expected_pairs
            assert state.get_many(list(model)) == model
    with towline.state.open(path, codec="bytes") as state:
        assert dict(state.scan()) == model


def test_large_values_on_an_event_loop(tmp_path: Path) -> None:
    """Beyond what the loop copies itself."""
    sizes = [100, 70_000, 300_000, 600_000, 5_000_000]
    values = {f"{size:08}": os.urandom(size) for size in sizes}

    async def main() -> None:
        async with towline.state.open_async(str(tmp_path / "store"), codec="bytes", size=64 << 20) as state:
            for name, value in values.items():
                await state.set(name, value)
                assert await state.get(name) == value
            assert await state.get_many(list(values)) == values
            assert {key: value async for key, value in state.scan()} == values
            keys = state.keys()
            assert [key async for key in keys] == list(values)

    asyncio.run(main())
    with towline.state.open(str(tmp_path / "store"), codec="bytes") as state:
        assert dict(state.scan()) == values
        assert state.get_many(list(values)) == values
        assert [state.get(name) for name in values] == list(values.values())
