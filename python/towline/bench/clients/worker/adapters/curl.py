"""pycurl: one easy handle per thread, or a multi handle driven by the event loop."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Generator, Sequence
from typing import Any

import pycurl

from .base import PIECE_BYTES, AsyncAdapter, Response, SyncAdapter, check

# Without this "Expect", libcurl waits for 100 before it sends a large body, unlike all other clients.
JSON = ["Content-Type: application/json", "Expect:"]
OCTETS = ["Content-Type: application/octet-stream", "Expect:"]


def prepare(handle: pycurl.Curl, url: str, write: Any, *, http2: bool) -> None:
    handle.setopt(pycurl.URL, url)
    handle.setopt(pycurl.WRITEFUNCTION, write)
    handle.setopt(pycurl.NOSIGNAL, 1)
    handle.setopt(pycurl.PROXY, "")
    if http2:
        handle.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_2_PRIOR_KNOWLEDGE)
        handle.setopt(
            pycurl.PIPEWAIT, 1
        )  # rather a stream of the connection that is being made than another one


def prepare_post(handle: pycurl.Curl, body: bytes, headers: Sequence[str]) -> None:
    handle.setopt(pycurl.POST, 1)
    handle.setopt(pycurl.HTTPHEADER, headers)
    handle.setopt(pycurl.POSTFIELDSIZE_LARGE, len(body))
    handle.setopt(pycurl.POSTFIELDS, body)


class Easy(SyncAdapter):
    prior_knowledge = True

    def open(self) -> None:
        self.local = threading.local()

    def handle(self) -> pycurl.Curl:
        """The handle of this thread, with its settings reset and its connections kept."""
        try:
            handle: pycurl.Curl = self.local.handle
            handle.reset()
        except AttributeError:
            handle = self.local.handle = pycurl.Curl()
        return handle

    def request(self, path: str, body: bytes | None = None, headers: Sequence[str] = ()) -> Response:
        handle, chunks = self.handle(), list[bytes]()
        prepare(handle, self.base + path, chunks.append, http2=self.http2)
        if body is not None:
            prepare_post(handle, body, headers)
        handle.perform()
        return handle.getinfo(pycurl.RESPONSE_CODE), b"".join(chunks)

    get = request

    def upload(self, path: str, body: bytes) -> Response:
        return self.request(path, body, OCTETS)

    def post_json(self, path: str, value: Any) -> Any:
        return json.loads(self.request(path, json.dumps(value).encode(), JSON)[1])

    def pieces(self, path: str, size: int | None = PIECE_BYTES) -> Generator[bytes, None, None]:
        """Uses a multi handle: an easy handle returns nothing before the end."""
        handle, multi, chunks = self.handle(), pycurl.CurlMulti(), list[bytes]()
        prepare(handle, self.base + path, chunks.append, http2=self.http2)
        multi.add_handle(handle)
        try:
            running = 1
            while running:
                running = multi.perform()[1]
                yield from chunks
                chunks.clear()
                if running:
                    multi.select(1.0)
            check(handle.getinfo(pycurl.RESPONSE_CODE))
        finally:
            multi.remove_handle(handle)
            multi.close()


class Multi(AsyncAdapter):
    prior_knowledge = True

    async def open(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.multi = pycurl.CurlMulti()
        self.multi.setopt(pycurl.M_SOCKETFUNCTION, self._socket)
        self.multi.setopt(pycurl.M_TIMERFUNCTION, self._timer)
        self.multi.setopt(pycurl.M_MAX_TOTAL_CONNECTIONS, self.pool)
        self.multi.setopt(pycurl.M_MAXCONNECTS, self.pool)
        self.idle: list[pycurl.Curl] = []
        self.futures: dict[pycurl.Curl, asyncio.Future[None]] = {}
        self.due: asyncio.TimerHandle | None = None

    def _socket(self, event: int, fd: int, _multi: Any, _data: Any) -> None:
        self.loop.remove_reader(fd)
        self.loop.remove_writer(fd)
        if event in (pycurl.POLL_IN, pycurl.POLL_INOUT):
            self.loop.add_reader(fd, self._act, fd, pycurl.CSELECT_IN)
        if event in (pycurl.POLL_OUT, pycurl.POLL_INOUT):
            self.loop.add_writer(fd, self._act, fd, pycurl.CSELECT_OUT)

    def _timer(self, milliseconds: int) -> None:
        if self.due is not None:
            self.due.cancel()
        self.due = None
        if milliseconds >= 0:
            self.due = self.loop.call_later(milliseconds / 1000, self._act, pycurl.SOCKET_TIMEOUT, 0)

    def _act(self, fd: int, mask: int) -> None:
        self.multi.socket_action(fd, mask)
        more = 1
        while more:
            more, good, bad = self.multi.info_read()
            for handle in good:
                self._ended(handle, None)
            for handle, number, message in bad:
                self._ended(handle, pycurl.error(number, message))

    def _ended(self, handle: pycurl.Curl, error: Exception | None) -> None:
        self.multi.remove_handle(handle)
        future = self.futures.pop(handle)
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def handle(self) -> pycurl.Curl:
        if not self.idle:
            return pycurl.Curl()
        handle = self.idle.pop()
        handle.reset()
        return handle

    def begin(self, handle: pycurl.Curl) -> asyncio.Future[None]:
        future = self.futures[handle] = self.loop.create_future()
        self.multi.add_handle(handle)
        return future

    async def request(self, path: str, body: bytes | None = None, headers: Sequence[str] = ()) -> Response:
        handle, chunks = self.handle(), list[bytes]()
        prepare(handle, self.base + path, chunks.append, http2=self.http2)
        if body is not None:
            prepare_post(handle, body, headers)
        await self.begin(handle)
        self.idle.append(handle)
        return handle.getinfo(pycurl.RESPONSE_CODE), b"".join(chunks)

    get = request

    async def upload(self, path: str, body: bytes) -> Response:
        return await self.request(path, body, OCTETS)

    async def post_json(self, path: str, value: Any) -> Any:
        return json.loads((await self.request(path, json.dumps(value).encode(), JSON))[1])

    async def pieces(self, path: str, size: int | None = PIECE_BYTES) -> AsyncGenerator[bytes, None]:
        """Queues what arrives: libcurl pushes, and is never paused."""
        handle, queue = self.handle(), asyncio.Queue[bytes]()
        prepare(handle, self.base + path, queue.put_nowait, http2=self.http2)
        future = self.begin(handle)
        future.add_done_callback(lambda _: queue.put_nowait(b""))
        try:
            while piece := await queue.get():
                yield piece
            check(handle.getinfo(pycurl.RESPONSE_CODE))
        finally:
            if self.futures.pop(handle, None) is not None:
                self.multi.remove_handle(handle)
