"""Servers of the bench (towline.bench.subjects), started with the applications of this folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from towline.bench.runner.design import Cores
from towline.bench.subjects import Process, Server, Settings, SubjectFailed, installed, servers

OURS = "towline"
ASGI_SERVERS = (OURS, "granian", "uvicorn-httptools", "hypercorn", "gunicorn-asgi")
APPS = Path(__file__).parent / "apps"


def chosen(names: str) -> Iterator[Server]:
    """The installed servers of a comma-separated list; the others are reported on standard error."""
    known = servers()
    for name in names.split(","):
        if name not in known:
            sys.exit(f"no server is called {name!r}; there are {', '.join(known)}")
        if reason := installed(known[name]):
            print(f"{name} is left out: {reason}", file=sys.stderr)
        else:
            yield known[name]


@contextmanager
def running(server: Server, app: str, *, http3: tuple[Path, Path] | None = None) -> Iterator[Process]:
    """A server that is ready, pinned to a core if there are two; `http3`: over HTTP/3 with this certificate and key.
    Raises `SubjectFailed`."""
    settings = Settings(
        interface="asgi",
        app=app,
        app_folder=APPS,
        cores=Cores.divided().subject,
        protocol="h3" if http3 else None,
        tls=http3,
    )
    with Process(server, settings) as process:
        process.wait_ready()
        yield process


__all__ = ["APPS", "ASGI_SERVERS", "OURS", "SubjectFailed", "chosen", "running"]
