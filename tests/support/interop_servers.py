"""Other HTTP/2 servers, each in its own process; a server that is not installed skips the test."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import towline.testing

from tests.support.interop_app import app
from tests.support.server_processes import (
    Certified,
    go_program,
    need,
    nginx_command,
    started,
    until_listening,
)

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
NGHTTPD = shutil.which("nghttpd")


@dataclasses.dataclass
class Running:
    """`echo`: path that echoes the request body, if there is one."""

    url: str
    trust: str
    echo: str | None = None
    process: subprocess.Popen[bytes] | None = None


@dataclasses.dataclass
class Place(Certified):
    """A folder with /small, /large, a key and a certificate."""

    port: int
    tls: bool

    def __post_init__(self) -> None:
        self.write_pages()
        (self.folder / "up").mkdir()
        self.issue()

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"


@contextlib.contextmanager
def run(place: Place, command: list[str], echo: str | None = None) -> Iterator[Running]:
    log = place.folder / "log"
    with started(command, log) as process:
        until_listening(place.port, process, log)
        yield Running(place.url, place.ca, echo, process)


def nginx(place: Place, settings: str = "") -> contextlib.AbstractContextManager[Running]:
    """`settings`: more lines of its `http` block."""
    if NGINX is None:
        pytest.skip("nginx is not installed (apt: nginx)")
    keys = f"ssl_certificate {place.cert}; ssl_certificate_key {place.key};" if place.tls else ""
    server = f"""
        listen 127.0.0.1:{place.port} {"ssl " if place.tls else ""}http2; {keys}
        location /up/ {{ dav_methods PUT; }}"""
    return run(place, nginx_command(NGINX, place.folder, server, f"client_max_body_size 2m; {settings}"))


def nghttpd(place: Place, *more: str) -> contextlib.AbstractContextManager[Running]:
    if NGHTTPD is None:
        pytest.skip("nghttpd is not installed (apt: nghttp2-server)")
    tls = [place.key, place.cert] if place.tls else []
    options = [
        f"--htdocs={place.folder}",
        "--address=127.0.0.1",
        "--echo-upload",
        *([] if tls else ["--no-tls"]),
        *more,
    ]
    return run(place, [NGHTTPD, *options, str(place.port), *tls], echo="/echo")


def hypercorn(place: Place, settings: str = "") -> contextlib.AbstractContextManager[Running]:
    need("hypercorn")
    tls = ["--keyfile", place.key, "--certfile", place.cert] if place.tls else []
    bind = ["--bind", f"127.0.0.1:{place.port}"]
    config = place.folder / "hypercorn.toml"
    config.write_text(settings)
    options = ["--config", str(config), *bind, *tls]
    command = [sys.executable, "-m", "hypercorn", *options, "tests.support.interop_app:app"]
    return run(place, command, echo="/echo")


def granian(place: Place) -> contextlib.AbstractContextManager[Running]:
    need("granian")
    tls = ["--ssl-keyfile", place.key, "--ssl-certificate", place.cert] if place.tls else []
    bind = ["--host", "127.0.0.1", "--port", str(place.port), "--interface", "asginl", "--http", "2"]
    command = [sys.executable, "-m", "granian", *bind, *tls, "tests.support.interop_app:app"]
    return run(place, command, echo="/echo")


def python_h2(place: Place, limit: int) -> contextlib.AbstractContextManager[Running]:
    """A server on the package `h2` for which a stream above the limit is an error of the connection."""
    keys = [place.key, place.cert] if place.tls else ["", ""]
    module = "tests.support.limited_h2_server"
    return run(place, [sys.executable, "-m", module, str(place.port), str(limit), *keys])


def go(place: Place, limit: int) -> contextlib.AbstractContextManager[Running]:
    """Go's net/http."""
    keys = [place.key, place.cert] if place.tls else []
    program = go_program("limited_h2_server.go", "1.24")
    return run(place, [program, str(place.port), str(limit), *keys])


LIMITED: dict[str, Callable[[Place, int], contextlib.AbstractContextManager[Running]]] = {
    "python-h2": python_h2,
    "hypercorn": lambda place, limit: hypercorn(place, f"h2_max_concurrent_streams = {limit}\n"),
    "nginx": lambda place, limit: nginx(place, f"http2_max_concurrent_streams {limit};"),
    "nghttpd": lambda place, limit: nghttpd(place, f"--max-concurrent-streams={limit}"),
    "go": go,
}
"""Servers that announce a limit of concurrent streams."""


@contextlib.contextmanager
def ours(place: Place) -> Iterator[Running]:
    tls = {"ssl_keyfile": place.key, "ssl_certfile": place.cert} if place.tls else {}
    with towline.testing.serve(app, lifespan="off", **tls) as server:
        yield Running(f"http{'s' if place.tls else ''}://127.0.0.1:{server.port}", place.ca, "/echo")


SERVERS: dict[str, Callable[[Place], contextlib.AbstractContextManager[Running]]] = {
    "nginx": nginx,
    "nghttpd": nghttpd,
    "hypercorn": hypercorn,
    "granian": granian,
    "ours": ours,
}
