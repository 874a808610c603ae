"""ASGI server in a thread with its own event loop. See `running_server` for the requests to it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from towline import _native
from towline.config import ServerConfig

from tests.support.running_server import RunningServer, listening

Log = list[tuple[int, str, BaseException | None]]
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

LOOPS = ["asyncio"]
try:
    import uvloop

    LOOPS.append("uvloop")
except ImportError:
    pass


def new_loop(name: str) -> asyncio.AbstractEventLoop:
    return uvloop.new_event_loop() if name == "uvloop" else asyncio.new_event_loop()


async def respond(send: Send, body: bytes = b"ok", status: int = 200, headers: Any = ()) -> None:
    """Sends a complete response."""
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})


async def read_body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        assert message["type"] == "http.request", message
        body += message["body"]
        if not message["more_body"]:
            return body


class AsgiRunningServer(RunningServer):
    """A server and the event loop that runs it."""

    def __init__(self, server: Any, loop: asyncio.AbstractEventLoop, port: int, log: Log) -> None:
        super().__init__(server, port, log)
        self.loop = loop

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function in the loop's thread and returns its result."""

        async def run() -> Any:
            return function(*arguments)

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(10)


@contextlib.contextmanager
def serving(
    app: Any,
    loop: str = "asyncio",
    *,
    state: Any = None,
    prepare: Callable[[Any], None] = lambda loop: None,
    **options: Any,
) -> Iterator[AsgiRunningServer]:
    """Serves `app` on a free port. Fails if something is in flight at the end, or the loop reports an error."""
    running = new_loop(loop)
    noise: list[Any] = []
    running.set_exception_handler(lambda _, context: noise.append(context))
    ready, stop = threading.Event(), asyncio.Event()
    log: Log = []
    started: list[AsgiRunningServer] = []

    def note(level: int, text: str, error: BaseException | None) -> None:
        if level > logging.DEBUG:
            log.append((level, text, error))

    async def main() -> None:
        prepare(running)
        with listening() as (port, bind):
            server = _native.AsgiServer(
                app,
                running,
                ServerConfig(app=app, **options),
                [bind],
                state=state,
                log=note,
            )
        started.append(AsgiRunningServer(server, running, port, log))
        running.add_reader(server.fileno(), server.turn)
        ready.set()
        try:
            await stop.wait()
            server.stop_listening()
            server.cancel_all()
            for _ in range(500):
                if not server.in_flight:
                    break
                await asyncio.sleep(0.01)
            assert server.in_flight == 0
        finally:
            running.remove_reader(server.fileno())
            server.close()

    failure: list[BaseException] = []

    def run() -> None:
        asyncio.set_event_loop(running)
        try:
            running.run_until_complete(main())
            tasks = asyncio.all_tasks(running)
            for task in tasks:
                task.cancel()
            if tasks:
                running.run_until_complete(asyncio.wait(tasks))
            # uvloop calls the eager factory with an argument that it does not take on 3.13.
            running.set_task_factory(None)
            running.run_until_complete(running.shutdown_asyncgens())
        except BaseException as error:
            failure.append(error)
        finally:
            running.close()
            ready.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait(10)
    if failure:
        raise failure[0]
    try:
        yield started[0]
    finally:
        running.call_soon_threadsafe(stop.set)
        thread.join(15)
    assert not thread.is_alive(), "the loop did not end"
    if failure:
        raise failure[0]
    assert noise == [], noise
