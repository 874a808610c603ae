"""Several processes: no lost update, forks, and locks of the dead."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import towline.state
from towline import _native


def in_child(run: Callable[[], object]) -> int:
    """Fork a process that runs a function; returns its id. Its status is 0 if that returns."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        run()
        status = 0
    finally:
        os._exit(status)


def statuses(pids: list[int]) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def test_four_processes_lose_no_update(tmp_path: Path) -> None:
    path, times = str(tmp_path / "store"), 3000

    def work() -> None:
        with towline.state.open(path) as state:
            for number in range(times):
                state.increment("count")
                if number % 10 == 0:
                    state.update("list", lambda value: (value or 0) + 1)
                    state.transact(lambda changes: changes.set("sum", changes.get("sum", 0) + 1))

    assert statuses([in_child(work) for _ in range(4)]) == [0] * 4
    with towline.state.open(path) as state:
        expected = {"count": 4 * times, "list": 4 * times // 10, "sum": 4 * times // 10}
        assert state.get_many(["count", "list", "sum"]) == expected


def test_an_open_store_survives_a_fork(tmp_path: Path) -> None:
    state = towline.state.open(str(tmp_path / "store"))
    state.set("parent", 1)

    def child() -> None:
        assert state.get("parent") == 1
        state.set("child", 2)
        grandchild = in_child(lambda: state.increment("grandchild"))
        assert statuses([grandchild]) == [0]
        state.close()

    assert statuses([in_child(child) for _ in range(3)]) == [0, 0, 0]
    assert state.get_many(["parent", "child", "grandchild"]) == {"parent": 1, "child": 2, "grandchild": 3}
    state.set("parent", 2)
    with towline.state.open(str(tmp_path / "store")) as again:
        assert again.get("parent") == 2
    state.close()


def test_a_killed_reader_does_not_keep_old_pages(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    store = _native.StateStore(path, size=4 << 20)
    store.set(b"key", b"x")
    opened, opens = os.pipe()

    def read() -> None:
        reader = _native.StateStore(path)
        os.write(opens, b".")
        while True:
            reader.get(b"key")

    for _ in range(20):
        pid = in_child(read)
        assert os.read(opened, 1) == b"."  # a store that is opened frees the pages of dead readers
        for _ in range(100):
            store.set(b"key", bytes(10_000))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os.close(opened)
    os.close(opens)
    assert store.info()["file_bytes"] < 8 << 20


def stopped_writer(path: str, short: _native.StateStore) -> int:
    """Fork a process that is stopped in the middle of a write; returns its id."""

    def write() -> None:
        writer = _native.StateStore(path)
        while True:
            writer.set(b"other", bytes(200_000))

    pid = in_child(write)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        time.sleep(0.01)
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)
        try:
            short.set(b"mine", b"1")
        except BlockingIOError:
            return pid  # it was stopped with the lock
        os.kill(pid, signal.SIGCONT)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the writer was never stopped within a transaction")


def test_an_event_loop_goes_on_while_another_process_writes(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    short = _native.StateStore(path, short=True)

    async def main() -> None:
        async with towline.state.open_async(path) as state:
            await state.set("key", 1)
            pid = stopped_writer(path, short)
            write = asyncio.create_task(state.set("key", 2))
            turns = 0
            while turns < 100:
                await asyncio.sleep(0)
                assert await state.get("key") == 1
                turns += 1
            assert not write.done()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            await asyncio.wait_for(write, 20)
            assert await state.get("key") == 2

    asyncio.run(main())


def test_a_stopped_writer_blocks_no_reader_and_no_loop(tmp_path: Path) -> None:
    """A process is stopped while it writes: others read on, and a short write is refused at once."""
    path = str(tmp_path / "store")
    store, short = _native.StateStore(path), _native.StateStore(path, short=True)
    store.set(b"key", b"value")
    pid = stopped_writer(path, short)
    try:
        start = time.perf_counter()
        for _ in range(100):
            assert store.get(b"key") == b"value"
            with pytest.raises(BlockingIOError):
                short.set(b"mine", b"1")
        assert time.perf_counter() - start < 5
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    store.set(b"mine", b"2")  # the lock of the dead is free
    assert store.get(b"mine") == b"2"
