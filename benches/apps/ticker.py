"""A 10 ms ticker in the server's own loop, together with the hello and the FastAPI application.

GET /ticker returns the lateness of the ticks since the previous request, in milliseconds.
"""

import asyncio
import json
import time
from contextlib import asynccontextmanager

from asgi_suite import app as suite
from asgi_suite import start
from fastapi import FastAPI

PERIOD = 0.010
late: list[float] = []


async def tick():
    """Not the loop's own clock: uvloop's has a resolution of milliseconds."""
    while True:
        due = time.perf_counter() + PERIOD
        await asyncio.sleep(PERIOD)
        late.append((time.perf_counter() - due) * 1000)


def report():
    ordered = sorted(late) or [0.0]
    late.clear()
    at = {
        name: ordered[min(len(ordered) - 1, int(len(ordered) * q))]
        for name, q in (("p50", 0.5), ("p99", 0.99))
    }
    return {"ticks": len(ordered), **at, "max": ordered[-1]}


async def hello(scope, receive, send):
    """Starts the ticker at the first request, so that it works without lifespan as well."""
    global ticker
    if scope["type"] != "http":
        # ASGI lets an application refuse a protocol with an exception: the server continues without lifespan.
        raise NotImplementedError(f"this application speaks http only, not {scope['type']}")
    if scope["path"] != "/ticker":
        return await suite(scope, receive, send)
    if ticker is None:
        ticker = asyncio.create_task(tick())
    body = json.dumps(report()).encode()
    await send(start(len(body)))
    return await send({"type": "http.response.body", "body": body})


ticker = None


@asynccontextmanager
async def lifespan(app):
    task = asyncio.create_task(tick())
    yield
    task.cancel()


fastapi = FastAPI(lifespan=lifespan)


@fastapi.get("/")
async def message():
    return {"message": "Hello, world!"}


@fastapi.get("/ticker")
async def read_ticker():
    return report()
