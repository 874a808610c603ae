"""Applications of the life-cycle tests: the same paths as ASGI and as WSGI.

| path             | response                                                     |
|------------------|--------------------------------------------------------------|
| /pid             | the worker's process id                                      |
| /frozen          | number of objects that the worker's collector has frozen     |
| /sleep/SECONDS   | `slept`, after that time                                     |
| /stream/N/SECONDS| N chunks of 5 bytes, that long apart                         |
| /endless         | events for ever                                              |
| /block           | never: the worker's thread hangs in Python                   |
| /end/HOW         | never: the worker ends in the way HOW (`ENDINGS`)            |
| /late/HOW        | the same, after the application has been suspended           |
| /group           | ASGI: `sys.exit()` in a task group of the request            |

A WebSocket at any path sends every message back.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

CHUNK = b"chunk"


def interrupt() -> None:
    raise KeyboardInterrupt


ENDINGS: dict[str, Callable[[], object]] = {
    "sys.exit": lambda: sys.exit("enough"),
    "KeyboardInterrupt": interrupt,
    "os._exit": lambda: os._exit(7),
    "segfault": lambda: ctypes.string_at(0),
    "os.abort": os.abort,
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),  # as the kernel does when memory is short
}


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await _lifespan(receive, send)
        return
    if scope["type"] == "websocket":
        await _echo(receive, send)
        return
    command, *arguments = scope["path"].strip("/").split("/")
    kind = b"text/event-stream" if command == "endless" else b"text/plain"
    if command == "block":
        while True:
            time.sleep(0.01)
    if command == "end":
        ENDINGS[arguments[0]]()
    if command == "late":
        await asyncio.sleep(0.01)
        ENDINGS[arguments[0]]()
    if command == "group":
        async with asyncio.TaskGroup() as group:
            group.create_task(_exit())
    if command == "sleep":
        await asyncio.sleep(float(arguments[0]))
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    if command == "stream":
        for _ in range(int(arguments[0])):
            await asyncio.sleep(float(arguments[1]))
            await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
    while command == "endless":
        await send({"type": "http.response.body", "body": b"data: tick\n\n", "more_body": True})
        await asyncio.sleep(0.05)
    body = _plain(command)
    await send({"type": "http.response.body", "body": body})


async def _exit() -> None:
    sys.exit("enough")


def _plain(command: str) -> bytes:
    if command == "frozen":
        return b"%d" % gc.get_freeze_count()
    return {"pid": b"%d" % os.getpid(), "sleep": b"slept"}.get(command, b"")


async def _lifespan(receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    print("shut down", flush=True)
    await send({"type": "lifespan.shutdown.complete"})


async def _echo(receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({**message, "type": "websocket.send"})


def wsgi(environ: Any, start_response: Any) -> Iterable[bytes]:
    command, *arguments = environ["PATH_INFO"].strip("/").split("/")
    if command == "block":
        while True:
            time.sleep(0.01)
    if command in ("end", "late"):
        ENDINGS[arguments[0]]()
    if command == "sleep":
        time.sleep(float(arguments[0]))
    body = _plain(command)
    if command == "stream":
        start_response("200 OK", [("content-type", "text/plain")])
        return _stream(int(arguments[0]), float(arguments[1]))
    start_response("200 OK", [("content-type", "text/plain"), ("content-length", str(len(body)))])
    return [body]


def _stream(count: int, pause: float) -> Iterable[bytes]:
    for _ in range(count):
        time.sleep(pause)
        yield CHUNK
