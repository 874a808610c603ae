"""What is measured of clients: the scenarios C and D of httpcorexyz and Nous, and our own (docs/benchmarks.md)."""

from __future__ import annotations

from dataclasses import dataclass

from .adapters import SUBJECTS

HELLO = b"Hello, World!"
REQ = b"x" * 2000
MIB = 1 << 20


@dataclass(frozen=True)
class Goal:
    """What we promise ourselves: at least `least` times each of `peers`, in requests a second or in CPU."""

    least: float
    peers: tuple[str, ...]
    metric: str = "rate"  # or "cpu": theirs to ours


@dataclass(frozen=True)
class Cell:
    name: str
    what: str
    load: str  # a function of loads.py or slow.py
    subjects: tuple[str, ...]
    ours: tuple[str, ...] = ("towline", "towline-sync")
    path: str = "/"
    expected: bytes = HELLO
    at_once: int = 1
    batch: int = 1  # requests awaited together, of which one is measured as a whole
    count: int | None = None  # requests of a slice; without: for a time
    body_bytes: int = 0
    pool: int = 100
    floor_s: float | None = None  # no client can be faster
    goals: tuple[Goal, ...] = ()

    @property
    def slow(self) -> bool:
        return self.load.startswith("slow")

    def ours_beside(self, peer: str) -> str | None:
        """Which of ours has the peer's face."""
        face = SUBJECTS[peer].face
        return next((name for name in self.ours if SUBJECTS[name].face == face), None)


OURS = ("towline", "towline-sync")
DROP_INS = tuple(name for name in SUBJECTS if name.startswith("towline."))


def of_face(face: str) -> tuple[str, ...]:
    return tuple(name for name, subject in SUBJECTS.items() if subject.face == face and name not in DROP_INS)


ASYNC, SYNC = of_face("async"), of_face("sync")
FAST = ("pyreqwest", "pycurl-multi", "rnet", "primp", "aiohttp")
FAST_SYNC = ("pyreqwest-sync", "pycurl", "rnet-sync", "primp-sync")
BEST = (Goal(1.5, FAST + FAST_SYNC),)
LEVEL = (Goal(1.0, FAST + FAST_SYNC),)


def at_once(number: int, goals: tuple[Goal, ...] = ()) -> Cell:
    what = f"hello, asynchronous, {number} at once"
    return Cell(f"async_{number}", what, "get", ASYNC, at_once=number, pool=max(100, number), goals=goals)


def threads(number: int, goals: tuple[Goal, ...] = ()) -> Cell:
    return Cell(f"sync_{number}", f"hello, {number} threads", "get", SYNC, at_once=number, goals=goals)


def streams(number: int) -> Cell:
    return Cell(f"stream_sync_{number}", f"{number} threads x 50 streamed GETs of /req, pool of 100", "stream", SYNC,
                path="/req", expected=REQ, at_once=number, count=50 * number, floor_s=50 * max(number / 100, 1) * 0.01,
                goals=(Goal(1.0, ("pycurl",)),))  # fmt: skip


def uploads(name: str, size: int, count: int) -> Cell:
    return Cell(f"upload_{name}", f"uploads of {size:,} bytes, one connection", "upload", ASYNC + SYNC,
                path="/upload", expected=str(size).encode(), count=count, body_bytes=size, goals=LEVEL)  # fmt: skip


def slow(name: str, what: str, path: str) -> Cell:
    load = "slow_events" if path.startswith("/sse") else "slow_pieces"
    return Cell(f"slow_{name}", what, load, ASYNC + SYNC, path=path)


CELLS = {
    cell.name: cell
    for cell in (
        Cell("get_async", "5,000 GETs of /req (10 ms, 2,000 bytes chunked), asynchronous, 20 at once", "get", ASYNC,
             path="/req", expected=REQ, at_once=20, count=5000, floor_s=2.5,
             goals=(Goal(1.0, ("aiohttp", "httpx", "httpx2", "httpcorexyz")),
                    Goal(5.0, ("aiohttp",), "cpu"), Goal(2.5, ("pyreqwest",), "cpu"))),
        Cell("get_sync", "5,000 GETs of /req (10 ms, 2,000 bytes chunked), 20 threads", "get", SYNC,
             path="/req", expected=REQ, at_once=20, count=5000, floor_s=2.5,
             goals=(Goal(1.0, ("urllib3", "httpx-sync", "httpx2-sync", "httpcorexyz-sync")),
                    Goal(1.0, ("pycurl",), "cpu"))),
        at_once(1),
        at_once(20, (Goal(8.0, ("aiohttp",)), Goal(4.0, ("pyreqwest",)))),
        at_once(500),
        threads(1, (Goal(1.3, ("pycurl",)), Goal(10.0, ("urllib3",)))),
        threads(20),
        threads(100),
        *(streams(number) for number in (1, 10, 50, 100, 200)),
        Cell("small_post", "JSON of 1 KB out and back, one at a time", "post_json", ASYNC + SYNC,
             path="/json", body_bytes=900, goals=BEST),
        Cell("parallel_50", "JSON of 1 KB out and back, 50 awaited together", "post_json", ASYNC,
             path="/json", body_bytes=900, batch=50, goals=BEST),
        Cell("large_body", "JSON of 256 KB out and back, 10 awaited together", "post_json", ASYNC,
             path="/json", body_bytes=256 * 1024, batch=10, goals=BEST),
        uploads("256k", 256 * 1024, 40),
        *(uploads(f"{number}m", number * MIB, 5) for number in (1, 4, 16, 64)),
        Cell("httpx2", "hello through httpx2, asynchronous, 20 at once", "get", ("towline.httpx2", "httpx2"),
             ours=("towline.httpx2",), at_once=20, goals=(Goal(4.0, ("httpx2",)),)),
        Cell("httpx2_sync", "hello through httpx2, 20 threads", "get", ("towline.httpx2-sync", "httpx2-sync"),
             ours=("towline.httpx2-sync",), at_once=20),
        Cell("httpx", "hello through httpx, asynchronous, 20 at once", "get", ("towline.httpx", "httpx"),
             ours=("towline.httpx",), at_once=20),
        Cell("requests", "hello through requests, 20 threads", "get", ("towline.requests", "requests"),
             ours=("towline.requests",), at_once=20, goals=(Goal(2.0, ("requests",)),)),
        slow("plain", "64 KB every 50 ms of an endless body with a length", "/endless"),
        slow("chunked", "64 KB every 50 ms of an endless chunked body", "/endless?chunked"),
        slow("sse", "10 events a second taken of 500 that are sent", "/sse?per_s=500&bytes=200"),
    )
}  # fmt: skip
