"""Pairs of server and client library: the subjects of the webhooks suite."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ...errors import ConfigError
from ..subjects import Server

PAIRS = (
    ("towline", "towline"),
    ("uvicorn-httptools", "httpx"),
    ("uvicorn-httptools", "httpx2"),
    ("granian", "aiohttp"),
    ("uvicorn-httptools", "aiohttp"),
    ("hypercorn", "httpx"),
)
"""Default pairs: SERVER+CLIENT, for any server with ASGI."""
CLIENTS: Mapping[str, tuple[str, ...]] = {
    "towline": ("towline",),
    "httpx": ("httpx", "httpcore"),
    "httpx2": ("httpx2", "httpcore2"),
    "aiohttp": ("aiohttp",),
}
"""The libraries that the application can forward with, and the distributions whose versions are recorded."""
OURS = "towline"


@dataclass(frozen=True)
class Pair:
    """One subject. `towline` is the pair of Towline's server and client, the baseline; others are SERVER+CLIENT."""

    name: str
    server: Server
    client: str


def pairs(servers: Mapping[str, Server], names: Iterable[str] | None = None) -> list[Pair]:
    """Raises `ConfigError` for an invalid name, with the valid ones."""
    wanted = [f"{server}+{client}" for server, client in PAIRS] if names is None else list(names)
    return [_pair(servers, name) for name in wanted]


def _pair(servers: Mapping[str, Server], name: str) -> Pair:
    server_name, plus, client = name.partition("+")
    if name == OURS:
        server_name, plus, client = OURS, "+", OURS
    server = servers.get(server_name)
    if not plus or server is None or "asgi" not in server.interfaces or client not in CLIENTS:
        able = ", ".join(
            one.name for one in servers.values() if "asgi" in one.interfaces and one.name != "native"
        )
        raise ConfigError(
            f"{name!r} is no pair: write SERVER+CLIENT with one of {able} and one of {', '.join(CLIENTS)}"
        )
    shown = OURS if server_name == client == OURS else f"{server_name}+{client}"
    # The server's interpreter runs the library, so it must be installed there.
    packages = dict.fromkeys((*server.packages, *CLIENTS[client]))
    return Pair(shown, replace(server, name=shown, packages=tuple(packages)), client)
