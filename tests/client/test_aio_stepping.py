"""The client's turn steps waiting tasks itself. Programs cannot observe it, with tasks of any kind."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import itertools
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from towline import AsyncClient

from tests.support.asyncio_client import Upstream, run
from tests.support.asyncio_client import upstream as upstream

LOOPS = ["asyncio", "uvloop"]


class OwnTask(asyncio.tasks._PyTask):  # type: ignore[name-defined, misc]
    """A task that Python steps, as with a task factory of the program's own."""


def factory(loop: Any, coroutine: Any, **options: Any) -> Any:
    return OwnTask(coroutine, loop=loop, **options)


def current_task() -> Any:
    """The running task, also where it is a `_PyTask`: from CPython 3.14 on `asyncio.current_task` is None inside one."""
    return asyncio.current_task() or asyncio.tasks._py_current_task()  # type: ignore[attr-defined]


def eager() -> Any:
    return getattr(asyncio, "eager_task_factory", None)


KINDS: dict[str, Callable[[Any], None]] = {
    "plain": lambda loop: None,
    "debug": lambda loop: loop.set_debug(True),
    "own": lambda loop: loop.set_task_factory(factory),
    "eager": lambda loop: loop.set_task_factory(eager()),
}
if eager() is None:
    del KINDS["eager"]
CASES = [
    (backend, kind)
    for backend in LOOPS
    for kind in KINDS
    # uvloop passes `eager_start` on from CPython 3.13 on, whose first patches have a factory without it.
    if not (
        (backend, kind) == ("uvloop", "eager")
        and sys.version_info >= (3, 13)
        and "eager_start" not in inspect.signature(eager()).parameters
    )
]


@pytest.mark.parametrize(("backend", "kind"), CASES)
def test_tasks_of_every_kind(backend: str, kind: str, upstream: Upstream) -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("mine")
    stepped: list[Any] = []

    async def one(client: AsyncClient, index: int) -> None:
        variable.set(index)
        for _ in range(10):
            assert (await client.get(upstream.url())).text == "hello"
            assert variable.get() == index
            assert current_task() is tasks[index]
        stepped.append(type(tasks[index]))

    tasks: dict[int, Any] = {}

    async def main() -> None:
        loop = asyncio.get_running_loop()
        KINDS[kind](loop)
        reports: list[Any] = []
        loop.set_exception_handler(lambda loop, context: reports.append(context))
        async with AsyncClient() as client:
            await client.get(upstream.url())
            names: list[Coroutine[Any, Any, None]] = [one(client, index) for index in range(30)]

            async def named(index: int, work: Coroutine[Any, Any, None]) -> None:
                tasks[index] = current_task()
                await work

            await asyncio.gather(*(loop.create_task(named(i, work)) for i, work in enumerate(names)))
            async with asyncio.timeout(5) if sys.version_info >= (3, 11) else contextlib.nullcontext():
                assert (await asyncio.wait_for(client.get(upstream.url()), 5)).text == "hello"
        assert reports == []

    run(backend, main)
    assert len(stepped) == 30
    assert (OwnTask in stepped) == (kind == "own")


@pytest.mark.parametrize(("backend", "kind"), CASES)
def test_tasks_that_cancel_themselves_and_others(backend: str, kind: str, upstream: Upstream) -> None:
    async def main() -> None:
        KINDS[kind](asyncio.get_running_loop())
        ends: list[str] = []
        async with AsyncClient() as client:

            async def one(index: int) -> None:
                try:
                    await client.get(upstream.url("/delay?ms=2000" if index >= 30 else "/delay?ms=20"))
                    if index % 3 == 0:
                        current_task().cancel()
                    if index == 1:
                        for other in tasks[30:]:
                            other.cancel()
                    await client.get(upstream.url())
                except asyncio.CancelledError:
                    ends.append("cancelled")
                    raise
                ends.append("whole")

            tasks = [asyncio.create_task(one(index)) for index in range(40)]
            results = await asyncio.gather(*tasks, return_exceptions=True)
            cancelled = [isinstance(result, asyncio.CancelledError) for result in results]
            assert all(cancelled[30:])
            assert cancelled[:30] == [index % 3 == 0 for index in range(30)]
            assert len(ends) == 40
            assert client.pool_status()["active"] == 0
            assert (await client.get(upstream.url())).text == "hello"

    run(backend, main)


@pytest.mark.parametrize("backend", LOOPS)
def test_traced_and_profiled_programs(backend: str, upstream: Upstream) -> None:
    seen = set()

    def note(frame: Any, event: str, argument: Any) -> Any:
        seen.add((frame.f_code.co_name, event))
        return note

    async def traced(client: AsyncClient) -> None:
        for _ in range(5):
            assert (await client.get(upstream.url())).text == "hello"

    async def main() -> None:
        async with AsyncClient() as client:
            await asyncio.gather(*(traced(client) for _ in range(10)))

    before = sys.gettrace(), sys.getprofile()
    sys.settrace(note)
    sys.setprofile(note)
    try:
        run(backend, main)
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
    assert {("traced", "call"), ("traced", "line"), ("traced", "return")} <= seen


