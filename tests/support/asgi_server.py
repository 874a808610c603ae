"""An ASGI server in a thread with its own event loop, and a client that says exactly what is written."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from towline import _native
from towline.config import Bind, ServerConfig

from tests.support.sockets import read_all

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


async def answer(send: Send, body: bytes = b"ok", status: int = 200, headers: Any = ()) -> None:
    """A whole response."""
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


class RunningServer:
    def __init__(self, server: Any, loop: asyncio.AbstractEventLoop, port: int) -> None:
        self.server, self.loop, self.port = server, loop, port
        self.log: list[tuple[int, str, BaseException | None]] = []

    def connect(self, timeout: float = 10.0) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def raw(self, wire: bytes) -> bytes:
        """Send `wire`, give back everything until the server closes."""
        with self.connect() as conn:
            conn.sendall(wire)
            return read_all(conn)

    def get(self, path: str = "/", method: str = "GET", **more: Any) -> tuple[int, dict[str, str], bytes]:
        conn = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        conn.request(method, path, **more)
        response = conn.getresponse()
        body = response.read()
        conn.close()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, body

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function in the loop's thread and give back what it returned."""

        async def run() -> Any:
            return function(*arguments)

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(10)

    def errors(self) -> list[str]:
        return [text for _, text, _ in self.log]


@contextlib.contextmanager
def serving(
    app: Any,
    loop: str = "asyncio",
    *,
    state: Any = None,
    prepare: Callable[[Any], None] = lambda loop: None,
    **options: Any,
) -> Iterator[RunningServer]:
    """Serve `app` on a free port. At the end nothing may be in flight and the loop must close quietly."""
    running = new_loop(loop)
    noise: list[Any] = []
    running.set_exception_handler(lambda _, context: noise.append(context))
    ready, stop = threading.Event(), asyncio.Event()
    held: list[RunningServer] = []
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)

    async def main() -> None:
        prepare(running)
        port = listener.getsockname()[1]
        server = _native.AsgiServer(
            app,
            running,
            ServerConfig(app=app, **options),
            [Bind(fd=listener.fileno(), address=f"127.0.0.1:{port}")],
            state=state,
            log=lambda level, text, error: held[0].log.append((level, text, error)),
        )
        listener.close()
        held.append(RunningServer(server, running, port))
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
            left = asyncio.all_tasks(running)
            for task in left:
                task.cancel()
            if left:
                running.run_until_complete(asyncio.wait(left))
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
        yield held[0]
    finally:
        running.call_soon_threadsafe(stop.set)
        thread.join(15)
    assert not thread.is_alive(), "the loop did not end"
    if failure:
        raise failure[0]
    assert noise == [], noise
