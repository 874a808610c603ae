"""The server inside another program: `Server`, `serve()` and the test helper."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from typing import Any

import pytest
import towline
from towline import testing

from tests.support.process import connect, eventually, request

from . import apps


@pytest.mark.parametrize("app", [apps.asgi, apps.wsgi])
def test_the_helper_serves_and_stops(app: Any) -> None:
    before = threading.active_count()
    with testing.serve(app) as server:
        assert server.url == f"http://127.0.0.1:{server.port}"
        assert request(server.port, "/sleep/0").body == b"slept"
    with pytest.raises(ConnectionRefusedError):
        request(server.port, "/pid")
    eventually(lambda: threading.active_count() == before, "the threads' end")


@pytest.mark.parametrize("app", [apps.asgi, apps.wsgi])
def test_two_helpers_at_once(app: Any) -> None:
    with testing.serve(app) as one, testing.serve(app, threads=2) as two:
        assert one.port != two.port
        assert request(one.port, "/pid").body == request(two.port, "/pid").body


def test_servers_in_several_threads_share_a_socket() -> None:
    """The embedding program has an event loop in each of its threads, as `--worker-mode threads`."""
    names: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            names.append(threading.current_thread().name)
        await apps.asgi(scope, receive, send)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        # Each server closes its descriptor.
        copies = [os.dup(listener.fileno()) for _ in range(2)]
        servers = [towline.Server(towline.ServerConfig(app, bind=[f"fd://{copy}"])) for copy in copies]
        threads = [
            threading.Thread(target=asyncio.run, args=(server.serve(),), name=str(number))
            for number, server in enumerate(servers)
        ]
        for thread in threads:
            thread.start()
        for server in servers:
            assert server.started.wait(20)
        port = listener.getsockname()[1]

        def both_have_served() -> bool:
            with connect(port) as conn:
                assert conn.get("/pid").status == 200
            return set(names) == {"0", "1"}

        eventually(both_have_served, "both threads")
        for server in servers:
            server.stop(close_idle=True)
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()


def test_the_helper_raises_the_error_of_a_failed_start() -> None:
    async def refusing(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no database"})

    with pytest.raises(towline.StartupError, match="no database"), testing.serve(refusing):
        pass
    with pytest.raises(towline.ImportFromStringError, match="no module"), testing.serve("nowhere:app"):
        pass
    with pytest.raises(towline.ConfigError, match="workers"), testing.serve(apps.asgi, workers=-1):
        pass


def test_the_helper_cuts_an_endless_stream_at_the_end() -> None:
    with testing.serve(apps.asgi, timeout_graceful_shutdown=0.2) as server:
        context = connect(server.port)
        conn = context.__enter__()
        conn.send("/endless")
        conn.head()
    context.__exit__(None, None, None)


def test_state_of_the_lifespan_reaches_requests() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            scope["state"]["name"] = b"towline"
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["state"]["name"]})

    with testing.serve(app) as server:
        assert request(server.port, "/").body == b"towline"


@pytest.mark.parametrize(("ending", "seconds"), [("cancel", 2.0), ("close_idle", 2.0), ("stop", 10.0)])
def test_serve_inside_a_running_loop(ending: str, seconds: float) -> None:
    """Only `stop()` leaves the idle connection its time for one more request."""

    async def main() -> None:
        server = towline.Server(towline.ServerConfig(apps.asgi, port=0))
        task = asyncio.create_task(server.serve())
        while not server.started.is_set():
            await asyncio.sleep(0.005)
        port = int(server.addresses[0].rpartition(":")[2])
        with connect(port) as conn, connect(port) as idle:
            assert (await asyncio.to_thread(idle.get, "/pid")).status == 200
            assert (await asyncio.to_thread(conn.get, "/pid")).status == 200
            conn.send("/sleep/0.3")
            started = time.monotonic()
            if ending == "cancel":
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                server.stop(close_idle=ending == "close_idle")
                await task
            assert conn.response().body == b"slept"
            assert time.monotonic() - started < seconds

    asyncio.run(main())


def test_serve_refuses_other_threads_and_wsgi_in_a_loop() -> None:
    with pytest.raises(towline.ConfigError, match=r"Server\.run\(\) serves WSGI"):
        asyncio.run(towline.Server(towline.ServerConfig(apps.wsgi, port=0)).serve())
    caught: list[BaseException] = []

    def run() -> None:
        try:
            towline.serve(apps.asgi)
        except towline.ConfigError as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("app", [apps.asgi, apps.wsgi])
def test_run_and_stop_in_other_threads(app: Any, loop: str) -> None:
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]
    server = towline.Server(towline.ServerConfig(app, port=0, loop=loop))
    thread = threading.Thread(target=server.run)
    thread.start()
    assert server.started.wait(20)
    port = int(server.addresses[0].rpartition(":")[2])
    assert request(port, "/sleep/0").body == b"slept"
    server.stop(close_idle=True)
    thread.join(20)
    assert not thread.is_alive()
    server.stop()
    assert [
        signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    ] == handlers


@pytest.mark.parametrize("app", [apps.asgi, apps.wsgi])
def test_a_stop_before_the_start_is_not_lost(app: Any) -> None:
    server = towline.Server(towline.ServerConfig(app, port=0))
    server.stop()
    thread = threading.Thread(target=server.run)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.parametrize("app", [apps.asgi, apps.wsgi])
def test_the_handlers_of_the_program_are_back_after_run(app: Any) -> None:
    def own(number: int, frame: object) -> None:
        pass

    before = {
        number: signal.signal(number, own) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    }
    try:
        server = towline.Server(towline.ServerConfig(app, port=0))
        threading.Thread(target=lambda: server.started.wait(20) and server.stop()).start()
        server.run()
        assert [signal.getsignal(number) for number in before] == [own] * 3
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_exported_names() -> None:
    assert sorted(name for name in towline.__all__ if hasattr(towline, name)) == sorted(towline.__all__)
    with pytest.raises(AttributeError):
        towline.nothing
