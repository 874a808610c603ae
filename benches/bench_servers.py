"""Servers of the bench (towline.bench.subjects), started with the applications of this folder."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from towline.bench.runner.design import Cores
from towline.bench.subjects import Process, Server, Settings, SubjectFailed, installed, servers
from towline.bench.subjects.ports import free_port

OURS = "towline"
ASGI_SERVERS = (OURS, "granian", "uvicorn-httptools", "hypercorn", "gunicorn-asgi")
APPS = Path(__file__).parent / "apps"
START_S = 30.0


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


@contextmanager
def serving(
    app: str,
    *options: str,
    address: str = "127.0.0.1",
    cores: Sequence[int] | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[tuple[int, str]]:
    """`towline serve` with options that no subject of the bench has, such as `--workers`: process id and URL, once it responds.
    `cores`: those to which all its processes are confined."""
    url = f"http://{address}:{free_port()}/"
    command = [sys.executable, "-m", "towline", "serve", app, "--app-dir", str(APPS)]
    command += ["--bind", urlsplit(url).netloc, *options]
    process = subprocess.Popen(
        command,
        env={**os.environ, **(env or {})},
        preexec_fn=None if cores is None else lambda: os.sched_setaffinity(0, cores),
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + START_S
        while not responds(url):
            if time.monotonic() > deadline or process.poll() is not None:
                raise SystemExit(f"{' '.join(command)} does not start")
            time.sleep(0.05)
        yield process.pid, url
    finally:
        process.terminate()
        process.wait()


def responds(url: str) -> bool:
    try:
        return bool(urllib.request.urlopen(url, timeout=5).status == 200)
    except OSError:
        return False


__all__ = ["APPS", "ASGI_SERVERS", "OURS", "SubjectFailed", "chosen", "running", "serving"]
