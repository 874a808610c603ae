"""python-socketio's managers and broadcaster's back end, with the real libraries."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import Any

import pytest
from towline import state as towline_state
from towline.testing import serve

from tests.support.process import eventually

socketio = pytest.importorskip("socketio")
WAIT = 20


def test_broadcaster(url: str) -> None:
    broadcaster = pytest.importorskip("broadcaster")
    from towline.state.adapters.broadcaster import StateBackend

    async def main() -> None:
        async with towline_state.open_async(url) as one, towline_state.open_async(url) as two:
            async with broadcaster.Broadcast(backend=StateBackend(one)) as first:
                async with broadcaster.Broadcast(backend=StateBackend(two)) as second:
                    async with first.subscribe("chat") as here, first.subscribe("chat") as also:
                        async with second.subscribe("chat") as there, second.subscribe("news") as news:
                            await first.publish("chat", "hello")
                            await second.publish("news", message={"n": 1})
                            for each in (here, also, there):
                                event = await asyncio.wait_for(each.get(), WAIT)
                                assert (event.channel, event.message) == ("chat", "hello")
                            event = await asyncio.wait_for(news.get(), WAIT)
                            assert (event.channel, event.message) == ("news", {"n": 1})
                    async with first.subscribe("chat") as again:
                        await second.publish("chat", "later")
                        assert (await asyncio.wait_for(again.get(), WAIT)).message == "later"

    asyncio.run(main())


def asynchronous(url: str) -> Any:
    """An ASGI application with a server of python-socketio."""
    from towline.state.adapters.socketio import AsyncStateManager

    manager = AsyncStateManager(url)
    server = socketio.AsyncServer(client_manager=manager, async_mode="asgi", transports=["websocket"])

    @server.on("join")
    async def join(sid: str, room: str) -> str:
        await server.enter_room(sid, room)
        return "joined"

    @server.on("say")
    async def broadcast(sid: str, data: Any) -> None:
        await server.emit("said", data, room="room")

    return socketio.ASGIApp(server)


def threaded(url: str) -> Any:
    """A WSGI application with Flask-SocketIO."""
    flask = pytest.importorskip("flask")
    flask_socketio = pytest.importorskip("flask_socketio")
    from towline.state.adapters.socketio import StateManager

    app = flask.Flask("test")
    server = flask_socketio.SocketIO(
        app, async_mode="threading", client_manager=StateManager(url), transports=["websocket"]
    )

    @server.on("join")
    def join(room: str) -> str:
        flask_socketio.join_room(room)
        return "joined"

    @server.on("say")
    def broadcast(data: Any) -> None:
        server.emit("said", data, to="room")

    return app


# As in tests/server/test_wsgi_websocket.py: both ends close a WebSocket of Flask-SocketIO.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(("application", "options"), [(asynchronous, {}), (threaded, {"threads": 8})])
def test_socketio_with_several_servers(url: str, application: Any, options: dict[str, Any]) -> None:
    """Clients of two servers are in one room; a third process without clients emits to it."""
    from towline.state.adapters.socketio import StateManager

    with contextlib.ExitStack() as stack:
        clients = []
        for _ in range(2):
            served = stack.enter_context(serve(application(url), **options))
            for room in ("room", "room", "hall"):
                client = stack.enter_context(socketio.SimpleClient())
                client.connect(served.url, transports=["websocket"], wait_timeout=WAIT)
                assert client.call("join", room, timeout=WAIT) == "joined"
                clients.append((room, client))
        emitter = StateManager(url, write_only=True)
        members = [client for room, client in clients if room == "room"]
        # The servers subscribe in the background.
        for client in members:
            eventually(lambda each=client: emits(emitter) or is_reached(each), "messages from outside", 60)
        members[0].emit("say", {"n": 1, "raw": b"\0\1"})
        for client in members:
            assert next_but_ready(client) == ["said", {"n": 1, "raw": b"\0\1"}]
        emitter.emit("news", "x", room="room")
        for client in members:
            assert next_but_ready(client) == ["news", "x"]
        for room, client in clients:
            if room == "hall":
                with pytest.raises(socketio.exceptions.TimeoutError):
                    client.receive(timeout=0.2)


def test_socketio_stops_listening_when_the_state_is_closed(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The listeners of both managers end at once, and try nothing again."""
    from towline.state.adapters.socketio import AsyncStateManager, StateManager

    state = towline_state.open(url)
    received: list[bytes] = []
    manager = StateManager(state)
    thread = threading.Thread(target=lambda: received.extend(manager._listen()))
    with caplog.at_level(logging.ERROR):
        thread.start()
        eventually(lambda: emits_raw(manager) or received, "message")
        state.close()
        thread.join(WAIT)
        assert not thread.is_alive()

        async def main() -> None:
            shared = towline_state.open_async(url)
            listener = AsyncStateManager(shared)._listen()
            first = asyncio.create_task(anext(listener))
            while not first.done():
                await listener_state(shared).publish("socketio", b"{}")
                await asyncio.sleep(0.01)
            rest = asyncio.create_task(read_all(listener))
            await shared.close()
            await asyncio.wait_for(rest, WAIT)

        asyncio.run(main())
    assert caplog.records == []


def emits_raw(manager: Any) -> None:
    manager._publish({"method": "none"})


def listener_state(shared: Any) -> Any:
    return shared.namespace("socketio", codec="bytes")


async def read_all(listener: Any) -> None:
    async for _ in listener:
        pass


def emits(emitter: Any) -> None:
    emitter.emit("ready", None, room="room")


def is_reached(client: Any) -> bool:
    try:
        return bool(client.receive(timeout=0.1))
    except socketio.exceptions.TimeoutError:
        return False


def next_but_ready(client: Any) -> Any:
    while (event := client.receive(timeout=WAIT))[0] == "ready":
        pass
    return event
