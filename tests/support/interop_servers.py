"""Other HTTP/2 servers, each in its own process; a server that is not installed skips the test."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import towline.testing
import trustme

from tests.support.interop_app import LARGE, SMALL, app

MAX_WAIT = 20.0
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
GO = shutil.which("go", path=f"{os.environ.get('PATH', '')}:/usr/local/go/bin")
NGHTTPD = shutil.which("nghttpd")


@dataclasses.dataclass
class Running:
    """`echo`: path that echoes the request body, if there is one."""

    url: str
    trust: str
    echo: str | None = None
    process: subprocess.Popen[bytes] | None = None


@dataclasses.dataclass
class Place:
    """A folder with /small, /large, a key and a certificate."""

    folder: Path
    port: int
    tls: bool

    def __post_init__(self) -> None:
        (self.folder / "small").write_bytes(SMALL)
        (self.folder / "large").write_bytes(LARGE)
        (self.folder / "up").mkdir()
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(self.key)
        issued.cert_chain_pems[0].write_to_path(self.cert)
        authority.cert_pem.write_to_path(self.trust)

    @property
    def key(self) -> str:
        return str(self.folder / "key.pem")

    @property
    def cert(self) -> str:
        return str(self.folder / "cert.pem")

    @property
    def trust(self) -> str:
        return str(self.folder / "ca.pem")

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"


@contextlib.contextmanager
def run(place: Place, command: list[str], echo: str | None = None) -> Iterator[Running]:
    log = place.folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, env={**os.environ, "PYTHONPATH": os.getcwd()}
        )
    try:
        until = time.monotonic() + MAX_WAIT
        while True:
            try:
                socket.create_connection(("127.0.0.1", place.port)).close()
                break
            except OSError:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < until, log.read_text()
                time.sleep(0.02)
        yield Running(place.url, place.trust, echo, process)
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def nginx(place: Place, settings: str = "") -> contextlib.AbstractContextManager[Running]:
    """`settings`: more lines of its `http` block."""
    if NGINX is None:
        pytest.skip("nginx is not installed (apt: nginx)")
    (place.folder / "tmp").mkdir()
    temporary = "".join(
        f"{name}_temp_path {place.folder}/tmp/{name};"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    keys = f"ssl_certificate {place.cert}; ssl_certificate_key {place.key};" if place.tls else ""
    config = place.folder / "nginx.conf"
    config.write_text(f"""
        {"user root;" if os.getuid() == 0 else ""}
        daemon off; worker_processes 1; pid {place.folder}/pid; error_log stderr notice;
        events {{ worker_connections 256; }}
        http {{
            access_log off; {temporary} client_max_body_size 2m; {settings}
            server {{
                listen 127.0.0.1:{place.port} {"ssl " if place.tls else ""}http2; {keys}
                root {place.folder};
                location /up/ {{ dav_methods PUT; }}
            }}
        }}""")
    return run(place, [NGINX, "-e", "stderr", "-c", str(config)])


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
    _need("hypercorn")
    tls = ["--keyfile", place.key, "--certfile", place.cert] if place.tls else []
    bind = ["--bind", f"127.0.0.1:{place.port}"]
    config = place.folder / "hypercorn.toml"
    config.write_text(settings)
    options = ["--config", str(config), *bind, *tls]
    command = [sys.executable, "-m", "hypercorn", *options, "tests.support.interop_app:app"]
    return run(place, command, echo="/echo")


def granian(place: Place) -> contextlib.AbstractContextManager[Running]:
    _need("granian")
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
    if GO is None:
        pytest.skip("Go is not installed (https://go.dev/dl, 1.24 or newer)")
    keys = [place.key, place.cert] if place.tls else []
    return run(place, [_go_binary(GO), str(place.port), str(limit), *keys])


@functools.cache
def _go_binary(go: str) -> str:
    """The server, compiled once; `go` finds it in its cache the next time."""
    folder = Path(tempfile.mkdtemp(prefix="towline-go-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source = Path(__file__).parent / "go" / "limited_h2_server.go"
    build = [go, "build", "-o", str(folder / "server"), str(source)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"Go does not compile the server: {done.stderr.strip()}")
    return str(folder / "server")


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
        yield Running(f"http{'s' if place.tls else ''}://127.0.0.1:{server.port}", place.trust, "/echo")


SERVERS: dict[str, Callable[[Place], contextlib.AbstractContextManager[Running]]] = {
    "nginx": nginx,
    "nghttpd": nghttpd,
    "hypercorn": hypercorn,
    "granian": granian,
    "ours": ours,
}


def _need(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
