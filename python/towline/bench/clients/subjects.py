"""The clients that can be measured, with an asynchronous or blocking backend, and the interpreter of each."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .worker.job import Backend, Protocol


class Missing(Exception):
    """The interpreter of the client does not exist; the message says which and what to do."""


@dataclass(frozen=True)
class Client:
    """One client with one of its backends."""

    name: str
    """Unique: the blocking client of a library that has both is NAME-sync."""
    library: str
    """The name of the client in an experiment, where all clients have the same backend."""
    backend: Backend
    adapter: str
    """module:Class in worker/adapters."""
    packages: tuple[str, ...]
    """Packages whose versions are recorded."""

    def supports(self, protocol: Protocol) -> bool:
        """Whether it supports the protocol."""
        if protocol == "h3":
            return self.library in HTTP3
        return protocol == "h1" or self.library not in HTTP1_ALONE


def _one(
    library: str,
    backend: Backend,
    adapter: str,
    *packages: str,
    name: str | None = None,
) -> Client:
    return Client(name or library, library, backend, adapter, packages or (library,))


def _both(library: str, asynchronous: str, blocking: str, *packages: str) -> tuple[Client, Client]:
    """Both backends of a library; NAME is the asynchronous one."""
    return (
        _one(library, "async", asynchronous, *packages),
        _one(library, "sync", blocking, *packages, name=f"{library}-sync"),
    )


ENGINES = (
    *_both("towline:httpx", "native:AsyncHttpx", "native:SyncHttpx", "towline", "httpx"),
    _one("towline:urllib3", "sync", "native:SyncUrllib3", "towline", "urllib3"),
    _one("towline:aiohttp", "async", "native:AsyncAiohttp", "towline", "aiohttp"),
)
"""Towline's clients with the transport of another library (`transport="httpx"`)."""

CLIENTS = {
    client.name: client
    for client in (
        *_both("towline", "native:Async", "native:Sync"),
        *_both(
            "towline.httpx2",
            "httpx_family:TowlineHttpx2Async",
            "httpx_family:TowlineHttpx2Sync",
            "towline",
            "httpx2",
        ),
        *_both(
            "towline.httpx",
            "httpx_family:TowlineHttpxAsync",
            "httpx_family:TowlineHttpxSync",
            "towline",
            "httpx",
        ),
        _one("towline.requests", "sync", "requests_family:Towline", "towline", "requests"),
        *ENGINES,
        _one("aiohttp", "async", "aiohttp_client:Async"),
        *_both("httpx", "httpx_family:HttpxAsync", "httpx_family:HttpxSync", "httpx", "httpcore"),
        *_both("httpx2", "httpx_family:Httpx2Async", "httpx_family:Httpx2Sync", "httpx2", "httpcore2"),
        *_both("httpcore", "httpcore_family:HttpcoreAsync", "httpcore_family:HttpcoreSync"),
        *_both("httpcorexyz", "httpcore_family:HttpcorexyzAsync", "httpcore_family:HttpcorexyzSync"),
        _one("urllib3", "sync", "urllib3_client:Sync"),
        _one("requests", "sync", "requests_family:Requests", "requests", "urllib3"),
        *_both("niquests", "requests_family:NiquestsAsync", "requests_family:Niquests"),
        _one("pycurl", "async", "curl:Multi", name="pycurl-multi"),
        _one("pycurl", "sync", "curl:Easy"),
        *_both("pyreqwest", "pyreqwest_client:Async", "pyreqwest_client:Sync"),
        *_both("wreq", "wreq_client:Async", "wreq_client:Sync"),
        *_both("pyqwest", "pyqwest_client:Async", "pyqwest_client:Sync"),
        *_both("httpr", "httpr_client:Async", "httpr_client:Sync"),
        *_both("curl_cffi", "curl_cffi_client:Async", "curl_cffi_client:Sync"),
        *_both("primp", "primp_client:Async", "primp_client:Sync"),
    )
}

DROP_INS = frozenset(
    client.library for client in CLIENTS.values() if client.library.startswith(("towline.", "towline:"))
)
"""Compared with the libraries they replace or use, on request, and not part of other experiments."""


HTTP3 = frozenset({"towline", "niquests"})
"""Libraries with HTTP/3."""
HTTP1_ALONE = frozenset(
    {"aiohttp", "requests", "towline.requests", "urllib3", *(client.library for client in ENGINES)}
)
"""Libraries without HTTP/2, or without HTTP/2 in plain text."""


def of_backend(
    backend: Backend, libraries: Iterable[str] | None = None, protocol: Protocol = "h1"
) -> list[Client]:
    """The clients of an experiment. Without names: all but the drop-ins. Names without this backend or protocol
    are left out."""
    chosen = None if libraries is None else set(libraries)
    return [
        client
        for client in CLIENTS.values()
        if client.backend == backend
        and client.supports(protocol)
        and (
            client.library not in DROP_INS if chosen is None else bool({client.library, client.name} & chosen)
        )
    ]


@dataclass(frozen=True)
class Interpreters:
    """The Python interpreter of each client."""

    named: Mapping[str, Path]
    """From `--client-python NAME=PATH`: for a library, or `all`."""
    default: Path
    """The interpreter of all other clients."""

    @classmethod
    def usual(cls, named: Mapping[str, Path] | None = None, default: Path | None = None) -> Interpreters:
        """The bench's own interpreter."""
        return cls(named or {}, default or Path(sys.executable))

    def of(self, client: Client) -> Path:
        """Raises Missing, with what to do about it."""
        for name in (client.name, client.library, "all"):
            if name in self.named:
                return _existing(self.named[name], client)
        return _existing(self.default, client)


def _existing(path: Path, client: Client) -> Path:
    found = path / "bin" / "python" if path.is_dir() else path
    if not found.exists():
        raise Missing(f"{client.library}: there is no interpreter {found}")
    return found
