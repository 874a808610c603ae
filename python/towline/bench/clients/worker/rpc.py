"""The RPC over stdio: one JSON object per line, one response to each.

    {"op": "versions", "packages": [...]} -> {"versions": {"httpx": "0.28.1", "primp": null}}
    {"op": "open", "library": NAME, "adapter": "module:Class", "packages": [...], "job": {...}, "bases": [URL or path, ...]}
                                          -> {"versions": {...}} or {"missing": "why"}
    {"op": "verify"}                      -> {"found": {}}
    {"op": "slice", "seconds": 0.08, "discard_s": 0.008, "count": null}
                                          -> {"found": {"answered": ..., "measured_s": ..., ...}}

    {"op": "chat_open", "adapter": "Class of llm/adapters.py", "packages": [...], "base": URL, "key": KEY, "loop": NAME}
    {"op": "chat", "requests": [{"body": {...}, "at_s": 0.0}], "pause_s": 0.0} -> {"found": {"calls": [...], ...}}

An error is {"error": "..."}. The worker ends with its standard input. Output of a library goes to stderr.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from importlib import import_module, metadata
from typing import Any

from .adapters.base import AsyncAdapter, SyncAdapter
from .callers import AsyncCallers, SyncCallers
from .calls import UPLOADS, async_call, sync_call
from .job import MICRO, SLOW, Job, job_from
from .llm.adapters import Chat
from .llm.measure import calls
from .pools import Steps, allow_descriptors, fill_async, fill_sync, sample, steps_for
from .slow_reader import async_slow, sync_slow
from .sockets import shrink_send_buffers
from .window import Window


class AsyncClientBackend:
    """The loop lives as long as the process: connections stay open between slices."""

    def __init__(self, adapter: AsyncAdapter, job: Job) -> None:
        self.adapter, self.job, self.loop = adapter, job, new_loop(job.loop)
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(adapter.open())
        self.call = async_call(adapter, job)
        self.callers = AsyncCallers(self.call, job, self.loop)

    def verify(self) -> None:
        async def twice() -> None:  # the second over a connection that is kept
            await self.call()
            await self.call()

        self.loop.run_until_complete(twice())

    def fill(self, bases: list[str]) -> None:
        self.loop.run_until_complete(fill_async(self.adapter, self.job, bases))

    def steps(self, steps: Steps, seconds: float, discard_s: float) -> Window:
        async def inside() -> Window:  # some libraries look which loop they run in
            return sample(steps, self.job, seconds, discard_s)

        return self.loop.run_until_complete(inside())

    def slow(self, seconds: float) -> dict[str, Any]:
        return self.loop.run_until_complete(async_slow(self.adapter, self.job, seconds))


class SyncClientBackend:
    def __init__(self, adapter: SyncAdapter, job: Job) -> None:
        self.adapter, self.job = adapter, job
        adapter.open()
        self.call = sync_call(adapter, job)
        self.callers = SyncCallers(self.call, job)

    def verify(self) -> None:
        self.call()
        self.call()

    def fill(self, bases: list[str]) -> None:
        fill_sync(self.adapter, self.job, bases)

    def steps(self, steps: Steps, seconds: float, discard_s: float) -> Window:
        return sample(steps, self.job, seconds, discard_s)

    def slow(self, seconds: float) -> dict[str, Any]:
        return sync_slow(self.adapter, self.job, seconds)


class OpenClient:
    """An open client with its job."""

    def __init__(
        self, backend: AsyncClientBackend | SyncClientBackend, library: str, bases: list[str]
    ) -> None:
        self.backend, self.job = backend, backend.job
        self.steps: Steps | None = None
        if self.job.kind in MICRO:
            allow_descriptors()
            if library != "towline":  # its pool benchmark has no sockets
                backend.fill(bases)
            self.steps = steps_for(backend.adapter, self.job, bases, library)

    def verify(self) -> None:
        if self.steps is not None:
            self.backend.steps(self.steps, 0.0, 0.0)
        elif self.job.kind not in SLOW:
            self.backend.verify()

    def slice(self, seconds: float, discard_s: float, count: int | None) -> dict[str, Any]:
        if self.job.kind in SLOW:
            return self.backend.slow(seconds)
        if self.steps is not None:
            return self.backend.steps(self.steps, seconds, discard_s).found(0)
        buffer_bytes = self.job.parameters.get("send_buffer_bytes")
        if buffer_bytes is not None and not shrink_send_buffers(self.backend.adapter.uds or "", buffer_bytes):
            raise ValueError("the client keeps no connection whose send buffer could be set")
        job, window = self.job, self.backend.callers.slice(seconds, discard_s, count)
        found = window.found(job.body_bytes if job.kind == "post_json" else len(job.expected), job.batch)
        if job.kind in UPLOADS and found["measured_s"]:
            sent_bytes = found["answered"] * job.body_bytes
            found["extra"]["upload_mib_per_s"] = sent_bytes / (1 << 20) / found["measured_s"]
        return found


def new_loop(name: str) -> asyncio.AbstractEventLoop:
    if name == "uvloop":
        loop: asyncio.AbstractEventLoop = import_module("uvloop").new_event_loop()
        return loop
    return asyncio.new_event_loop()


def version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        found = getattr(import_module(package), "__version__", None)
        if found is None:
            raise
        return str(found)


def versions_of(packages: list[str]) -> dict[str, str | None]:
    """The versions, None for packages that are not installed. Nothing is imported."""
    found: dict[str, str | None] = {}
    for package in packages:
        try:
            found[package] = version_of(package)
        except ImportError:
            found[package] = None
    return found


class RpcServer:
    """One client, from `open` to the end of the input."""

    def __init__(self, send: Callable[..., None]) -> None:
        self.send = send
        self.opened: OpenClient | None = None
        self.chat: OpenChat | None = None

    def serve(self, lines: Iterable[str]) -> None:
        for line in lines:
            try:
                request = json.loads(line)
                self._answer(request.pop("op"), request)
            except BaseException as error:
                traceback.print_exc()
                self.send(error=f"{type(error).__name__}: {error}"[:300])

    def _answer(self, op: str, request: dict[str, Any]) -> None:
        if op == "open":
            self._open(**request)
        elif op == "versions":
            self.send(versions=versions_of(request["packages"]))
        elif op == "chat_open":
            self._open_chat(**request)
        elif op == "chat" and self.chat is not None:
            self.send(found=self.chat.loop.run_until_complete(calls(self.chat.client, **request)))
        elif self.opened is None:
            self.send(error="the first call must be `open`")
        elif op == "verify":
            self.opened.verify()
            self.send(found={})
        elif op == "slice":
            self.send(found=self.opened.slice(**request))
        else:
            self.send(error=f"nothing is called {op!r} here; there is open, verify, slice")

    def _open(
        self, library: str, adapter: str, packages: list[str], job: dict[str, Any], bases: list[str]
    ) -> None:
        module, _, attribute = adapter.partition(":")
        try:
            versions = {package: version_of(package) for package in packages}
            make = getattr(import_module(f".adapters.{module}", __package__), attribute)
            request = job_from(job)
            # The base of a unix socket is its path.
            base, uds = (bases[0], None) if bases[0].startswith("http") else ("http://unix", bases[0])
            http2, http3 = request.protocol == "h2", request.protocol == "h3"
            client = make(base, request.pool, uds, http2=http2, http3=http3)
            backend = (
                AsyncClientBackend(client, request)
                if request.backend == "async"
                else SyncClientBackend(client, request)
            )
        except ImportError as error:
            self.send(missing=f"{type(error).__name__}: {error}")
            return
        self.opened = OpenClient(backend, library, bases)
        self.send(versions=versions | {"python": sys.version.split()[0]})

    def _open_chat(self, adapter: str, packages: list[str], base: str, key: str, loop: str) -> None:
        try:
            versions = {package: version_of(package) for package in packages}
            self.chat = OpenChat(
                getattr(import_module(".llm.adapters", __package__), adapter)(base, key), loop
            )
        except ImportError as error:
            self.send(missing=f"{type(error).__name__}: {error}")
            return
        self.send(versions=versions | {"python": sys.version.split()[0]})


class OpenChat:
    """A chat client and its loop."""

    def __init__(self, client: Chat, loop: str) -> None:
        self.client, self.loop = client, new_loop(loop)
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(client.open())


def main(_arguments: list[str]) -> None:
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # output of a library must not mix with the replies

    def send(**fields: Any) -> None:
        replies.write(json.dumps(fields) + "\n")

    RpcServer(send).serve(sys.stdin)
    replies.flush()
    os._exit(0)  # a client's own threads do not keep the bench waiting
