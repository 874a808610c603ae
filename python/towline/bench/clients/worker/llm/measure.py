"""Latency of a chat for its user: the time of the first piece of text, and of each of the others."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import time
from typing import Any

from ..slow_reader import rss_bytes
from .adapters import Chat, Refused


async def call(chat: Chat, body: dict[str, Any], at_s: float, pause_s: float) -> dict[str, Any]:
    """One response, requested `at_s` from now, with `pause_s` between reads. Times are relative to the request."""
    await asyncio.sleep(at_s)
    text, times, found = hashlib.sha256(), list[float](), dict[str, Any]()
    began = time.perf_counter()
    try:
        async for chunk in chat.stream(body):
            if chunk.content:
                times.append(time.perf_counter() - began)
                text.update(chunk.content.encode())
                if pause_s:
                    await asyncio.sleep(pause_s)
            if chunk.tokens is not None:
                found["tokens"] = chunk.tokens
            if chunk.server is not None:
                found["server_s"] = chunk.server["took_s"]
                found["wrong"] = chunk.server["sha256"] != text.hexdigest()
        found["status"] = 200
    except Refused as refused:
        found |= {"status": refused.status, "error": str(refused)}
    except Exception as error:
        found |= {"status": 0, "error": f"{type(error).__name__}: {error}"[:200]}
    return found | {"total_s": time.perf_counter() - began, "times_s": times}


async def calls(chat: Chat, requests: list[dict[str, Any]], pause_s: float) -> dict[str, Any]:
    """Makes all calls ({"body", "at_s"}) at their times, and measures their cost in this process."""
    gc.collect()
    before, cpu_before, began = rss_bytes(), time.process_time(), time.perf_counter()
    most = 0
    running = [asyncio.ensure_future(call(chat, one["body"], one["at_s"], pause_s)) for one in requests]
    while not all(one.done() for one in running):
        await asyncio.wait(running, timeout=0.02 if pause_s else 0.5)
        most = max(most, rss_bytes() - before)
    return {
        "calls": [one.result() for one in running],
        "took_s": time.perf_counter() - began,
        "cpu_s": time.process_time() - cpu_before,
        "rss_growth_bytes": most,
    }
