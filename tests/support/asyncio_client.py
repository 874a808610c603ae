"""Upstream server in its own thread, and one test body for three event loops."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

BACKENDS = ["asyncio", "uvloop", "trio"]


def run(backend: str, main: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    """Runs `main(*arguments)` on that loop."""
    if backend == "trio":
        import trio

        return trio.run(main, *arguments)
    if backend == "uvloop":
        import uvloop

        return uvloop.run(main(*arguments))
    return asyncio.run(main(*arguments))


async def sleep(seconds: float) -> None:
    if "trio" in sys.modules:
        import trio

        if trio.lowlevel.in_trio_task():
            await trio.sleep(seconds)
            return
    await asyncio.sleep(seconds)


class Upstream:
    """Responds by target; counts connections and the complete requests received."""

    def __init__(self) -> None:
        self.connections = 0
        self.open = 0
        self.seen: list[str] = []
        self.abandoned = 0
        self.sent = 0
        self.loop = asyncio.new_event_loop()
        self.port = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait()

    def url(self, target: str = "/hello") -> str:
        return f"http://127.0.0.1:{self.port}{target}"

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        # Without asyncio's own connection tasks: some Python versions report their cancellation.
        server = self.loop.run_until_complete(
            self.loop.create_server(lambda: _Connection(self), "127.0.0.1", 0, backlog=4096)
        )
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self.loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()


class _Connection(asyncio.Protocol):
    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.reader: asyncio.StreamReader = asyncio.StreamReader(limit=1 << 20, loop=upstream.loop)
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.reader.set_transport(transport)
        self.upstream.connections += 1
        self.upstream.open += 1
        self.task = self.upstream.loop.create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        self.reader.feed_data(data)

    def eof_received(self) -> bool:
        self.reader.feed_eof()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.upstream.open -= 1
        self.task.cancel()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    async def _serve(self) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await self._exchange():
                pass
        self.transport.close()

    async def _exchange(self) -> bool:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        method, target, _ = head.split("\r\n")[0].split(" ")
        fields = {
            name.lower(): value
            for name, _, value in (line.partition(": ") for line in head.split("\r\n")[1:])
        }
        path, query = urlsplit(target).path, {k: v[0] for k, v in parse_qs(urlsplit(target).query).items()}
        self.upstream.seen.append(f"{method} {target}")
        if path == "/early":
            self._send(413, b"too much")
            self.transport.close()
            return False
        body = await self._body(fields)
        if path == "/echo":
            self._send(200, body)
        elif path == "/delay":
            await self._delayed(float(query["ms"]) / 1000)
        elif path == "/hang":
            await asyncio.sleep(3600)
        elif path == "/bytes":
            self._send(200, b"x" * int(query["n"]))
        elif path == "/chunked":
            self.transport.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for index in range(int(query.get("n", "3"))):
                self.transport.write(b"6\r\npiece%d\r\n" % (index % 10))
                await asyncio.sleep(0.001)
            self.transport.write(b"0\r\n\r\n")
        elif path == "/gzip":
            self._send(200, gzip.compress(b"zipped " * 1000), "Content-Encoding: gzip\r\n")
        elif path == "/endless":
            await self._endless()
        elif path == "/cut":
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhal")
            return False
        elif path == "/gone":
            return False
        elif path == "/nonsense":
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello")
        elif path == "/cookie":
            self._send(200, b"hello", "Set-Cookie: a=b\r\n")
        elif path == "/moved":
            self._send(302, b"", "Location: /hello\r\n")
        elif path == "/interim":
            self.transport.write(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
            self._send(200, b"hello")
        else:
            self._send(200, b"" if method == "HEAD" else b"hello")
        return True

    async def _delayed(self, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.upstream.abandoned += 1
            raise
        self._send(200, b"late")

    async def _endless(self) -> None:
        self.transport.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            self.transport.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            self.upstream.sent += 65536
            await self.writable.wait()
            await asyncio.sleep(0)

    async def _body(self, fields: dict[str, str]) -> bytes:
        if "chunked" in fields.get("transfer-encoding", ""):
            body = b""
            while size := int((await self.reader.readuntil(b"\r\n"))[:-2], 16):
                body += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readexactly(2)
            return body
        return await self.reader.readexactly(int(fields.get("content-length", "0")))

    def _send(self, status: int, body: bytes, fields: str = "") -> None:
        head = f"HTTP/1.1 {status} Whatever\r\nContent-Length: {len(body)}\r\nX-Case: Kept\r\n{fields}\r\n"
        self.transport.write(head.encode() + body)


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    server = Upstream()
    yield server
    server.close()