@pytest.mark.parametrize("backend", LOOPS)
def test_an_exception_of_a_callback_is_passed_to_the_loops_handler(backend: str, upstream: Upstream) -> None:
    reports: list[Any] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: reports.append(context["exception"]))
        async with AsyncClient() as client:

            async def awaiting() -> str:
                return (await client.get(upstream.url("/delay?ms=20"))).text

            tasks = [asyncio.create_task(awaiting()) for _ in range(10)]
            tasks[3].add_done_callback(lambda task: 1 / 0)

            # A callback of the waiter itself, as a task class of the program's own may leave one.
            call = client.get(upstream.url("/delay?ms=20"))
            waiter = call.__await__().send(None)
            waiter.add_done_callback(lambda waiter: {}["mine"])
            assert await asyncio.gather(*tasks) == ["late"] * 10
            await asyncio.sleep(0.05)

    run(backend, main)
    assert {type(error) for error in reports} == {ZeroDivisionError, KeyError}


def test_a_loop_that_is_run_inside_itself(upstream: Upstream) -> None:
    """As nest_asyncio does it: a task that runs the loop further until something else is done."""

    def nested(loop: Any, work: Any) -> Any:
        task = asyncio.ensure_future(work)
        current = asyncio.current_task()
        assert current is not None
        asyncio.tasks._leave_task(loop, current)
        try:
            while not task.done():
                loop._run_once()
        finally:
            asyncio.tasks._enter_task(loop, current)
        return task.result()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop._nest_patched = True  # type: ignore[attr-defined]
        async with AsyncClient() as client:

            async def get() -> str:
                return (await client.get(upstream.url("/delay?ms=5"))).text

            async def four() -> list[str]:
                return await asyncio.gather(*(get() for _ in range(4)))

            for _ in range(3):
                assert await get() == "late"
                assert nested(loop, four()) == ["late"] * 4
                assert nested(loop, get()) == "late"

    run("asyncio", main)


def log_polls(loop: Any, log: list[str]) -> None:
    """Adds "poll" to `log` whenever the client has the loop poll instead of sleeping."""
    original = loop.call_soon

    def call_soon(function: Any, *arguments: Any, **options: Any) -> Any:
        if getattr(function, "__name__", "") == "spin":
            log.append("poll")
        return original(function, *arguments, **options)

    loop.call_soon = call_soon


@pytest.mark.parametrize("backend", LOOPS)
def test_the_loop_sleeps_while_a_server_is_slow(backend: str, upstream: Upstream) -> None:
    """A call polls for a moment, and ever fewer calls do."""

    async def main() -> list[int]:
        log: list[str] = []
        polls = []
        async with AsyncClient() as client:
            await client.get(upstream.url())
            log_polls(asyncio.get_running_loop(), log)
            for _ in range(60):
                log.clear()
                await client.get(upstream.url("/delay?ms=5"))
                polls.append(len(log))
        return polls

    polls = run(backend, main)
    attempts = [index for index, count in enumerate(polls) if count]
    assert 3 <= len(attempts) <= 8, polls
    assert attempts[-1] - attempts[-2] > attempts[1] - attempts[0]
    assert max(polls) < 500, "the loop polls for 40 microseconds"


@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.parametrize("backend", LOOPS)
def test_callbacks_run_between_two_polls(backend: str, tasks: int, upstream: Upstream) -> None:
    async def calls(client: AsyncClient) -> None:
        for _ in range(50):
            assert (await client.get(upstream.url())).text == "hello"

    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        log: list[str] = []

        def tick() -> None:
            log.append("tick")
            if ticks:
                loop.call_soon(tick)

        ticks = True
        async with AsyncClient() as client:
            await client.get(upstream.url())
            log_polls(loop, log)
            loop.call_soon(tick)
            await asyncio.gather(*[calls(client) for _ in range(tasks)])
            ticks = False
        return log

    log = run(backend, main)
    assert "poll" in log
    assert ("poll", "poll") not in itertools.pairwise(log)


@pytest.mark.parametrize("backend", LOOPS)
def test_a_call_that_is_cancelled_while_the_loop_polls(backend: str, upstream: Upstream) -> None:
    async def main() -> None:
        async with AsyncClient() as client:
            for _ in range(20):
                await client.get(upstream.url())
                call = asyncio.create_task(client.get(upstream.url("/delay?ms=2000")))
                await asyncio.sleep(0)
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
                assert client.pool_status()["active"] == 0

    run(backend, main)
