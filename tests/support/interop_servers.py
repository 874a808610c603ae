"""Other HTTP/2 servers, each in its own process; a server that is not installed skips the test."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import towline.testing
import trustme

from tests.support.interop_app import LARGE, SMALL, app

MAX_WAIT = 20.0
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


def nghttpd(place: Place) -> contextlib.AbstractContextManager[Running]:
    if NGHTTPD is None:
        pytest.skip("nghttpd is not installed (apt: nghttp2-server)")
    tls = [place.key, place.cert] if place.tls else []
    options = [
        f"--htdocs={place.folder}",
        "--address=127.0.0.1",
        "--echo-upload",
        *([] if tls else ["--no-tls"]),
    ]
    return run(place, [NGHTTPD, *options, str(place.port), *tls], echo="/echo")


def hypercorn(place: Place) -> contextlib.AbstractContextManager[Running]:
    _need("hypercorn")
    tls = ["--keyfile", place.key, "--certfile", place.cert] if place.tls else []
    bind = ["--bind", f"127.0.0.1:{place.port}"]
    command = [sys.executable, "-m", "hypercorn", *bind, *tls, "tests.support.interop_app:app"]
    return run(place, command, echo="/echo")


def granian(place: Place) -> contextlib.AbstractContextManager[Running]:
    _need("granian")
    tls = ["--ssl-keyfile", place.key, "--ssl-certificate", place.cert] if place.tls else []
    bind = ["--host", "127.0.0.1", "--port", str(place.port), "--interface", "asginl", "--http", "2"]
    command = [sys.executable, "-m", "granian", *bind, *tls, "tests.support.interop_app:app"]
    return run(place, command, echo="/echo")


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
