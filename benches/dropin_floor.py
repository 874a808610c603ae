"""CPU of a call that httpx, httpx2 and requests spend themselves: `python -m benches.dropin_floor [--rounds 7]`.

Each package gets a transport, or adapter, that returns a small response at once. No drop-in can cost less.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

URL = "http://127.0.0.1:9/"
HEADERS = [(b"content-type", b"text/plain"), (b"content-length", b"13")]
BODY = b"Hello, World!"
WARM_UP, CALLS = 100, 3_000


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benches.dropin_floor", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    floors = {name: floor for name, floor in FLOORS.items() if find_spec(name.split()[0]) is not None}
    found: dict[str, list[float]] = {name: [] for name in floors}
    for _ in range(rounds):
        for name, floor in floors.items():
            found[name].append(floor())
    for name, values in found.items():
        print(f"{name}: {statistics.median(values):.1f} us of CPU per call")
    return 0


def cpu_us() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return (usage.ru_utime + usage.ru_stime) * 1e6


def blocking(get: Callable[[str], Any]) -> float:
    """CPU microseconds per call."""
    for _ in range(WARM_UP):
        get(URL)
    before = cpu_us()
    for _ in range(CALLS):
        get(URL)
    return (cpu_us() - before) / CALLS


def of_httpx(package: str) -> Callable[[], float]:
    def floor() -> float:
        httpx = import_module(package)

        class Body(httpx.SyncByteStream):  # type: ignore[name-defined,misc]
            def __iter__(self) -> Iterator[bytes]:
                yield BODY

        class Transport(httpx.BaseTransport):  # type: ignore[name-defined,misc]
            def handle_request(self, _request: Any) -> Any:
                return httpx.Response(200, headers=HEADERS, stream=Body())

        with httpx.Client(transport=Transport()) as client:
            return blocking(client.get)

    return floor


def of_async_httpx(package: str) -> Callable[[], float]:
    def floor() -> float:
        httpx = import_module(package)

        class Body(httpx.AsyncByteStream):  # type: ignore[name-defined,misc]
            async def __aiter__(self) -> AsyncIterator[bytes]:
                yield BODY

        class Transport(httpx.AsyncBaseTransport):  # type: ignore[name-defined,misc]
            async def handle_async_request(self, _request: Any) -> Any:
                return httpx.Response(200, headers=HEADERS, stream=Body())

        async def run() -> float:
            async with httpx.AsyncClient(transport=Transport()) as client:
                for _ in range(WARM_UP):
                    await client.get(URL)
                before = cpu_us()
                for _ in range(CALLS):
                    await client.get(URL)
                return (cpu_us() - before) / CALLS

        return asyncio.run(run())

    return floor


def of_requests() -> float:
    requests = import_module("requests")
    fields = {name.decode(): value.decode() for name, value in HEADERS}

    class Raw:
        version = 11
        _original_response = None

        def stream(self, *_: Any, **__: Any) -> Iterator[bytes]:
            yield BODY

        def release_conn(self) -> None:
            pass

    class Adapter(requests.adapters.BaseAdapter):  # type: ignore[name-defined,misc]
        def send(self, request: Any, **_: Any) -> Any:
            response = requests.Response()
            response.status_code, response.reason = 200, "OK"
            response.headers = requests.structures.CaseInsensitiveDict(fields)
            response.raw, response.url, response.request = Raw(), request.url, request
            response.connection = self
            return response

        def close(self) -> None:
            pass

    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", Adapter())
        return blocking(session.get)


FLOORS: dict[str, Callable[[], float]] = {
    "httpx sync": of_httpx("httpx"),
    "httpx async": of_async_httpx("httpx"),
    "httpx2 sync": of_httpx("httpx2"),
    "httpx2 async": of_async_httpx("httpx2"),
    "requests": of_requests,
}

if __name__ == "__main__":
    sys.exit(main())
