"""What is measured: one cell is an application, a request, and how many connections ask it."""

from __future__ import annotations

from dataclasses import dataclass, replace

HELLO = b"Hello, world!\n"
JSON = b'{"message":"Hello, world!"}'
ASGI_PEERS = ("granian", "uvicorn", "hypercorn", "gunicorn-asgi")
WSGI_PEERS = ("granian", "gunicorn-gthread", "gunicorn-sync")


@dataclass(frozen=True)
class Cell:
    name: str
    what: str
    app: str  # module:attribute in benches/apps
    peers: tuple[str, ...]
    expected: bytes
    interface: str = "asgi"
    path: str = "/"
    method: str = "GET"
    body_bytes: int = 0
    connections: int = 64
    pipeline: int = 1
    goals: tuple[tuple[str, float], ...] = ()  # peer, least ratio that we promise ourselves

    def for_server(self, name: str) -> Cell:
        """NAME@N asks over N connections."""
        _, _, connections = name.partition("@")
        return replace(self, connections=int(connections)) if connections else self

    @property
    def body(self) -> bytes:
        return b"x" * self.body_bytes


SUITE = "asgi_suite:app"
AHEAD = (("granian", 1.0), ("uvicorn", 1.0))

CELLS = {
    cell.name: cell
    for cell in (
        Cell("asgi", "raw ASGI hello, 64 connections", SUITE, (*ASGI_PEERS, "nginx"), HELLO,
             goals=(("granian", 3.0), ("uvicorn", 3.0), ("nginx", 0.9))),
        Cell("pipelined", "raw ASGI hello, pipelined 16 deep", SUITE, (*ASGI_PEERS, "nginx"), HELLO, pipeline=16,
             goals=(("uvicorn", 10.0),)),
        Cell("wsgi", "raw WSGI hello, one thread", "wsgi_hello:app", WSGI_PEERS, HELLO, interface="wsgi",
             goals=(("granian", 1.7), ("gunicorn-gthread", 15.0))),
        Cell("starlette", "Starlette JSON", "starlette_json:app", ASGI_PEERS, JSON, goals=(("granian", 1.3),)),
        Cell("fastapi", "FastAPI JSON", "fastapi_json:app", ASGI_PEERS, JSON, goals=(("granian", 1.15),)),
        Cell("echo", "echo of 4 KiB", SUITE, ASGI_PEERS, b"x" * 4096, path="/echo", method="POST",
             body_bytes=4096, goals=AHEAD),
        Cell("large", "64 KiB response", SUITE, ASGI_PEERS, b"x" * 65536, path="/large", goals=AHEAD),
        Cell("sleep", "await asyncio.sleep(0.001)", SUITE, ASGI_PEERS, HELLO, path="/sleep", goals=AHEAD),
        Cell("c512", "raw ASGI hello, 512 connections", SUITE, (*ASGI_PEERS, "nginx", "towline@64"), HELLO,
             connections=512, goals=(("towline@64", 0.85),)),
        Cell("c1", "raw ASGI hello, one connection", SUITE, (*ASGI_PEERS, "nginx"), HELLO, connections=1,
             goals=AHEAD),
    )
}  # fmt: skip
