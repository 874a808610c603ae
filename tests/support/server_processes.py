"""Processes of servers that tests run: certificates, environment, start and end, nginx's configuration, programs in Go."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import trustme

from tests.support.interop_app import LARGE, SMALL
from tests.support.patience import PATIENCE

MAX_WAIT = 20.0 * PATIENCE
"""Seconds that anything may take on a busy machine."""
GO = shutil.which("go", path=f"{os.environ.get('PATH', '')}:/usr/local/go/bin")
ROOT = Path(__file__).parents[2]


@dataclasses.dataclass
class Certified:
    """A folder with `key`, `cert` (localhost and 127.0.0.1) and `ca`, the authority of the certificate."""

    folder: Path

    @property
    def key(self) -> str:
        return str(self.folder / "key.pem")

    @property
    def cert(self) -> str:
        return str(self.folder / "cert.pem")

    @property
    def ca(self) -> str:
        return str(self.folder / "ca.pem")

    def issue(self) -> None:
        """Writes the three files."""
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1", "localhost")
        issued.private_key_pem.write_to_path(self.key)
        issued.cert_chain_pems[0].write_to_path(self.cert)
        authority.cert_pem.write_to_path(self.ca)

    def write_pages(self) -> None:
        """Writes `small` and `large`, for servers of files."""
        (self.folder / "small").write_bytes(SMALL)
        (self.folder / "large").write_bytes(LARGE)


def environment() -> dict[str, str]:
    """Variables of this process, with the modules of the tests before those of an existing PYTHONPATH."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


@contextlib.contextmanager
def started(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose output goes to `log`, until the block ends: then it and its children are killed.

    SIGTERM would do, but Hypercorn and Granian wait for the connections that a client keeps.
    """
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment(), start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def until_listening(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Waits until TCP connections to the port are accepted."""
    until = time.monotonic() + MAX_WAIT
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.02)


def nginx_command(program: str, folder: Path, server: str, settings: str = "") -> list[str]:
    """Writes a configuration, and returns the command. `server`, `settings`: lines of its `server` and `http` blocks."""
    (folder / "tmp").mkdir()
    temporary = "".join(
        f"{name}_temp_path {folder}/tmp/{name};"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = folder / "nginx.conf"
    config.write_text(f"""
        {"user root;" if os.getuid() == 0 else ""}
        daemon off; worker_processes 1; pid {folder}/pid; error_log stderr notice;
        events {{ worker_connections 256; }}
        http {{
            access_log off; {temporary} {settings}
            server {{ {server} root {folder}; }}
        }}""")
    return [program, "-e", "stderr", "-c", str(config)]


@functools.cache
def go_program(source: str, version: str, package: str = ".") -> str:
    """The program of a file or a folder of `tests/support/go`, compiled once; `go` finds it in its cache the next time.

    `version`: the oldest Go that compiles it, for the reason of a skipped test. `package`: a program of another project
    that the folder requires.
    """
    if GO is None:
        pytest.skip(f"Go is not installed (https://go.dev/dl, {version} or newer)")
    output = Path(tempfile.mkdtemp(prefix="towline-go-"))
    atexit.register(shutil.rmtree, output, ignore_errors=True)
    path = Path(__file__).parent / "go" / source
    folder, name = (path, package) if path.is_dir() else (path.parent, path.name)
    build = [GO, "build", "-o", str(output / "program"), name]
    done = subprocess.run(build, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"Go does not compile {name} of {source}: {done.stderr.strip()[-500:]}")
    return str(output / "program")


def need(name: str) -> None:
    """Skips the test if a Python package is not installed."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
