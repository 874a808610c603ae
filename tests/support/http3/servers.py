"""HTTP/3 servers and clients of other projects, each in its own process; one that is not installed skips the test.

with SERVERS["quic-go"](Site(folder)) as server:
    ...  # server.url, server.trust; paths /small, /large, /echo of interop_app
responses = quic_go_get("https://127.0.0.1:8443/small", ca=site.ca, count=100, concurrent=10)
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.http3.client import MAX_WAIT, Client
from tests.support.http3.server import free_port
from tests.support.server_processes import (
    Certified,
    go_program,
    need,
    nginx_command,
    started,
    until_listening,
)

FOLDERS = os.pathsep.join(
    filter(None, (os.environ.get("TOWLINE_HTTP3_BIN"), os.environ.get("PATH"), "/usr/sbin"))
)
"""Folders of programs; scripts/http3_interop.sh sets TOWLINE_HTTP3_BIN."""
REQUIRED = bool(os.environ.get("TOWLINE_HTTP3_REQUIRED"))
"""A program that is missing is a failure."""
FEATURES = {
    "curl": (("--version",), "HTTP3"),
    "nginx": (("-V",), "--with-http_v3_module"),
    "haproxy": (("-vv",), "+QUIC "),
    "caddy": (("version",), "2."),
}
"""Options that print the features of a program, and the word among them for HTTP/3."""


@dataclasses.dataclass
class Site(Certified):
    """The folder of a server with a key, a certificate for localhost and 127.0.0.1 and its authority; a free port."""

    port: int = 0

    def __post_init__(self) -> None:
        self.port = self.port or free_port()
        self.issue()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"


@dataclasses.dataclass
class Running:
    url: str
    port: int
    trust: str
    process: subprocess.Popen[bytes]
    has_echo: bool = True


@contextlib.contextmanager
def run(site: Site, command: Sequence[str]) -> Iterator[Running]:
    """Runs a server until the block ends; it is ready when a handshake with it succeeds."""
    log = site.folder / "log"
    with started(command, log) as process:
        _until_ready(site, process, log)
        yield Running(site.url, site.port, site.ca, process)


def _until_ready(site: Site, process: subprocess.Popen[bytes], log: Path) -> None:
    """Sends a first packet every 0.1 s: the library itself would wait for a whole second after one that is lost."""
    until = time.monotonic() + MAX_WAIT
    while True:
        with Client(("127.0.0.1", site.port), wait=False) as client:
            tried = time.monotonic() + 0.5
            while client.handshake is None and time.monotonic() < tried:
                assert process.poll() is None, log.read_text()
                time.sleep(0.02)
            if client.handshake is not None:
                return
        assert time.monotonic() < until, log.read_text()


def aioquic(site: Site, *options: str) -> contextlib.AbstractContextManager[Running]:
    """`options`: --retry, --early."""
    need("aioquic")
    return run(
        site,
        [
            sys.executable,
            "-m",
            "tests.support.http3.server",
            str(site.port),
            site.key,
            site.cert,
            *options,
        ],
    )


def hypercorn(site: Site) -> contextlib.AbstractContextManager[Running]:
    need("hypercorn")
    need("aioquic")
    bind = f"127.0.0.1:{site.port}"
    options = ["--bind", bind, "--quic-bind", bind, "--keyfile", site.key, "--certfile", site.cert]
    return run(site, [sys.executable, "-m", "hypercorn", *options, "tests.support.interop_app:app"])


def quic_go(site: Site, *options: str) -> contextlib.AbstractContextManager[Running]:
    """`options`: -retry, -early."""
    return run(site, [quic_go_program(), "serve", str(site.port), site.key, site.cert, *options])


@contextlib.contextmanager
def nginx(site: Site) -> Iterator[Running]:
    """A server of files, without /echo."""
    site.write_pages()
    server = f"""
        listen 127.0.0.1:{site.port} quic reuseport; listen 127.0.0.1:{site.port} ssl;
        ssl_certificate {site.cert}; ssl_certificate_key {site.key};
        add_header Alt-Svc 'h3=":{site.port}"; ma=60';"""
    with run(site, nginx_command(program("nginx"), site.folder, server)) as running:
        yield dataclasses.replace(running, has_echo=False)


def caddy(site: Site) -> contextlib.AbstractContextManager[Running]:
    site.write_pages()
    echo = {"handler": "static_response", "body": "{http.request.body}"}
    server = {
        "listen": [f"127.0.0.1:{site.port}"],
        "protocols": ["h1", "h2", "h3"],
        "tls_connection_policies": [{}],
        "automatic_https": {"disable": True},
        "routes": [
            {"match": [{"path": ["/echo"]}], "handle": [echo]},
            {"handle": [{"handler": "file_server", "root": str(site.folder)}]},
        ],
    }
    loaded = [{"certificate": site.cert, "key": site.key}]
    config = {
        "admin": {"disabled": True, "config": {"persist": False}},
        "apps": {"http": {"servers": {"test": server}}, "tls": {"certificates": {"load_files": loaded}}},
    }
    path = site.folder / "caddy.json"
    path.write_text(json.dumps(config))
    return run(site, [program("caddy"), "run", "--config", str(path)])


@contextlib.contextmanager
def haproxy(site: Site, backend: int | None = None) -> Iterator[Running]:
    """A proxy before `backend`, a port of HTTP/1.1; by default uvicorn with `interop_app`."""
    command = program("haproxy")
    with contextlib.ExitStack() as stack:
        backend = backend or stack.enter_context(uvicorn())
        # HAProxy reads certificate and key from one file.
        both = site.folder / "both.pem"
        both.write_text(Path(site.cert).read_text() + Path(site.key).read_text())
        config = site.folder / "haproxy.cfg"
        config.write_text(f"""
