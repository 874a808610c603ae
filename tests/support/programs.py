"""Programs of other projects, such as proxies; a program that is not installed skips the test."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process import MAX_WAIT, eventually

ADMIN_FOLDERS = "/usr/sbin:/usr/local/sbin"


def executable(name: str) -> str:
    """The path of a program: TOWLINE_<NAME>, or the one on PATH. Skips the test if it is not installed."""
    folders = f"{os.environ.get('PATH', os.defpath)}:{ADMIN_FOLDERS}"
    path = os.environ.get(f"TOWLINE_{name.upper()}") or shutil.which(name, path=folders)
    if path is None:
        pytest.skip(f"needs {name} (TOWLINE_{name.upper()} or PATH)")
    return path


def free_port() -> int:
    """A port below those that the kernel gives to clients: no connection of another test takes it before its server does."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@contextlib.contextmanager
def listening(command: list[str], port: int, folder: Path) -> Iterator[None]:
    """Runs a program that listens on a port of 127.0.0.1. Its files, and its output as `log`, are in `folder`."""
    log = folder / "log"
    homes = dict.fromkeys(("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"), str(folder))
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, env={**os.environ, **homes})
    try:
        eventually(lambda: process.poll() is not None or _accepts(port), command[0])
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.terminate()
        process.wait(MAX_WAIT)


def _accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False
