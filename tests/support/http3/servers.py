"""HTTP/3 servers and clients of other projects, each in its own process; one that is not installed skips the test.

with SERVERS["quic-go"](Place(folder)) as server:
    ...  # server.url, server.trust; paths /small, /large, /echo of interop_app
responses = quic_go_get("https://127.0.0.1:8443/small", ca=place.ca, count=100, concurrent=10)
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import importlib.util
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
import trustme

from tests.support.http3.client import MAX_WAIT, Client
from tests.support.http3.server import free_port

GO = shutil.which("go", path=f"{os.environ.get('PATH', '')}:/usr/local/go/bin")
GO_MODULE = Path(__file__).parents[1] / "go" / "http3"


@dataclasses.dataclass
class Place:
    """A folder with a key, a certificate for localhost and 127.0.0.1, its authority, and a free port."""

    folder: Path
    port: int = 0

    def __post_init__(self) -> None:
        self.port = self.port or free_port()
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1", "localhost")
        issued.private_key_pem.write_to_path(self.key)
        issued.cert_chain_pems[0].write_to_path(self.cert)
        authority.cert_pem.write_to_path(self.ca)

    @property
    def key(self) -> str:
        return str(self.folder / "key.pem")

    @property
    def cert(self) -> str:
        return str(self.folder / "cert.pem")

    @property
    def ca(self) -> str:
        return str(self.folder / "ca.pem")

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"


@dataclasses.dataclass
class Running:
    url: str
    port: int
    trust: str
    process: subprocess.Popen[bytes]


@contextlib.contextmanager
def run(place: Place, command: Sequence[str]) -> Iterator[Running]:
    """Runs a server until the block ends; it is ready when a handshake with it succeeds."""
    log = place.folder / "log"
    with log.open("wb") as out:
        environment = {**os.environ, "PYTHONPATH": os.getcwd()}
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
    try:
        _until_ready(place, process, log)
        yield Running(place.url, place.port, place.ca, process)
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until_ready(place: Place, process: subprocess.Popen[bytes], log: Path) -> None:
    """Sends a first packet every 0.1 s: the library itself would wait for a whole second after one that is lost."""
    until = time.monotonic() + MAX_WAIT
    while True:
        with Client(("127.0.0.1", place.port), wait=False) as client:
            tried = time.monotonic() + 0.5
            while client.handshake is None and time.monotonic() < tried:
                assert process.poll() is None, log.read_text()
                time.sleep(0.02)
            if client.handshake is not None:
                return
        assert time.monotonic() < until, log.read_text()


def aioquic(place: Place, *options: str) -> contextlib.AbstractContextManager[Running]:
    """`options`: --retry, --early."""
    _need("aioquic")
    return run(
        place,
        [
            sys.executable,
            "-m",
            "tests.support.http3.server",
            str(place.port),
            place.key,
            place.cert,
            *options,
        ],
    )


def hypercorn(place: Place) -> contextlib.AbstractContextManager[Running]:
    _need("hypercorn")
    _need("aioquic")
    bind = f"127.0.0.1:{place.port}"
    options = ["--bind", bind, "--quic-bind", bind, "--keyfile", place.key, "--certfile", place.cert]
    return run(place, [sys.executable, "-m", "hypercorn", *options, "tests.support.interop_app:app"])


def quic_go(place: Place, *options: str) -> contextlib.AbstractContextManager[Running]:
    """`options`: -retry, -early."""
    return run(place, [quic_go_program(), "serve", str(place.port), place.key, place.cert, *options])


SERVERS: dict[str, Callable[[Place], contextlib.AbstractContextManager[Running]]] = {
    "aioquic": aioquic,
    "hypercorn": hypercorn,
    "quic-go": quic_go,
}
"""Servers with /small, /large and /echo."""


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


@functools.cache
def quic_go_program() -> str:
    """The program of `tests/support/go/http3`, compiled once; `go` finds it in its cache the next time."""
    if GO is None:
        pytest.skip("Go is not installed (https://go.dev/dl, 1.26 or newer)")
    folder = Path(tempfile.mkdtemp(prefix="towline-go-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    program = str(folder / "http3")
    build = [GO, "build", "-o", program, "."]
    done = subprocess.run(build, cwd=GO_MODULE, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"Go does not compile the program: {done.stderr.strip()[-500:]}")
    return program


def _need(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
