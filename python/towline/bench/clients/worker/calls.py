"""One call of a load: the request, and the comparison of its response to the last byte."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .adapters.base import AsyncAdapter, Response, SyncAdapter
from .job import Job
from .window import WrongResponse

UPLOADS = ("upload", "partial_write")


def compare(response: Response, expected: bytes) -> None:
    status, body = response
    if status != 200 or body != expected:
        shown = bytes(body[:60])
        raise WrongResponse(status, f"{status} with {len(body)} bytes, not {len(expected)}: {shown!r}")


def compare_json(response: Any, expected: Any) -> None:
    if response != expected:
        raise WrongResponse(None, f"not the JSON that was sent: {str(response)[:60]!r}")


def document(job: Job) -> dict[str, str]:
    return {"hello": "a" * job.body_bytes}


def async_call(adapter: AsyncAdapter, job: Job) -> Callable[[], Awaitable[Any]]:
    """One iteration of the load: a request, or a batch of concurrent ones."""
    one = _async_one(adapter, job)
    if job.batch == 1:
        return one
    return lambda: asyncio.gather(*(one() for _ in range(job.batch)))


def _async_one(adapter: AsyncAdapter, job: Job) -> Callable[[], Awaitable[None]]:
    path, expected = job.path, job.expected
    if job.kind == "get":

        async def one() -> None:
            compare(await adapter.get(path), expected)
    elif job.kind == "stream":

        async def one() -> None:
            compare((200, b"".join([piece async for piece in adapter.pieces(path)])), expected)
    elif job.kind in UPLOADS:
        body = b"x" * job.body_bytes

        async def one() -> None:
            compare(await adapter.upload(path, body), expected)
    else:
        value = document(job)

        async def one() -> None:
            compare_json(await adapter.post_json(path, value), value)

    return one


def sync_call(adapter: SyncAdapter, job: Job) -> Callable[[], Any]:
    """The call of a thread. A batch has a thread for each of its requests, which is reused."""
    one = _sync_one(adapter, job)
    if job.batch == 1:
        return one
    threads = ThreadPoolExecutor(job.batch)
    return lambda: [future.result() for future in [threads.submit(one) for _ in range(job.batch)]]


def _sync_one(adapter: SyncAdapter, job: Job) -> Callable[[], None]:
    path, expected = job.path, job.expected
    if job.kind == "get":
        return lambda: compare(adapter.get(path), expected)
    if job.kind == "stream":
        return lambda: compare((200, b"".join(adapter.pieces(path))), expected)
    if job.kind in UPLOADS:
        body = b"x" * job.body_bytes
        return lambda: compare(adapter.upload(path, body), expected)
    value = document(job)
    return lambda: compare_json(adapter.post_json(path, value), value)
