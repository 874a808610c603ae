"""The pid file of a server."""

from __future__ import annotations

import os

from .. import _native
from ..errors import Error


def write(path: str) -> None:
    """Raises `Error`."""
    try:
        with open(_native.open_output(path), "w", encoding="ascii") as file:
            file.write(f"{os.getpid()}\n")
    except OSError as error:
        raise Error(f"cannot write the pid file {path}: {error.strerror or error}") from None


def remove(path: str) -> None:
    """Remove it, unless it is that of a server that was started meanwhile."""
    try:
        with open(path, encoding="ascii") as file:
            is_ours = file.read(32) == f"{os.getpid()}\n"
        if is_ours:
            os.unlink(path)
    except (OSError, ValueError):
        pass
