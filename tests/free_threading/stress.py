"""Random schedules of the whole package: `python tests/free_threading/stress.py [--seconds 60] [--seed N]`.

Each round is a process with a seed. In it threads serve ASGI and WSGI on shared sockets, and other threads call these servers by
clients that they share, over HTTP/1 and HTTP/2, by asyncio clients, by WebSockets, and use `towline.state`. At random, tasks are
cancelled, calls time out, threads end without closing what they had, servers stop and start, and the garbage collector runs. Every
response has to be the one of its request, every counter has to be right at the end, and no process may crash or hang.

On a free-threaded interpreter with `PYTHON_GIL=0` the threads run at the same time; with the GIL the switch interval is short.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import gc
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import towline
import towline.state

ROUND_S = 10.0
HANG_S = 300.0
EXPECTED = (towline.Error, asyncio.CancelledError, ConnectionError)
"""Errors of a call while servers stop and timeouts are a millisecond."""
TEXTS = [f"text {number} " * (1 + number * number % 97) for number in range(64)]


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"]})
        return
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message["body"]
        if not message.get("more_body"):
            break
    kind = scope["path"]
    if kind == "/wait":
        await asyncio.sleep(0.001)
    if kind == "/fail":
        raise ValueError("as the client wants")
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-kind", kind.encode())]})
    if kind == "/stream":
        for start in range(0, len(body), 100):
            await send({"type": "http.response.body", "body": body[start : start + 100], "more_body": True})
            await asyncio.sleep(0)
        body = b""
    await send({"type": "http.response.body", "body": body})


def wsgi(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    body = environ["wsgi.input"].read()
    if environ["PATH_INFO"] == "/wait":
        time.sleep(0.001)
    if environ["PATH_INFO"] == "/fail":
        raise ValueError("as the client wants")
    start_response("200 OK", [("x-kind", environ["PATH_INFO"])])
    return [body[:50], body[50:]]


class Round:
    """Everything that the threads of one process share."""

    def __init__(self, seed: int, seconds: float) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.until = time.monotonic() + seconds
        self.failures: list[str] = []
        self.done = 0
        self.sockets: dict[str, socket.socket] = {}
        self.servers: list[towline.Server] = []
        self.server_threads: list[threading.Thread] = []
        self.folder = tempfile.mkdtemp(prefix="towline-stress-")
        self.increments: list[int] = []

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self.until and not self.failures

    def thread(self, run: Callable[[random.Random], object], number: int) -> threading.Thread:
        def guarded() -> None:
            try:
                run(random.Random(self.seed * 1000 + number))
            except BaseException as error:
                import traceback

                self.failures.append(f"{run.__name__}: {error!r}\n{traceback.format_exc()}")

        thread = threading.Thread(target=guarded, name=f"{run.__name__}-{number}")
        thread.start()
        return thread

    # Servers.

    def listen(self) -> None:
        for name in ("asgi", "wsgi"):
            self.sockets[name] = listener = socket.socket()
            listener.bind(("127.0.0.1", 0))
            listener.listen(256)

    def serve(self, name: str) -> towline.Server:
        """Another server on the socket of this name, in a thread of its own."""
        descriptor = os.dup(self.sockets[name].fileno())
        config = towline.ServerConfig(
            asgi if name == "asgi" else wsgi,
            bind=[f"fd://{descriptor}"],
            threads=3 if name == "wsgi" else 1,
            interface=name,
            loop=self.chance.choice(["asyncio", "auto"]),
            log_level="critical",
            timeout_graceful_shutdown=2,
        )
        server = towline.Server(config)
        thread = threading.Thread(target=server.run, name=f"serve-{name}")
        thread.start()
        self.servers.append(server)
        self.server_threads.append(thread)
        deadline = time.monotonic() + HANG_S / 2
        while not server.started.wait(0.05):
            assert thread.is_alive(), "a server has failed"
            assert time.monotonic() < deadline, "a server does not start"
        return server

    def replace_servers(self, chance: random.Random) -> None:
        while self.goes_on:
            time.sleep(chance.random())
            name = chance.choice(["asgi", "wsgi"])
            old = chance.choice(self.servers)
            self.serve(name)
            # One server of each kind stays.
            if len(self.servers) > 4 and old not in self.servers[:2]:
                old.stop(now=chance.random() < 0.3)

    def url(self, chance: random.Random) -> tuple[str, str]:
        name = chance.choice(["asgi", "asgi", "wsgi"])
        path = chance.choice(["/", "/", "/wait", "/stream", "/fail"])
        return f"http://127.0.0.1:{self.sockets[name].getsockname()[1]}{path}", path

    # Clients.

    def check(self, response: Any, text: str, path: str) -> None:
        if path == "/fail":
            assert response.status_code == 500, response.status_code
            return
        assert response.status_code in (200, 503), response.status_code
        if response.status_code == 200:
            assert response.headers["x-kind"] == path, (response.headers, path)
            assert response.text == text, (path, len(response.text), len(text))
        self.done += 1

    def call(self, chance: random.Random, client: towline.Client) -> None:
        for _ in range(chance.randrange(1, 30)):
            url, path = self.url(chance)
            text = chance.choice(TEXTS)
            timeout = 0.001 if chance.random() < 0.1 else 20.0
            with contextlib.suppress(*EXPECTED):
                if chance.random() < 0.2:
                    with client.stream("POST", url, content=text.encode(), timeout=timeout) as response:
                        if chance.random() < 0.5:
                            response.read()
                            self.check(response, text, path)
                    continue
                self.check(client.post(url, content=text.encode(), timeout=timeout), text, path)

    def share_clients(self, chance: random.Random) -> None:
        """Threads that begin and end, with clients that they share and some of which nobody closes."""
        while self.goes_on:
            options = chance.choice([{}, {}, {"http1": False, "http2": True}])
            client = towline.Client(**options)
            threads = [
                threading.Thread(target=self.guarded_call, args=(random.Random(chance.random()), client))
                for _ in range(chance.randrange(1, 6))
            ]
            for thread in threads:
                thread.start()
            if chance.random() < 0.2:
                client.close()
            for thread in threads:
                thread.join()
            if chance.random() < 0.5:
                client.close()

    def guarded_call(self, chance: random.Random, client: towline.Client) -> None:
        try:
            self.call(chance, client)
        except BaseException as error:
            import traceback

            self.failures.append(f"call: {error!r}\n{traceback.format_exc()}")

    def share_a_response(self, chance: random.Random) -> None:
        """Threads that look at one response for the first time at the same time."""
        with towline.Client() as client:
            while self.goes_on:
                url, path = self.url(chance)
                text = chance.choice(TEXTS)
                with contextlib.suppress(*EXPECTED):
                    response = client.post(url, content=text.encode())
                    barrier = threading.Barrier(3)

                    def look(response: Any = response, text: str = text, path: str = path) -> None:
                        barrier.wait(HANG_S)  # noqa: B023
                        try:
                            self.check(response, text, path)
                        except BaseException as error:
                            self.failures.append(f"look: {error!r}")

                    threads = [threading.Thread(target=look) for _ in range(3)]
                    for thread in threads:
                        thread.start()
                    for thread in threads:
                        thread.join()

    def loops(self, chance: random.Random) -> None:
        """Event loops that come and go; tasks are cancelled at random."""
        shared = towline.AsyncClient()
        while self.goes_on:
            asyncio.run(self.tasks(chance, shared if chance.random() < 0.3 else towline.AsyncClient()))

    async def tasks(self, chance: random.Random, client: towline.AsyncClient) -> None:
        async def one(chance: random.Random) -> None:
            url, path = self.url(chance)
            text = chance.choice(TEXTS)
            with contextlib.suppress(*EXPECTED):
                self.check(await client.post(url, content=text.encode()), text, path)

        async def echo(chance: random.Random) -> None:
            url = f"ws://127.0.0.1:{self.sockets['asgi'].getsockname()[1]}/"
            with contextlib.suppress(*EXPECTED):
                async with client.websocket(url) as ws:
                    for _ in range(chance.randrange(10)):
                        text = chance.choice(TEXTS)
                        await ws.send(text)
                        found = await ws.recv()
                        assert found == text, (found, text)

        tasks = [
            asyncio.create_task(chance.choice([one, one, one, echo])(random.Random(chance.random())))
            for _ in range(chance.randrange(1, 40))
        ]
        for task in tasks:
            if chance.random() < 0.1:
                await asyncio.sleep(chance.random() / 100)
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=False)
        if chance.random() < 0.5:
            await client.aclose()

    def sockets_of_threads(self, chance: random.Random) -> None:
        with towline.Client() as client:
            while self.goes_on:
                url = f"ws://127.0.0.1:{self.sockets['asgi'].getsockname()[1]}/"
                with contextlib.suppress(*EXPECTED), client.websocket(url) as ws:
                    sent = [chance.choice(TEXTS) for _ in range(20)]
                    sender = threading.Thread(target=send_all, args=(ws, sent))
                    sender.start()
                    try:
                        for text in sent:
                            assert ws.recv(timeout=20) == text
                    finally:
                        sender.join()

    # State.

    def count(self, chance: random.Random) -> None:
        state = towline.state.open(self.folder)
        mine = 0
        while self.goes_on:
            state.increment("count")
            mine += 1
            key = f"key {chance.randrange(20)}"
            state.set(key, key)
            assert state.get(key) in (key, None)
            if chance.random() < 0.1:
                with state.lock("lock", lease=60, timeout=60):
                    value = state.get("locked", 0)
                    state.set("locked", value + 1)
                    state.increment("locks")
            if chance.random() < 0.02:
                state.delete(key)
        self.increments.append(mine)

    def subscribe(self, chance: random.Random) -> None:
        state = towline.state.open(self.folder)
        while self.goes_on:
            channel = f"channel {threading.get_ident()} {chance.random()}"
            with state.subscribe(channel, queue=1000) as messages:
                publisher = threading.Thread(target=publish_all, args=(state, channel, 50))
                publisher.start()
                for number in range(50):
                    message = messages.receive(timeout=20)
                    assert message is not None, (number, messages.dropped)
                    assert message.data == number, (message, number)
                publisher.join()

    def collect(self, chance: random.Random) -> None:
        while self.goes_on:
            time.sleep(chance.random() / 10)
            gc.collect()

    def run(self) -> None:
        if getattr(sys, "_is_gil_enabled", lambda: True)():
            sys.setswitchinterval(1e-5)
        started = time.monotonic()
        self.listen()
        for name in ("asgi", "wsgi", "asgi"):
            self.serve(name)
        runs = [
            self.replace_servers,
            self.share_clients,
            self.share_clients,
            self.share_a_response,
            self.loops,
            self.loops,
            self.sockets_of_threads,
            self.count,
            self.count,
            self.subscribe,
            self.collect,
        ]
        self.chance.shuffle(runs)
        self.until += time.monotonic() - started
        threads = [self.thread(run, number) for number, run in enumerate(runs)]
        for thread in threads:
            thread.join()
        for server in self.servers:
            server.stop()
        for thread in self.server_threads:
            thread.join()
        if not self.failures:
            state = towline.state.open(self.folder)
            counted = state.get("count", 0)
            assert counted == sum(self.increments), (counted, self.increments)
            assert state.get("locked", 0) == state.get("locks", 0), "two threads had the lock"
        shutil.rmtree(self.folder, ignore_errors=True)


def send_all(ws: Any, texts: list[str]) -> None:
    with contextlib.suppress(*EXPECTED):
        for text in texts:
            ws.send(text)


def publish_all(state: Any, channel: str, count: int) -> None:
    for number in range(count):
        state.publish(channel, number)


def run_round(seed: int, seconds: float) -> int:
    faulthandler.enable()
    faulthandler.dump_traceback_later(seconds + HANG_S, exit=True)
    this = Round(seed, seconds)
    this.run()
    for failure in this.failures:
        print(failure, file=sys.stderr)
    print(f"{this.done} responses, {len(this.servers)} servers")
    return 1 if this.failures else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="rounds begin for so long")
    parser.add_argument("--seed", type=int, help="one round with this seed")
    parser.add_argument("--round", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.round is not None:
        return run_round(options.round, ROUND_S)
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(f"{sys.version}, GIL {'on' if gil else 'off'}", flush=True)
    until, failed, rounds = time.monotonic() + options.seconds, 0, 0
    first = int(time.time()) if options.seed is None else options.seed
    while not rounds or (options.seed is None and time.monotonic() < until):
        seed = first + rounds
        rounds += 1
        command = [sys.executable, __file__, "--round", str(seed)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            failed += 1
            print(
                f"seed {seed}: exit status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-12000:]}",
                flush=True,
            )
        else:
            print(f"seed {seed}: {done.stdout.strip()}", flush=True)
    print(f"{rounds} rounds, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