global
    limited-quic
defaults
    mode http
    timeout connect 5s
    timeout client 20s
    timeout server 20s
frontend test
    bind quic4@127.0.0.1:{site.port} ssl crt {both} alpn h3
    bind 127.0.0.1:{site.port} ssl crt {both} alpn h2,http/1.1
    http-after-response add-header alt-svc 'h3=":{site.port}"; ma=60'
    default_backend application
backend application
    server one 127.0.0.1:{backend}
""")
        yield stack.enter_context(run(site, [command, "-f", str(config)]))


@contextlib.contextmanager
def ours(
    site: Site, *options: str, app: str = "tests.support.interop_app:app", tls: bool = True
) -> Iterator[Running]:
    """`towline serve` over all versions of HTTP, or HTTP/1.1 alone without TLS."""
    pem = ["--ssl-certfile", site.cert, "--ssl-keyfile", site.key, "--http3"] if tls else ["--no-http2"]
    bind = ["--bind", f"127.0.0.1:{site.port}", "--lifespan", "off", "--log-level", "warning"]
    command = [sys.executable, "-m", "towline", "serve", app, *bind, *pem, *options]
    if tls:
        with run(site, command) as running:
            yield running
        return
    with _over_tcp(site.port, command, site.folder / "log") as process:
        yield Running(f"http://127.0.0.1:{site.port}", site.port, site.ca, process)


@contextlib.contextmanager
def uvicorn() -> Iterator[int]:
    """The port of `interop_app` over HTTP/1.1."""
    need("uvicorn")
    port = free_port()
    options = ["--port", str(port), "--log-level", "warning", "--lifespan", "off"]
    command = [sys.executable, "-m", "uvicorn", *options, "tests.support.interop_app:app"]
    with tempfile.TemporaryDirectory(prefix="towline-uvicorn-") as folder:
        with _over_tcp(port, command, Path(folder, "log")):
            yield port


@contextlib.contextmanager
def _over_tcp(port: int, command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with started(command, log) as process:
        until_listening(port, process, log)
        yield process


SERVERS: dict[str, Callable[[Site], contextlib.AbstractContextManager[Running]]] = {
    "aioquic": aioquic,
    "hypercorn": hypercorn,
    "quic-go": quic_go,
    "nginx": nginx,
    "caddy": caddy,
    "haproxy": haproxy,
    "ours": ours,
}
"""Servers with /small, /large and, if `has_echo`, /echo."""


def quic_go_get(
    url: str,
    *,
    ca: str | None = None,
    count: int = 1,
    concurrent: int = 1,
    body: int = 0,
    early: bool = False,
) -> list[dict[str, Any]]:
    """Responses to requests of quic-go's client: status, proto, length, sha256, headers, trailers, error."""
    options = ["-n", str(count), "-c", str(concurrent), "-body", str(body), *(["-early"] if early else [])]
    command = [quic_go_program(), "get", *options, *(["-ca", ca] if ca else []), url]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=3 * MAX_WAIT)
    return [json.loads(line) for line in done.stdout.splitlines()]


@dataclasses.dataclass
class Fetched:
    """Response to curl. `version`: as curl writes it, "3" for HTTP/3."""

    status: int
    version: str
    body: bytes
    headers: dict[str, list[str]]
    connections: int


def curl(url: str, *options: str, ca: str, only: bool = True) -> Fetched:
    """Sends a request with curl: over HTTP/3 without a look at Alt-Svc (`only`), or as curl chooses."""
    version = ["--http3-only"] if only else []
    with tempfile.TemporaryDirectory(prefix="towline-curl-") as folder:
        body = Path(folder, "body")
        form = "%{stderr}%{json}\n%{header_json}"
        limits = ["--silent", "--show-error", "--max-time", str(MAX_WAIT), "--cacert", ca]
        command = [program("curl"), *limits, *version, "-o", str(body), "-w", form, *options, url]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        first, _, rest = done.stderr.partition("\n")
        facts = json.loads(first)
        return Fetched(
            int(facts["response_code"]),
            str(facts["http_version"]),
            body.read_bytes() if body.exists() else b"",
            json.loads(rest),
            int(facts["num_connects"]),
        )


@functools.cache
def program(name: str) -> str:
    """The path of a program that has HTTP/3."""
    found = shutil.which(name, path=FOLDERS)
    if found is not None:
        options, word = FEATURES[name]
        shown = subprocess.run([found, *options], capture_output=True, text=True, check=False)
        if word in shown.stdout + shown.stderr:
            return found
    assert not REQUIRED, f"{name} with HTTP/3 is missing"
    pytest.skip(f"{name} with HTTP/3 is not installed (scripts/http3_interop.sh)")


def quic_go_program() -> str:
    return go_program("http3", "1.26")
