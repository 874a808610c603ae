"""Publish and subscribe: the same on every store, blocking and on an event loop."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import pytest
from towline.errors import SlowSubscriber, StateClosed, UsageError

from tests.support.process import eventually

from .conftest import Opened

WAIT = 20.0
QUIET = 0.3
"""Seconds without a message after which a test assumes that none comes."""


def received(messages: Any, count: int) -> list[tuple[str, Any]]:
    """The next messages, and nothing after them."""
    found = next_messages(messages, count)
    assert messages.receive(timeout=QUIET) is None
    return found


def next_messages(messages: Any, count: int) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for _ in range(count):
        message = messages.receive(timeout=WAIT)
        assert message is not None, f"only {found}"
        found.append((message.channel, message.data))
    return found


def test_a_message_reaches_all_subscriptions(opened: Opened) -> None:
    one, two = opened(), opened()
    with (
        one.subscribe("chat") as first,
        one.subscribe("chat", "news") as second,
        two.subscribe("chat") as third,
    ):
        two.publish("chat", {"text": "hello"})
        one.publish("news", 2)
        assert received(first, 1) == [("chat", {"text": "hello"})]
        assert received(second, 2) == [("chat", {"text": "hello"}), ("news", 2)]
        assert received(third, 1) == [("chat", {"text": "hello"})]


def test_messages_keep_their_order(opened: Opened) -> None:
    state = opened()
    with state.subscribe("n") as messages:
        for number in range(500):
            state.publish("n", number)
        assert received(messages, 500) == [("n", number) for number in range(500)]
        assert messages.dropped == 0


@pytest.mark.parametrize(
    ("pattern", "matches", "others"),
    [
        ("room.*", ["room.1", "room.", "room.a.b"], ["room", "xroom.1"]),
        ("[ab]x", ["ax", "bx"], ["cx", "x"]),
        ("[a-c]x", ["ax", "bx", "cx"], ["dx"]),
        ("[c-a]x", ["ax", "bx", "cx"], ["dx"]),
        ("[^a]x", ["bx"], ["ax"]),
        ("h[^e]llo", ["hallo"], ["hello", "hllo"]),
        ("h[a-c]llo", ["hbllo"], ["hdllo"]),
        ("a?c", ["abc", "a.c", "a\nc"], ["ac", "abbc"]),
        ("[a-]x", ["_", "x"], ["ax", "-x"]),  # from "]" to "a", and "x"
        (r"[\]a]x", ["]x", "ax"], ["bx"]),
        ("a[b", ["ab"], ["a[b", "a"]),  # without its end, a class goes to the end
        ("x[]", [], ["x", "x[]"]),
        ("a.c+", ["a.c+"], ["abc"]),
        (r"a\*", ["a*"], ["ab", r"a\*"]),
    ],
)
def test_patterns(state: Any, pattern: str, matches: list[str], others: list[str]) -> None:
    expected = [*matches, "the last"]
    with state.subscribe("the last", patterns=[pattern]) as messages:
        for channel in [*others, *expected]:
            state.publish(channel, 1)
        assert next_messages(messages, len(expected)) == [(channel, 1) for channel in expected]


def test_a_message_that_matches_several_times_comes_once(state: Any) -> None:
    with state.subscribe("room.1", "room.1", patterns=["room.*", "*.1", "room.*"]) as messages:
        with state.subscribe(patterns=["*.1"]) as other:
            state.publish("room.1", "both")
            state.publish("room.2", "one")
            state.publish("hall.1", "another")
            assert received(messages, 3) == [("room.1", "both"), ("room.2", "one"), ("hall.1", "another")]
            assert received(other, 2) == [("room.1", "both"), ("hall.1", "another")]


def test_a_namespace_has_its_own_channels(state: Any) -> None:
    inner = state.namespace("a*")
    with inner.subscribe(patterns=["*"]) as messages, state.subscribe("chat") as outer:
        state.namespace("ab").publish("chat", 0)
        state.publish("chat", 1)
        inner.publish("chat", 2)
        assert received(messages, 1) == [("chat", 2)]
        assert received(outer, 1) == [("chat", 1)]


def test_nothing_from_before_the_subscription(state: Any) -> None:
    state.publish("chat", "before")
    with state.subscribe("chat") as messages:
        state.publish("chat", "after")
        assert received(messages, 1) == [("chat", "after")]


def test_a_subscription_ends_and_begins_again(state: Any) -> None:
    for number in range(20):
        with state.subscribe("chat", patterns=["x.*"]) as messages:
            state.publish("chat", number)
            state.publish("x.1", number)
            assert [messages.receive(timeout=WAIT).data for _ in range(2)] == [number, number]
        assert messages.receive(timeout=WAIT) is None


def test_closing_wakes_the_reader(state: Any) -> None:
    with state.subscribe("chat") as messages:
        found: list[Any] = []
        reader = threading.Thread(target=lambda: found.extend(messages))
        reader.start()
        state.publish("chat", 1)
        eventually(lambda: found, "message")
        messages.close()
        reader.join(WAIT)
        assert not reader.is_alive()
        assert [message.data for message in found] == [1]


def test_closing_the_state_wakes_its_readers(opened: Opened) -> None:
    state, other = opened(), opened()
    outcomes: list[Any] = []

    def read(messages: Any) -> None:
        try:
            outcomes.extend(message.data for message in messages)
        except StateClosed as error:
            outcomes.append(type(error))

    with state.subscribe("chat") as first, state.namespace("inner").subscribe(patterns=["*"]) as second:
        with other.subscribe("chat") as elsewhere:
            readers = [threading.Thread(target=read, args=(each,)) for each in (first, second)]
            for reader in readers:
                reader.start()
            state.publish("chat", 1)
            eventually(lambda: outcomes, "message")
            began = time.monotonic()
            state.close()
            for reader in readers:
                reader.join(WAIT)
                assert not reader.is_alive()
            assert time.monotonic() - began < WAIT / 2
            assert outcomes == [1, StateClosed, StateClosed]
            with pytest.raises(StateClosed):
                first.receive(timeout=WAIT)
            other.publish("chat", 2)
            assert received(elsewhere, 2) == [("chat", 1), ("chat", 2)]


def test_messages_that_wait_come_before_the_end(opened: Opened) -> None:
    state = opened()
    with state.subscribe("chat") as messages, state.subscribe("chat") as marker:
        state.publish("chat", 1)
        assert marker.receive(timeout=WAIT).data == 1
        time.sleep(QUIET)  # it is in the other queue, too
        state.close()
        assert messages.receive(timeout=WAIT).data == 1
        with pytest.raises(StateClosed):
            messages.receive(timeout=WAIT)
    assert messages.receive(timeout=WAIT) is None, "closed by the program"


def test_a_slow_subscriber_loses_the_oldest(state: Any) -> None:
    with state.subscribe("n", queue=10) as messages:
        for number in range(100):
            state.publish("n", number)
        eventually(lambda: messages.dropped == 90 or drained_elsewhere(messages), "dropped messages")
        assert received(messages, 10) == [("n", number) for number in range(90, 100)]
        assert messages.dropped == 90
        state.publish("n", "next")
        assert received(messages, 1) == [("n", "next")]


def drained_elsewhere(messages: Any) -> bool:
    """A store that counts when it reads needs no wait."""
    time.sleep(QUIET)
    return True


def test_a_slow_subscriber_is_disconnected(state: Any) -> None:
    with state.subscribe("n", queue=10, when_full="disconnect") as slow, state.subscribe("n") as other:
        for number in range(100):
            state.publish("n", number)
        assert len(received(other, 100)) == 100
        with pytest.raises(SlowSubscriber):
            [slow.receive(timeout=WAIT) for _ in range(11)]
        assert slow.dropped >= 1


def test_a_subscription_needs_a_channel_and_a_bound(state: Any) -> None:
    with pytest.raises(UsageError, match="needs a channel"):
        state.subscribe()
    with pytest.raises(UsageError, match="at least 1"):
        state.subscribe("a", queue=0)
    with pytest.raises(UsageError, match="when_full"):
        state.subscribe("a", when_full="wait")


def test_a_transaction_publishes_when_it_is_committed(state: Any) -> None:
    with state.subscribe("changes") as messages:
        with contextlib.suppress(RuntimeError), state.transaction() as changes:
            changes.publish("changes", "lost")
            raise RuntimeError
        with state.transaction() as changes:
            changes.set("a", 1)
            changes.publish("changes", "a")
            changes.publish("changes", "b")
        assert received(messages, 2) == [("changes", "a"), ("changes", "b")]


def test_many_subscriptions_in_one_process(state: Any) -> None:
    subscriptions = [state.subscribe("all", f"one.{number}") for number in range(50)]
    for each in subscriptions:
        each.__enter__()
    state.publish("all", "x")
    for number in range(50):
        state.publish(f"one.{number}", number)
    for number, each in enumerate(subscriptions):
        assert [each.receive(timeout=WAIT).data for _ in range(2)] == ["x", number]
        each.close()
