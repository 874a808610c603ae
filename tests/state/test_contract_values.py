"""Values, counters, expiry, scans and transactions: the same on every store, blocking and on an event loop."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from towline import state as towline_state
from towline.errors import StateClosed, StateConflict, StateError, UsageError

from tests.support.process import eventually

from .conftest import Opened


def test_a_value_is_set_read_and_removed(state: Any) -> None:
    assert state.get("a") is None
    assert state.get("a", 7) == 7
    state.set("a", {"x": [1, 2.5, None, "é"]})
    assert state.get("a") == {"x": [1, 2.5, None, "é"]}
    assert state.contains("a")
    state.set("a", 2)
    assert state.get("a") == 2
    assert state.delete("a", "missing") == 1
    assert not state.contains("a")
    assert state.delete("a") == 0


@pytest.mark.parametrize("value", [b"", b"\0", bytes(range(256)), b"x" * 100_000], ids=len)
def test_bytes_are_stored_as_they_are(opened: Opened, value: bytes) -> None:
    state = opened(codec="bytes")
    state.set(b"\xff\0key", value)
    assert state.get(b"\xff\0key") == value
    assert state.update(b"\xff\0key", lambda old: old + b"!") == value + b"!"


def test_msgpack_stores_bytes_and_counts(opened: Opened) -> None:
    pytest.importorskip("msgpack")
    state = opened(codec="msgpack")
    state.set("a", {"raw": b"\0\1", "n": 3})
    assert state.get("a") == {"raw": b"\0\1", "n": 3}
    assert state.increment("n", 5) == 5
    assert state.get("n") == 5


def test_several_values_at_once(state: Any) -> None:
    state.set_many({"a": 1, "b": 2, "c": 3})
    assert state.get_many(["c", "missing", "a"]) == {"c": 3, "a": 1}
    assert state.get_many([]) == {}
    assert state.delete("a", "b", "c") == 3


def test_set_if_absent_sets_once(state: Any) -> None:
    assert state.set_if_absent("a", 1)
    assert not state.set_if_absent("a", 2)
    assert state.get("a") == 1


def test_compare_and_set(state: Any) -> None:
    assert not state.compare_and_set("a", 1, 2)
    assert state.compare_and_set("a", None, {"v": 1})
    assert not state.compare_and_set("a", None, 5)
    assert not state.compare_and_set("a", {"v": 2}, 5)
    assert state.compare_and_set("a", {"v": 1}, 5)
    assert state.compare_and_set("a", 5, None)
    assert not state.contains("a")


def test_update_replaces_creates_and_removes(state: Any) -> None:
    assert state.update("list", lambda old: [*(old or []), 1]) == [1]
    assert state.update("list", lambda old: [*(old or []), 2]) == [1, 2]
    assert state.update("list", lambda old: None) is None
    assert not state.contains("list")


def test_updates_of_many_threads_are_all_kept(opened: Opened) -> None:
    states = [opened() for _ in range(4)]

    def work(state: Any) -> None:
        for _ in range(50):
            state.update("n", lambda old: (old or 0) + 1)
            state.increment("m")

    threads = [threading.Thread(target=work, args=(each,)) for each in states]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (states[0].get("n"), states[0].get("m")) == (200, 200)


def test_counters(state: Any) -> None:
    assert state.increment("n") == 1
    assert state.increment("n", 41) == 42
    assert state.decrement("n", 50) == -8
    assert state.get("n") == -8
    state.set("n", 100)
    assert state.increment("n") == 101
    assert state.increment("large", 2**62) == 2**62
    assert state.increment("large", 2**62 - 1) == 2**63 - 1
    assert state.increment("large with ttl", 2**62 + 1, ttl=50) == 2**62 + 1


@pytest.mark.parametrize("value", ["text", 1.5, [1], True])
def test_only_an_integer_counts(state: Any, value: object) -> None:
    state.set("a", value)
    with pytest.raises(StateError):
        state.increment("a")
    assert state.get("a") == value


def test_a_counter_does_not_overflow(state: Any) -> None:
    state.set("n", 2**63 - 1)
    with pytest.raises(StateError):
        state.increment("n")
    assert state.get("n") == 2**63 - 1


def test_the_ttl_of_a_counter_is_that_of_its_first_increment(state: Any) -> None:
    state.increment("n", ttl=100)
    state.increment("n", ttl=10_000)
    assert 90 < state.ttl("n") <= 100
    state.set("kept", 5)
    state.increment("kept", ttl=10)
    assert state.ttl("kept") == math.inf


def test_a_value_expires(state: Any) -> None:
    state.set("a", 1, ttl=0.2)
    assert state.get("a") == 1
    assert 0 < state.ttl("a") <= 0.2
    eventually(lambda: state.get("a") is None, "expiry")
    assert state.ttl("a") is None
    assert list(state.scan()) == []
    assert state.set_if_absent("a", 2)
    assert state.ttl("a") == math.inf


def test_a_new_value_has_its_own_ttl(state: Any) -> None:
    state.set("a", 1, ttl=100)
    state.set("a", 2)
    assert state.ttl("a") == math.inf
    state.set("a", 3, ttl=100)
    state.update("a", lambda old: old + 1, keep_ttl=True)
    assert 90 < state.ttl("a") <= 100
    state.update("a", lambda old: old + 1)
    assert state.ttl("a") == math.inf


def test_expire_sets_and_removes_the_ttl(state: Any) -> None:
    assert not state.expire("a", 10)
    assert not state.expire("a", None)
    state.set("a", 1)
    assert state.expire("a", None)
    assert state.expire("a", 10)
    assert 9 < state.ttl("a") <= 10
    assert state.expire("a", None)
    assert state.ttl("a") == math.inf


def test_a_ttl_is_more_than_zero(state: Any) -> None:
    for ttl in (0, -1, math.nan):
        with pytest.raises(UsageError, match="more than 0 seconds"):
            state.set("a", 1, ttl=ttl)
    state.set("a", 1, ttl=1e15)
    assert state.ttl("a") > 1e9


def test_scan_has_the_prefix_and_nothing_internal(state: Any) -> None:
    state.set_many({f"user:{number}": number for number in range(300)})
    state.set_many({"u*er:1": 1, "other": 2})
    state.once("done")
    with state.lock("held"):
        assert dict(state.scan("user:")) == {f"user:{number}": number for number in range(300)}
        assert dict(state.scan("u*")) == {"u*er:1": 1}
        assert len(list(state.keys())) == 302
    assert list(state.scan("none")) == []


def test_a_namespace_is_apart(opened: Opened) -> None:
    state = opened()
    first, second = state.namespace("one"), state.namespace("two")
    first.set("k", 1)
    second.set("k", 2)
    state.set("k", 3)
    assert (first.get("k"), second.get("k"), state.get("k")) == (1, 2, 3)
    assert dict(first.scan()) == {"k": 1}
    assert opened(namespace="one").get("k") == 1
    assert first.namespace("inner").get("k") is None
    assert first.clear() == 1
    assert state.get("k") == 3


def test_clear_leaves_locks(state: Any) -> None:
    state.set_many({str(number): number for number in range(500)})
    with state.lock("held", timeout=0):
        assert state.clear() == 500
        with pytest.raises(towline_state.LockTimeout):
            state.lock("held", timeout=0).acquire()


def test_a_transaction_takes_place_together(state: Any) -> None:
    state.set_many({"a": 10, "b": 0})
    with state.transaction() as changes:
        amount = changes.get("a")
        changes.set("a", amount - 3)
        changes.set("b", 3, ttl=50)
        changes.delete("c")
    assert state.get_many(["a", "b"]) == {"a": 7, "b": 3}
    assert state.ttl("b") <= 50


def test_a_transaction_conflicts_with_another_writer(state: Any) -> None:
    state.set("a", 1)
    transaction = state.transaction()
    changes = transaction.__enter__()
    value = changes.get("a")
    state.set("a", 100)
    changes.set("a", value + 1)
    changes.set("b", 1)
    with pytest.raises(StateConflict):
        transaction.__exit__(None, None, None)
    assert state.get("a") == 100
    assert state.get("b") is None


def test_a_failed_block_changes_nothing(state: Any) -> None:
    with contextlib.suppress(RuntimeError), state.transaction() as changes:
        changes.set("a", 1)
        raise RuntimeError
    assert state.get("a") is None


def test_keys_have_bounds(state: Any) -> None:
    state.set("k" * 480, 1)
    assert state.get("k" * 480) == 1
    for key in ("", "k" * 481, b"\0internal"):
        with pytest.raises(UsageError):
            state.set(key, 1)
        with pytest.raises(UsageError):
            state.delete(key)
        with pytest.raises(UsageError):
            state.get(key)


def test_internal_keys_are_out_of_reach(state: Any) -> None:
    """The value of a lock, as `get` would find it by its key."""
    with state.lock("job"):
        for key in (b"\0lock:job", "\0lock:job"):
            with pytest.raises(UsageError, match="must not begin with a zero byte"):
                state.get(key)


def test_info_names_the_store(state: Any, url: str) -> None:
    state.set("a", 1)
    info = state.info()
    assert info["keys"] == 1
    assert info["backend"] == ("redis" if url.startswith("unix") else "embedded")


def test_a_closed_store_raises(opened: Opened) -> None:
    state = opened()
    state.set("a", 1)
    inner = state.namespace("inner")
    state.close()
    calls: list[Callable[[], Any]] = [
        lambda: state.get("a"),
        lambda: inner.get("a"),
        lambda: state.get_many(["a"]),
        lambda: state.contains("a"),
        lambda: state.set("a", 1),
        lambda: state.set_many({"a": 1}),
        lambda: state.set_if_absent("b", 1),
        lambda: state.delete("a"),
        lambda: state.clear(),
        lambda: state.compare_and_set("a", 1, 2),
        lambda: state.increment("n"),
        lambda: state.ttl("a"),
        lambda: state.expire("a", 1),
        lambda: list(state.scan()),
        lambda: state.publish("a", 1),
        lambda: state.token_bucket("a", 1, 1),
        lambda: state.sliding_window("a", 1, 1),
        lambda: state.once("a"),
        lambda: state.lock("a").acquire(),
        lambda: state.subscribe("a").__enter__(),
        lambda: state.info(),
    ]
    for call in calls:
        with pytest.raises(StateClosed):
            call()
    state.close()
    assert opened().get("a") == 1


def test_an_empty_key_in_a_namespace(state: Any) -> None:
    inner = state.namespace("inner")
    for call in (inner.get, inner.contains, inner.delete, lambda key: inner.set(key, 1)):
        with pytest.raises(UsageError, match="at least one byte"):
            call("")


def test_another_opening_sees_the_values(opened: Opened) -> None:
    first, second = opened(), opened()
    first.set("a", 1)
    assert second.get("a") == 1
    started = time.monotonic()
    second.set("a", 2)
    assert first.get("a") == 2
    assert time.monotonic() - started < 10
