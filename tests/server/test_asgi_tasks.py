"""Every request in a real task: what asyncio, contextvars and anyio see of it, suspended or not."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
import threading
import weakref
from typing import Any

import pytest

from tests.support.asgi_server import LOOPS, Receive, Scope, Send, respond, serving

pytestmark = pytest.mark.parametrize("loop", LOOPS)
variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def test_the_task_is_real_before_and_after_suspending(loop: str) -> None:
    tasks: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        first = asyncio.current_task()
        assert isinstance(first, asyncio.Task)
        assert first in asyncio.all_tasks()
        await asyncio.sleep(0)
        assert asyncio.current_task() is first
        await asyncio.sleep(0.001)
        assert asyncio.current_task() is first
        tasks.append(first)
        await respond(send)

    with serving(app, loop) as served:
        assert served.get()[0] == 200
        assert served.get()[0] == 200
    assert tasks[0] is not tasks[1]
    assert all(task.done() and task.exception() is None for task in tasks)


def test_the_first_request_comes_before_the_spare_has_begun(loop: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, b"late")
        await respond(send, await future)

    with serving(app, loop) as served:
        for _ in range(5):
            assert served.get()[2] == b"late"


def test_requests_that_return_at_once_share_a_task_nobody_looked_at(loop: str) -> None:
    ids: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        ids.append(id(asyncio.current_task()))
        await respond(send)

    with serving(app, loop) as served:
        for _ in range(5):
            served.get()
    assert len(set(ids)) == 1


def kept(task: Any, keep: list[Any]) -> None:
    keep.append(task)


def weakly(task: Any, keep: list[Any]) -> None:
    keep.append(weakref.ref(task))


def by_callback(task: Any, keep: list[Any]) -> None:
    task.add_done_callback(lambda task: keep.append("done"))


def by_name(task: Any, keep: list[Any]) -> None:
    task.set_name("mine")


@pytest.mark.parametrize("observe", [kept, weakly, by_callback, by_name])
def test_an_observed_task_ends_with_its_request(loop: str, observe: Any) -> None:
    keep: list[Any] = []
    names: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        names.append(task.get_name())
        if scope["path"] == "/observe":
            observe(task, keep)
        await respond(send)

    with serving(app, loop) as served:
        served.get("/")
        served.get("/observe")
        served.get("/")
        served.get("/")
        done = served.call(lambda: [task.done() for task in keep if isinstance(task, asyncio.Task)])
    assert all(done)
    assert names[0] == names[1]
    assert names[2] == names[3] != names[1]
    assert "mine" not in names
    if observe is by_callback:
        assert keep == ["done"]


def test_cancelling_oneself_without_suspending(loop: str) -> None:
    tasks: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/cancel":
            task = asyncio.current_task()
            assert task is not None
            tasks.append(task)
            task.cancel()
        await respond(send)

    with serving(app, loop) as served:
        assert served.get("/cancel")[0] == 200
        assert served.get("/")[0] == 200
        served.call(lambda: None)
    assert tasks[0].cancelled()


def test_cancelling_oneself_and_then_suspending(loop: str) -> None:
    caught: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/cancel":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            try:
                await asyncio.sleep(5)
            except asyncio.CancelledError:
                caught.append("cancelled")
        await respond(send)

    with serving(app, loop) as served:
        assert served.get("/cancel")[0] == 200
        assert served.get("/")[0] == 200
    assert caught == ["cancelled"]


@pytest.mark.parametrize("warm", [False, True])
def test_cancelled_between_suspending_and_waking(loop: str, warm: bool) -> None:
    """The task has adopted the coroutine but not taken a step of it yet."""
    caught: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/":
            await respond(send)
            return
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            caught.append("cancelled")
        await asyncio.sleep(0.001)
        await respond(send)

    with serving(app, loop) as served:
        if warm:
            served.get("/")
            served.get("/")
        assert served.get("/cancel")[0] == 200
    assert caught == ["cancelled"]


def test_timeouts(loop: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.sleep(5), 0.005)
        if sys.version_info >= (3, 11):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await asyncio.sleep(5)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.005):
                    await asyncio.sleep(5)
        await respond(send)

    with serving(app, loop) as served:
        for _ in range(3):
            assert served.get()[0] == 200, served.log


@pytest.mark.skipif(sys.version_info < (3, 11), reason="TaskGroup")
def test_task_groups(loop: str) -> None:
    async def fail() -> None:
        raise ValueError("inside")

    async def failing_group() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            await asyncio.sleep(5)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        with pytest.raises(BaseException) as caught:
            await failing_group()
        assert [type(inner) for inner in caught.value.exceptions] == [ValueError]  # type: ignore[attr-defined]
        async with asyncio.TaskGroup() as group:
            child = group.create_task(asyncio.sleep(0, b"child"))
        await respond(send, child.result())

    with serving(app, loop) as served:
        for _ in range(3):
            assert served.get()[2] == b"child", served.log


def test_anyio(loop: str) -> None:
    anyio = pytest.importorskip("anyio")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        with anyio.move_on_after(0.005) as cancelled:
            await anyio.sleep(5)
        assert cancelled.cancelled_caught
        with anyio.CancelScope() as cancelled:
            cancelled.cancel()
            await anyio.sleep(5)
        assert cancelled.cancelled_caught
        result: list[bytes] = []
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: anyio.to_thread.run_sync(lambda: result.append(b"thread")))
        await respond(send, result[0])

    with serving(app, loop) as served:
        for _ in range(3):
            assert served.get()[2] == b"thread", served.log


def test_each_request_has_a_fresh_context(loop: str) -> None:
    variable.set("outside")
    bodies = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        before = variable.get()
        variable.set("inside")
        if scope["path"] == "/suspend":
            await asyncio.sleep(0.001)
            assert variable.get() == "inside"
            child = asyncio.ensure_future(inherits())
            assert await child == "inside"
        await respond(send, before.encode())

    async def inherits() -> str:
        return variable.get()

    with serving(app, loop) as served:
        wire = b"".join(
            b"GET %s HTTP/1.1\r\nHost: a\r\n%s\r\n" % (path, close)
            for path, close in ((b"/", b""), (b"/suspend", b""), (b"/", b"Connection: close\r\n"))
        )
        reply = served.raw(wire)
        bodies = [part[:5] for part in reply.split(b"\r\n\r\n")[1:]]
    assert bodies == [b"unset"] * 3, reply


def test_a_context_token_can_be_reset_after_suspending(loop: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        token = variable.set("x")
        await asyncio.sleep(0.001)
        variable.reset(token)
        await respond(send, variable.get().encode())

    with serving(app, loop) as served:
        assert served.get()[2] == b"unset"


def test_work_goes_on_after_the_response(loop: str) -> None:
    done = threading.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send)
        await asyncio.sleep(0.01)
        done.set()

    with serving(app, loop) as served:
        assert served.get()[0] == 200
        assert done.wait(5)


def test_a_task_factory_of_the_program_is_used(loop: str) -> None:
    made: list[Any] = []

    def prepare(running: Any) -> None:
        def factory(running: Any, coroutine: Any, **more: Any) -> Any:
            task = asyncio.Task(coroutine, loop=running, **more)
            made.append(task)
            return task

        running.set_task_factory(factory)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert asyncio.current_task() in made
        await asyncio.sleep(0)
        await respond(send)

    with serving(app, loop, prepare=prepare) as served:
        assert served.get()[0] == 200, served.log


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks")
def test_an_eager_task_factory_is_used(loop: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert asyncio.current_task() is not None
        if scope["path"] == "/suspend":
            await asyncio.sleep(0.001)
        await respond(send)

    def prepare(running: Any) -> None:
        running.set_task_factory(asyncio.eager_task_factory)

    # Some uvloops call this factory with an argument that it does not take; then ours is used.
    with serving(app, loop, prepare=prepare) as served:
        assert served.get()[0] == 200, served.log
        assert served.get("/suspend")[0] == 200, served.log


def test_a_task_factory_that_fails_costs_no_request(loop: str) -> None:
    def factory(running: Any, coroutine: Any, **more: Any) -> Any:
        if type(coroutine).__name__ == "RequestCoroutine":
            raise ValueError("factory")
        return asyncio.Task(coroutine, loop=running, **more)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(0)
        await respond(send)

    with serving(app, loop, prepare=lambda running: running.set_task_factory(factory)) as served:
        assert served.get()[0] == 200
        assert str(served.log[0][2]) == "factory"


def test_nothing_is_left_behind(loop: str) -> None:
    alive: list[Any] = []

    class Thing:
        pass

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        thing = Thing()
        alive.append(weakref.ref(thing))
        await asyncio.sleep(0.001)
        await respond(send)

    with serving(app, loop) as served:
        for _ in range(5):
            served.get()
        served.call(gc.collect)
        assert [thing() for thing in alive] == [None] * 5


def test_awaitables_that_are_no_coroutines(loop: str) -> None:
    class Application:
        def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
            self.send = send

        def __await__(self) -> Any:
            yield from asyncio.sleep(0.001).__await__()
            yield from respond(self.send).__await__()

    with serving(Application, loop) as served:
        assert served.get()[0] == 200, served.log
