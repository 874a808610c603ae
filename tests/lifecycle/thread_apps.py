"""Applications that show which thread of the worker serves a request.

| path       | response                                                                     |
|------------|------------------------------------------------------------------------------|
| /thread    | the name of the thread                                                       |
| /lifespan  | the thread whose lifespan has made the state of the request                  |
| /count     | a number that all threads of all processes count up in `towline.state`       |
| /async-count | ASGI: likewise, by `AsyncState`                                            |
| /compute/N | the sum of N squares                                                         |
| /stop      | ASGI: the application stops the event loop that serves it                    |

Other paths are those of `apps`.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import threading
from collections.abc import Iterable
from typing import Any

import apps
import towline.state


@functools.cache
def store() -> Any:
    """The store, whose front end all loops share. Opened late, because `--check` has none."""
    return towline.state.open()


@functools.cache
def async_store() -> Any:
    return towline.state.open_async()


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await _lifespan(scope, receive, send)
        return
    command = scope.get("path", "").strip("/")
    if scope["type"] != "http" or (
        not (found := _body(command)) and command not in ("lifespan", "stop", "async-count")
    ):
        await apps.asgi(scope, receive, send)
        return
    if command == "async-count":
        found = str(await async_store().increment("requests"))
    if command == "stop":
        asyncio.get_running_loop().stop()
        await asyncio.sleep(10)
    if command == "lifespan":
        found = scope["state"]["thread"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": found.encode()})


async def _lifespan(scope: Any, receive: Any, send: Any) -> None:
    name = threading.current_thread().name
    await receive()
    if name == os.environ.get("FAILING_THREAD"):
        await send({"type": "lifespan.startup.failed", "message": f"{name} does not like it"})
        return
    scope["state"]["thread"] = name
    _say(f"start-up in {name}")
    await send({"type": "lifespan.startup.complete"})
    await receive()
    _say(f"shutdown in {name}")
    await send({"type": "lifespan.shutdown.complete"})


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")  # at once, unlike print()
    sys.stdout.flush()


def wsgi(environ: Any, start_response: Any) -> Iterable[bytes]:
    body = _body(environ["PATH_INFO"].strip("/"))
    if not body:
        return apps.wsgi(environ, start_response)
    start_response("200 OK", [("content-type", "text/plain"), ("content-length", str(len(body)))])
    return [body.encode()]


def _body(command: str) -> str:
    if command == "thread":
        return threading.current_thread().name
    if command == "count":
        return str(store().increment("requests"))
    if command.startswith("compute/"):
        return str(sum(number * number for number in range(int(command.removeprefix("compute/")))))
    return ""
