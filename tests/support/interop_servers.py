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
class Site(Certified):
    """The folder of a server with /small, /large, a key and a certificate; its port."""

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
def run(site: Site, command: list[str], echo: str | None = None) -> Iterator[Running]:
    log = site.folder / "log"
    with started(command, log) as process:
        until_listening(site.port, process, log)
        yield Running(site.url, site.ca, echo, process)


def nginx(site: Site, settings: str = "") -> contextlib.AbstractContextManager[Running]:
    """`settings`: more lines of its `http` block."""
    if NGINX is None:
        pytest.skip("nginx is not installed (apt: nginx)")
    keys = f"ssl_certificate {site.cert}; ssl_certificate_key {site.key};" if site.tls else ""
    server = f"""
        listen 127.0.0.1:{site.port} {"ssl " if site.tls else ""}http2; {keys}
        location /up/ {{ dav_methods PUT; }}"""
    return run(site, nginx_command(NGINX, site.folder, server, f"client_max_body_size 2m; {settings}"))


def nghttpd(site: Site, *more: str) -> contextlib.AbstractContextManager[Running]:
    if NGHTTPD is None:
        pytest.skip("nghttpd is not installed (apt: nghttp2-server)")
    tls = [site.key, site.cert] if site.tls else []
    options = [
        f"--htdocs={site.folder}",
        "--address=127.0.0.1",
        "--echo-upload",
        *([] if tls else ["--no-tls"]),
        *more,
    ]
    return run(site, [NGHTTPD, *options, str(site.port), *tls], echo="/echo")


def hypercorn(site: Site, settings: str = "") -> contextlib.AbstractContextManager[Running]:
    need("hypercorn")
    tls = ["--keyfile", site.key, "--certfile", site.cert] if site.tls else []
    bind = ["--bind", f"127.0.0.1:{site.port}"]
    config = site.folder / "hypercorn.toml"
    config.write_text(settings)
    options = ["--config", str(config), *bind, *tls]
    command = [sys.executable, "-m", "hypercorn", *options, "tests.support.interop_app:app"]
    return run(site, command, echo="/echo")


def granian(site: Site) -> contextlib.AbstractContextManager[Running]:
    need("granian")
    tls = ["--ssl-keyfile", site.key, "--ssl-certificate", site.cert] if site.tls else []
    bind = ["--host", "127.0.0.1", "--port", str(site.port), "--interface", "asginl", "--http", "2"]
    command = [sys.executable, "-m", "granian", *bind, *tls, "tests.support.interop_app:app"]
    return run(site, command, echo="/echo")


def python_h2(site: Site, limit: int) -> contextlib.AbstractContextManager[Running]:
    """A server on the package `h2` for which a stream above the limit is an error of the connection."""
    keys = [site.key, site.cert] if site.tls else ["", ""]
    module = "tests.support.limited_h2_server"
    return run(site, [sys.executable, "-m", module, str(site.port), str(limit), *keys])


def go(site: Site, limit: int) -> contextlib.AbstractContextManager[Running]:
    """Go's net/http."""
    keys = [site.key, site.cert] if site.tls else []
    program = go_program("limited_h2_server.go", "1.24")
    return run(site, [program, str(site.port), str(limit), *keys])


LIMITED: dict[str, Callable[[Site, int], contextlib.AbstractContextManager[Running]]] = {
    "python-h2": python_h2,
    "hypercorn": lambda site, limit: hypercorn(site, f"h2_max_concurrent_streams = {limit}\n"),
    "nginx": lambda site, limit: nginx(site, f"http2_max_concurrent_streams {limit};"),
    "nghttpd": lambda site, limit: nghttpd(site, f"--max-concurrent-streams={limit}"),
    "go": go,
}
"""Servers that announce a limit of concurrent streams."""


@contextlib.contextmanager
def ours(site: Site) -> Iterator[Running]:
    tls = {"ssl_keyfile": site.key, "ssl_certfile": site.cert} if site.tls else {}
    with towline.testing.serve(app, lifespan="off", **tls) as server:
        yield Running(f"http{'s' if site.tls else ''}://127.0.0.1:{server.port}", site.ca, "/echo")


SERVERS: dict[str, Callable[[Site], contextlib.AbstractContextManager[Running]]] = {
    "nginx": nginx,
    "nghttpd": nghttpd,
    "hypercorn": hypercorn,
    "granian": granian,
    "ours": ours,
}
