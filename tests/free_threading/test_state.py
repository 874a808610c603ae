"""`towline.state` in threads of one process."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
import towline.state
from towline.errors import StateClosed

from tests.free_threading.threads import SCHEDULES, run_all, short_turns

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the embedded store")


def test_eight_threads_share_a_store(tmp_path: Path) -> None:
    with short_turns(), towline.state.open(str(tmp_path / "store")) as state:

        def use(thread: int) -> None:
            for number in range(100):
                state.increment("sum")
                state.set(f"{thread}/{number}", {"number": number})
                assert state.get(f"{thread}/{number}") == {"number": number}
                state.update("list", lambda found: [*(found or [])[-5:], thread])
            assert len(list(state.keys(f"{thread}/"))) == 100

        run_all(*(lambda thread=thread: use(thread) for thread in range(8)))
        assert state.get("sum") == 800


def test_messages_reach_readers_in_threads(tmp_path: Path) -> None:
    with short_turns(), towline.state.open(str(tmp_path / "store")) as state:
        ready = threading.Barrier(4)

        def read() -> list[int]:
            with state.subscribe("news") as subscription:
                ready.wait(20)
                messages = iter(subscription)
                return [next(messages).data for _ in range(300)]

        def publish() -> None:
            ready.wait(20)
            for number in range(300):
                state.publish("news", number)

        *found, _ = run_all(read, read, read, publish)
        assert all(numbers == list(range(300)) for numbers in found)


def test_a_store_is_closed_while_threads_use_it(tmp_path: Path) -> None:
    for number in range(SCHEDULES // 3):
        state = towline.state.open(str(tmp_path / str(number)))

        def use(state: towline.state.State = state) -> None:
            try:
                for _ in range(50):
                    state.increment("n")
                    state.get("n")
            except StateClosed:
                pass

        run_all(use, use, state.close)
