"""Replies: bodies that are pulled, and bodies that are pushed in pieces."""

from __future__ import annotations

import asyncio
import io
import re
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import towline
from towline import AsyncClient
from towline._native import AsyncPool
from towline.client.options import PoolOptions

from tests.support.asyncio_client import BACKENDS, Upstream, run, sleep
from tests.support.asyncio_client import upstream as upstream
from tests.support.http1_peer import Peer, scripted


def exchange(
    pool: AsyncPool, upstream: Upstream, target: str, *headers: tuple[bytes, bytes], **more: Any
) -> Any:
    method = more.pop("method", b"POST" if "body" in more else b"GET")
    named = [(b"Host", b"test"), *headers]
    return pool.exchange(method, b"http", b"127.0.0.1", upstream.port, target.encode(), named, **more)


@pytest.mark.parametrize("backend", BACKENDS)
def test_read_returns_the_available_bytes(backend: str, upstream: Upstream) -> None:
    async def main() -> None:
        pool = AsyncPool(PoolOptions())
        reply = await exchange(pool, upstream, "/bytes?n=100000")
        assert (reply.status, reply.reason, reply.version) == (200, b"Whatever", "HTTP/1.1")
        assert reply.headers == [(b"Content-Length", b"100000"), (b"X-Case", b"Kept")]
        body = await reply.read(10)
        assert body == b"x" * 10
        buffer = bytearray(1000)
        count = await reply.readinto(buffer)
        assert 1 <= count <= 1000
        assert buffer[:count] == b"x" * count
        total = 10 + count
        while data := await reply.read():
            total += len(data)
        assert total == 100_000
        assert await reply.read() == b""
        assert reply.timings["total"] >= reply.timings["first_byte"] > 0
        again = await exchange(pool, upstream, "/chunked?n=5")
        assert again.reused
        assert await again.read_all() == b"piece0piece1piece2piece3piece4"
        coded = await exchange(pool, upstream, "/gzip")
        assert (await coded.read_all(decode=False))[:2] == b"\x1f\x8b"
        coded = await exchange(pool, upstream, "/gzip")
        with pytest.raises(towline.DecompressionLimit):
            await coded.read_all(max_decoded=100)
        large = await exchange(pool, upstream, "/bytes?n=100000")
        with pytest.raises(towline.ResponseError):
            await large.read_all(max_size=1000)
        await pool.aclose()
        assert upstream.connections <= 3

    run(backend, main)


@pytest.mark.parametrize("backend", ["asyncio", "uvloop"])
def test_a_read_of_available_bytes_does_not_use_the_loop(backend: str, upstream: Upstream) -> None:
    async def main() -> None:
        pool = AsyncPool(PoolOptions())
        reply = await exchange(pool, upstream, "/bytes?n=1000")
        while reply.buffered < 1000:
            await sleep(0.01)
        for _ in range(10):
            read = reply.read(100)
            with pytest.raises(StopIteration) as stop:
                read.send(None)
            assert stop.value.value == b"x" * 100

    run(backend, main)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_unread_body_is_buffered_up_to_the_window(backend: str, upstream: Upstream) -> None:
    async def main() -> None:
        pool = AsyncPool(PoolOptions(stream_window=65536))
        reply = await exchange(pool, upstream, "/endless")
        for _ in range(20):
            await sleep(0.02)
            assert reply.buffered <= 65536
        sent = upstream.sent
        await sleep(0.1)
        assert upstream.sent - sent < 1_000_000, "the upstream was not held back"
        before = await reply.read()
        assert before
        assert len(before) <= 65536
        assert not reply.closed
        reply.close()
        assert reply.closed
        with pytest.raises(towline.StreamConsumed):
            await reply.read()
        await pool.aclose()

    run(backend, main)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_task_reads_at_a_time(backend: str) -> None:
    async def read(response: Any, size: int | None, outcomes: list[bytes | towline.UsageError]) -> None:
        try:
            outcomes.append(await response.aread(size))
        except towline.UsageError as error:
            outcomes.append(error)
            stalled.go_on.set()

    async def main(url: str) -> None:
        async with AsyncClient() as client:
            for sizes in ([100, 10], [100, None], [None, None]):
                outcomes: list[bytes | towline.UsageError] = []
                async with client.stream("GET", url) as response:
                    async with anyio.create_task_group() as tasks:
                        for size in sizes:
                            tasks.start_soon(read, response, size, outcomes)
                refused, content = outcomes
                assert isinstance(refused, towline.UsageError)
                assert content == b"hello"

    with scripted(stalled := Stalled()) as server:
        run(backend, main, server.url)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cancelled_read_does_not_block_the_next(backend: str) -> None:
    async def main(port: int) -> None:
        pool = AsyncPool(PoolOptions())
        reply = await pool.exchange(b"GET", b"http", b"127.0.0.1", port, b"/", [(b"Host", b"test")])
        with anyio.move_on_after(0.05) as scope:
            await reply.read(100)
        assert scope.cancelled_caught
        stalled.go_on.set()
        assert await reply.read_all() == b"hello"
        await pool.aclose()

    with scripted(stalled := Stalled()) as server:
        run(backend, main, server.port)


