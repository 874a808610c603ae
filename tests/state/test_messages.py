"""Publish and subscribe, in one process and in several."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import towline.state
from towline import _native
from towline.errors import SlowSubscriber, StateClosed, UsageError
from towline.state import Message

from .test_processes import in_child, statuses


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store")


def test_a_thread_receives(path: str) -> None:
    with towline.state.open(path) as state, state.subscribe("chat", patterns=["room.*"]) as messages:
        state.publish("chat", {"text": "hello"})
        state.publish("other", 1)
        state.publish("room.1", [1])
        assert messages.receive(20) == Message("chat", {"text": "hello"})
        assert messages.receive(20) == Message("room.1", [1])
        assert messages.receive(0.01) is None
        assert messages.dropped == 0


def test_it_receives_from_now_on(path: str) -> None:
    with towline.state.open(path) as state:
        state.publish("chat", 1)
        with state.subscribe("chat") as first:
            state.publish("chat", 2)
            with state.subscribe("chat") as second:
                state.publish("chat", 3)
                assert second.receive(20) == Message("chat", 3)
            assert [first.receive(20), first.receive(20)] == [Message("chat", 2), Message("chat", 3)]


def test_close_ends_a_reader_that_waits(path: str) -> None:
    with towline.state.open(path) as state:
        subscription = state.subscribe("chat")
        received: list[Any] = []
        thread = threading.Thread(target=lambda: received.extend(subscription))
        thread.start()
        state.publish("chat", 1)
        deadline = time.monotonic() + 20
        while not received and time.monotonic() < deadline:
            time.sleep(0.001)
        subscription.close()
        thread.join(20)
        assert not thread.is_alive()
        assert received == [Message("chat", 1)]


def test_messages_of_a_transaction(path: str) -> None:
    with towline.state.open(path) as state, state.subscribe("done") as messages:
        with state.transaction() as changes:
            changes.set("key", 1)
            changes.publish("done", "key")
            assert messages.receive(0.01) is None
        assert messages.receive(20) == Message("done", "key")


def test_a_message_comes_once_and_namespaces_are_apart(path: str) -> None:
    with towline.state.open(path) as state:
        chat, other = state.namespace("chat"), state.namespace("other")
        with chat.subscribe("a", "a", patterns=["*", "a*"]) as messages:
            other.publish("a", 0)
            state.publish("a", 0)
            chat.publish("a", 1)
            chat.publish("b", 2)
            assert messages.receive(20) == Message("a", 1)
            assert messages.receive(20) == Message("b", 2)
            assert messages.receive(0.01) is None


def test_a_slow_subscriber_loses_the_oldest(path: str) -> None:
    with towline.state.open(path) as state, state.subscribe("n", queue=10) as messages:
        for number in range(100):
            state.publish("n", number)
        deadline = time.monotonic() + 20
        while messages.dropped < 90 and time.monotonic() < deadline:
            time.sleep(0.001)
        assert messages.dropped == 90
        received = [messages.receive(20) for _ in range(10)]
        assert [message.data for message in received if message] == list(range(90, 100))


def test_a_slow_subscriber_is_disconnected(path: str) -> None:
    with towline.state.open(path) as state:
        messages = state.subscribe("n", queue=10, when_full="disconnect")
        for number in range(11):
            state.publish("n", number)
        deadline = time.monotonic() + 20
        while not messages.dropped and time.monotonic() < deadline:
            time.sleep(0.001)
        with pytest.raises(SlowSubscriber, match="1 messages were lost"):
            messages.receive(20)


def test_a_reader_that_falls_behind_the_log(path: str) -> None:
    store = _native.StateStore(path, size=1 << 20)
    log = store.open_log()
    for number in range(3000):
        store.publish(b"n", b"%d " % number + bytes(1000))
    posts, lost, _ = log.read(10_000, 1 << 30)
    assert len(posts) + lost == 3000
    assert 200 < len(posts) < 2000
    assert posts[-1][1].startswith(b"2999 ")
    assert posts[0][1].startswith(b"%d " % lost)
    with pytest.raises(UsageError, match="a message of this store has at most"):
        store.publish(b"n", bytes(1 << 20))


def test_subscriptions_are_checked(path: str) -> None:
    with towline.state.open(path) as state:
        for arguments, options in [
            ((), {}),
            (("a",), {"queue": 0}),
            (("a",), {"when_full": "block"}),
            ((), {"patterns": "a*"}),
        ]:
            with pytest.raises(UsageError):
                state.subscribe(*arguments, **options)


def test_an_event_loop_receives(path: str) -> None:
    async def main() -> None:
        async with towline.state.open_async(path) as state:
            async with state.subscribe("chat") as first, state.subscribe(patterns=["*"]) as second:
                await state.publish("chat", 1)
                await state.publish("other", 2)
                assert await asyncio.wait_for(first.receive(), 20) == Message("chat", 1)
                assert await asyncio.wait_for(second.receive(), 20) == Message("chat", 1)
                assert await asyncio.wait_for(second.receive(), 20) == Message("other", 2)
                # A cancelled receive loses nothing.
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(first.receive(), 0.01)
                await state.publish("chat", 3)
                assert await asyncio.wait_for(first.receive(), 20) == Message("chat", 3)
            assert await first.receive() is None
            assert (await state.info())["subscribers"] == 0

    asyncio.run(main())


def test_many_subscriptions_of_a_loop(path: str) -> None:
    """A large publication does not hold the loop: other callbacks run between its parts."""

    async def main() -> None:
        failures: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        async with towline.state.open_async(path) as state:
            subscriptions = [state.subscribe("n", queue=500) for _ in range(200)]
            for subscription in subscriptions:
                await subscription.__aenter__()
            for number in range(300):
                await state.publish("n", number)

            async def read(subscription: towline.state.AsyncSubscription[Any]) -> list[int]:
                return [message.data for _ in range(300) if (message := await subscription.receive())]

            received = await asyncio.wait_for(asyncio.gather(*map(read, subscriptions)), 60)
            assert all(numbers == list(range(300)) for numbers in received)
            for number in range(10):
                await state.publish("n", number)
            for subscription in subscriptions:
                await subscription.close()
            await asyncio.sleep(0.01)
        assert failures == [], "the reader runs after its end"

    asyncio.run(main())


def test_closing_from_another_event_loop(path: str) -> None:
    """A state of two loops is closed in one; the readers of the other wake on their own thread."""
    state = towline.state.open_async(path)
    ready = threading.Event()
    outcome: list[Any] = []

    async def read() -> None:
        async with state.subscribe("n") as messages:
            asyncio.get_running_loop().call_soon(ready.set)
            try:
                await asyncio.wait_for(messages.receive(), 20)
            except StateClosed as error:
                outcome.append(error)

    thread = threading.Thread(target=lambda: asyncio.run(read()))
    thread.start()
    assert ready.wait(20)
    asyncio.run(state.close())
    thread.join(20)
    assert not thread.is_alive()
    assert len(outcome) == 1


def test_a_closed_state_has_nothing_open(path: str) -> None:
    """The settings of a store may be changed at once, though the thread that read messages still sleeps."""
    state = towline.state.open(path, size=1 << 20)
    messages = state.subscribe("n")
    time.sleep(0.05)
    state.close()
    with towline.state.open(path, size=2 << 20) as again:
        assert again.info()["size"] == 2 << 20
    with pytest.raises(StateClosed):
        messages.receive(20)


def test_a_slow_task(path: str) -> None:
    async def main() -> None:
        async with towline.state.open_async(path) as state:
            async with state.subscribe("n", queue=5, when_full="disconnect") as messages:
                for number in range(6):
                    await state.publish("n", number)
                while not messages.dropped:
                    await asyncio.sleep(0.001)
                with pytest.raises(SlowSubscriber):
                    async for _ in messages:
                        pass

    asyncio.run(main())


def test_processes_publish_to_each_other(path: str) -> None:
    """Every process receives every message of the others, in the order of each."""
    processes, times = 3, 500

    def work(own: int) -> None:
        async def main() -> None:
            async with (
                towline.state.open_async(path) as state,
                state.subscribe("n", queue=10_000) as messages,
            ):
                await state.increment("ready")
                while await state.get("ready") < processes:
                    await asyncio.sleep(0.001)
                for number in range(times):
                    await state.publish("n", [own, number])
                received: dict[int, list[int]] = {}
                for _ in range(processes * times):
                    message = await asyncio.wait_for(messages.receive(), 20)
                    assert message is not None
                    received.setdefault(message.data[0], []).append(message.data[1])
                assert received == {each: list(range(times)) for each in range(processes)}

        asyncio.run(main())

    assert statuses([in_child(lambda own=own: work(own)) for own in range(processes)]) == [0] * processes


def test_the_slot_of_a_dead_subscriber_is_used_again(path: str) -> None:
    store = _native.StateStore(path)

    def subscribe() -> None:
        log = _native.StateStore(path).open_log()
        log.arm()
        os._exit(0)

    for _ in range(5):
        assert statuses([in_child(subscribe)]) == [0]
        store.publish(b"n", b"1")
    log = store.open_log()
    assert store.info()["subscribers"] == 1
    assert len([each for each in os.listdir(path) if each.startswith("wake-")]) == 1
    log.close()


def test_a_publisher_that_has_ended_leaves_the_reader_asleep(path: str) -> None:
    def publish() -> None:
        with towline.state.open(path) as state:
            state.publish("n", 1)

    async def main() -> None:
        async with towline.state.open_async(path) as state, state.subscribe("n") as messages:
            assert statuses([in_child(publish)]) == [0]
            assert await asyncio.wait_for(messages.receive(), 20) == Message("n", 1)
            await asyncio.sleep(0.05)
            before = time.process_time()
            await asyncio.sleep(1)
            assert time.process_time() - before < 0.3, "the reader runs without news"

    asyncio.run(main())


def test_uvloop(path: str) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        async with towline.state.open_async(path) as state, state.subscribe("n") as messages:
            for number in range(100):
                await state.publish("n", number)
                message = await asyncio.wait_for(messages.receive(), 20)
                assert message == Message("n", number)

    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
