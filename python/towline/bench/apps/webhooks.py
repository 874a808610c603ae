"""The webhook forwarder of HTTPotion: stores webhooks, responds, and forwards them in the background.

`POST /api/webhooks/<id>` responds 202 when the webhook is in the database; its forwarding, result and
duration are recorded there. WEBHOOKS_CLIENT is the client library, WEBHOOKS_DESTINATION where to forward to,
WEBHOOKS_DATABASE the file, or the URL of a PostgreSQL server, WEBHOOKS_SCHEMA a new schema there, WEBHOOKS_WIDTH the number
of concurrent forwards. It needs the standard library otherwise, so that any server can run it.

One thread owns the database and writes everything that arrived during its last transaction in the next one. It does
not wait for the disk, since servers and clients are measured; examples/webhooks does, and retries.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import queue
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .webhook_database import Statement, StoreError, connect
else:  # servers run it with its folder on the path
    from webhook_database import Statement, StoreError, connect

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Fields = list[tuple[str, str]]
Response = tuple[int, Fields, bytes]
Post = Callable[[str, bytes], Awaitable[Response]]

PREFIX = "/api/webhooks/"
TIMEOUT_S = 30.0
FORWARDED_FIELDS = {"Content-Type": "application/json"}

ACCEPT = "INSERT INTO webhooks (id, hook, request_headers, request_body) VALUES (?, ?, ?, ?)"
CONCLUDE = """
UPDATE webhooks SET duration = ?, status = ?, response_headers = ?, response_body = ?, error = ? WHERE id = ?
"""


@dataclass(frozen=True)
class Write:
    """One statement for the thread; `done` is set when it is committed."""

    statement: Statement
    done: asyncio.Future[None] | None = None


class Store:
    """The database, for one event loop."""

    def __init__(self, target: str, schema: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._writes: queue.SimpleQueue[Write | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(target, schema), name="store")
        self._thread.start()

    async def accept(self, number: int, hook: str, headers: Fields, body: bytes) -> None:
        """Stores a webhook; returns when it is committed."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._writes.put(Write((ACCEPT, (number, hook, json.dumps(headers), body)), done))
        await done

    def conclude(self, number: int, duration_s: float, response: Response | None, error: str | None) -> None:
        status, headers, body = response or (None, None, None)
        values = (
            duration_s,
            status,
            json.dumps(headers) if headers is not None else None,
            body,
            error,
            number,
        )
        self._writes.put(Write((CONCLUDE, values)))

    async def close(self) -> None:
        self._writes.put(None)
        await self._loop.run_in_executor(None, self._thread.join)

    def _run(self, target: str, schema: str) -> None:
        database = connect(target, schema)
        going = True
        while going:
            batch, going = self._batch()
            failure: Exception | None = None
            try:
                database.write([write.statement for write in batch])
            except StoreError as error:
                failure = error
            futures = [write.done for write in batch if write.done is not None]
            if futures:
                self._loop.call_soon_threadsafe(complete, futures, failure)
        database.close()

    def _batch(self) -> tuple[list[Write], bool]:
        """Waits for statements and returns all of them, and whether there will be more."""
        batch: list[Write] = []
        write = self._writes.get()
        while write is not None:
            batch.append(write)
            try:
                write = self._writes.get_nowait()
            except queue.Empty:
                return batch, True
        return batch, False


def complete(futures: list[asyncio.Future[None]], failure: Exception | None) -> None:
    for done in futures:
        if done.done():
            continue  # cancelled: the request has ended
        if failure is None:
            done.set_result(None)
        else:
            done.set_exception(failure)


# --- the client libraries ---------------------------------------------------------------------------------


def poster(library: str, width: int) -> tuple[Post, Callable[[], Awaitable[Any]]]:
    """The function that posts with the library, over at most `width` connections, and the one that closes it."""
    module = importlib.import_module("aiohttp" if library == "aiohttp" else library)
    if library == "aiohttp":
        return aiohttp_poster(module, width)
    if library == "towline":
        limits = module.Limits(
            max_connections=width, max_connections_per_host=width, max_keepalive_connections=width
        )
        client = module.AsyncClient(limits=limits, timeout=module.Timeout(TIMEOUT_S))
    else:  # httpx, httpx2 and clients with the same interface
        limits = module.Limits(max_connections=width, max_keepalive_connections=width)
        client = module.AsyncClient(limits=limits, timeout=TIMEOUT_S)

    async def post(url: str, body: bytes) -> Response:
        response = await client.post(url, content=body, headers=FORWARDED_FIELDS)
        return response.status_code, list(response.headers.items()), response.content

    return post, client.aclose


def aiohttp_poster(module: Any, width: int) -> tuple[Post, Callable[[], Awaitable[Any]]]:
    session = module.ClientSession(
        connector=module.TCPConnector(limit=width), timeout=module.ClientTimeout(total=TIMEOUT_S)
    )

    async def post(url: str, body: bytes) -> Response:
        async with session.post(url, data=body, headers=FORWARDED_FIELDS) as response:
            return response.status, list(response.headers.items()), await response.read()

    return post, session.close


# --- the application ----------------------------------------------------------------------------------------


class WebhookApp:
    """Runs between the lifespan events startup and shutdown."""

    def __init__(self) -> None:
        self._numbers = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._answer(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            self._start()
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": f"{type(error).__name__}: {error}"})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._close()
        await self._store.close()
        await send({"type": "lifespan.shutdown.complete"})

    def _start(self) -> None:
        width = int(os.environ.get("WEBHOOKS_WIDTH", "100"))
        self._upstream = os.environ["WEBHOOKS_DESTINATION"]
        self._post, self._close = poster(os.environ.get("WEBHOOKS_CLIENT", "towline"), width)
        self._accepted: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        self._store = Store(os.environ["WEBHOOKS_DATABASE"], os.environ.get("WEBHOOKS_SCHEMA", "webhooks"))
        self._tasks = [asyncio.create_task(self._forward()) for _ in range(width)]

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if not path.startswith(PREFIX) or scope["method"] != "POST":
            await respond(send, *((200, b"{}") if path == "/" else (404, b"no such resource")))
            return
        body = await read_body(receive)
        if body is None:
            return  # the client disconnected before the end of the body
        self._numbers += 1
        number = self._numbers
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        try:
            await self._store.accept(number, path[len(PREFIX) :], headers, body)
        except StoreError:
            await respond(send, 503, b"the webhook could not be stored")
            return
        self._accepted.put_nowait((number, body))
        await respond(send, 202, b'{"id": %d}' % number)

    async def _forward(self) -> None:
        while True:
            number, body = await self._accepted.get()
            began = time.perf_counter()
            response, error = None, None
            try:
                response = await self._post(self._upstream, body)
            except Exception as failure:  # each library has its own exceptions
                error = f"{type(failure).__name__}: {failure}"[:300]
            self._store.conclude(number, time.perf_counter() - began, response, error)


async def read_body(receive: Receive) -> bytes | None:
    pieces, more = [], True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        pieces.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(pieces)


async def respond(send: Send, status: int, body: bytes) -> None:
    fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


app = WebhookApp()