@pytest.mark.parametrize("backend", BACKENDS)
def test_closing_a_response_ends_a_read_of_another_task(backend: str) -> None:
    async def main(url: str) -> None:
        async with AsyncClient() as client, client.stream("GET", url) as response:

            async def read() -> None:
                with pytest.raises(towline.StreamConsumed, match="closed"):
                    await response.aread(100)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read)
                await sleep(0.05)
                await response.aclose()

    with scripted(stalled := Stalled()) as server:
        run(backend, main, server.url)
        stalled.go_on.set()


class Stalled:
    """Responds with a head; the content follows when the test continues it."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def __call__(self, peer: Peer) -> None:
        while peer.head():
            self.go_on.clear()
            peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
            self.go_on.wait(20)
            peer.send(b"hello")


async def _pieces() -> AsyncIterator[bytes]:
    for number in range(50):
        yield b"%04d" % number * 1000
        if number % 10 == 0:
            await sleep(0.001)


def _plain_pieces() -> Iterator[bytes]:
    for number in range(50):
        yield b"%04d" % number * 1000


CONTENT = b"".join(_plain_pieces())


@pytest.mark.parametrize("backend", BACKENDS)
def test_bodies_in_chunks(backend: str, upstream: Upstream, tmp_path: Path) -> None:
    path = tmp_path / "body"
    path.write_bytes(CONTENT)

    async def main() -> None:
        pool = AsyncPool(PoolOptions())
        length = (b"Content-Length", b"%d" % len(CONTENT))
        with path.open("rb") as file:
            bodies = [
                _pieces(),
                _plain_pieces(),
                [CONTENT[:5], b"", CONTENT[5:]],
                io.BytesIO(CONTENT),
                CONTENT,
                file,
            ]
            for body in bodies:
                reply = await exchange(pool, upstream, "/echo", body=body)
                assert await reply.read_all() == CONTENT
            for body in (_pieces(), _plain_pieces()):
                reply = await exchange(pool, upstream, "/echo", length, body=body)
                assert await reply.read_all() == CONTENT
        await pool.aclose()
        assert upstream.connections == 1

    run(backend, main)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_body_shorter_than_its_length_is_an_error_of_the_program(backend: str, upstream: Upstream) -> None:
    async def main() -> None:
        pool = AsyncPool(PoolOptions())
        with pytest.raises(towline.LocalProtocolError):
            await exchange(pool, upstream, "/echo", (b"Content-Length", b"10"), body=iter([b"abc"]))
        reply = await exchange(pool, upstream, "/hello")
        assert await reply.read_all() == b"hello"

    run(backend, main)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_early_response_ends_the_upload(backend: str, upstream: Upstream) -> None:
    pulled = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal pulled
        while True:
            pulled += 65536
            yield b"x" * 65536
            await sleep(0)

    async def main() -> None:
        pool = AsyncPool(PoolOptions())
        reply = await exchange(pool, upstream, "/early", body=endless())
        assert reply.status == 413
        assert await reply.read_all() == b"too much"
        assert pulled < 100_000_000

    run(backend, main)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_upload_waits_for_buffer_space(backend: str) -> None:
    """Server that reads nothing: the iterator advances by the size of the buffers in between, and no more."""
    pulled = 0
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/"

    async def endless() -> AsyncIterator[bytes]:
        nonlocal pulled
        while True:
            pulled += 65536
            yield b"x" * 65536

    async def main() -> None:
        samples: list[int] = []
        timeout = towline.Timeout(20, write=2.0, total=60)
        async with AsyncClient(timeout=timeout, retries=towline.Retry(stale=False)) as client:

            async def watch() -> None:
                while True:
                    await sleep(0.1)
                    samples.append(pulled)

            watching = asyncio.create_task(watch()) if backend != "trio" else None
            with pytest.raises(towline.WriteTimeout):
                await client.post(url, content=endless())
            if watching:
                watching.cancel()
                assert samples[-1] == samples[-5], "it stands still long before the timeout"

    with listener:
        run(backend, main)
    # Send buffer (4 MiB at most by Linux' default), receive buffer, and one window of the client.
    assert 0 < pulled < 8 * 1024 * 1024


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("at_once", [1, 20, 200])
def test_bodies_are_read_concurrently(backend: str, at_once: int, upstream: Upstream) -> None:
    """Large bodies in chunks, read at different rates, over fewer connections than readers."""
    lengths: list[int] = []

    async def main() -> None:
        async with AsyncClient(limits=towline.Limits(max_connections=150)) as client:

            async def one(index: int) -> None:
                async with client.stream("GET", upstream.url("/bytes?n=200000")) as response:
                    length = 0
                    while piece := await response.aread(1000 + 7919 * (index % 13)):
                        length += len(piece)
                        if index % 5 == 0:
                            await sleep(0)
                    lengths.append(length)

            if backend == "trio":
                import trio

                async with trio.open_nursery() as nursery:
                    for index in range(at_once):
                        nursery.start_soon(one, index)
            else:
                await asyncio.gather(*(one(index) for index in range(at_once)))
            assert client.pool_status()["active"] == 0

    run(backend, main)
    assert lengths == [200_000] * at_once


def test_a_failing_iterator_fails_its_request(upstream: Upstream) -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield b"abc"
        raise KeyError("mine")

    async def main() -> None:
        async with AsyncClient(limits=towline.Limits(max_connections=1)) as client:
            with pytest.raises(KeyError, match="mine"):
                await client.post(upstream.url("/echo"), content=failing())
            assert (await client.get(upstream.url())).text == "hello"

    run("asyncio", main)


def test_interim_responses_are_reported(upstream: Upstream) -> None:
    informational: list[Any] = []

    async def main() -> None:
        pool = AsyncPool(PoolOptions())
        reply = await exchange(
            pool,
            upstream,
            "/interim",
            on_informational=lambda status, fields: informational.append((status, fields)),
        )
        assert await reply.read_all() == b"hello"
        assert informational == [(103, [(b"Link", b"</a>")])]

    run("asyncio", main)


@pytest.mark.parametrize("backend", BACKENDS)
def test_failures_while_a_body_is_read(backend: str, upstream: Upstream) -> None:
    async def main() -> None:
        pool = AsyncPool(PoolOptions())
        reply = await exchange(pool, upstream, "/cut")
        read = b""
        with pytest.raises(towline.ServerDisconnected) as caught:  # noqa: PT012
            while True:
                read += await reply.read()
        assert read == b"hal"
        assert caught.value.phase == "body"
        with pytest.raises(towline.RemoteProtocolError) as caught:
            await exchange(pool, upstream, "/nonsense")
        assert "content-length" in caught.value.rule

    run(backend, main)


def test_every_kind_of_failure_has_its_class() -> None:
    source = Path(__file__).parents[2] / "crates/towline-py-client/src/errors.rs"
    names = re.findall(r'=> "(\w+)",', source.read_text())
    assert len(names) >= 16
    for name in names:
        if name[0].isupper():
            assert issubclass(getattr(towline.errors, name), towline.Error), name
