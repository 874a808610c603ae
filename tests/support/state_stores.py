"""Stores of every kind for the tests of what is built on `towline.state`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.support.redis_servers import KINDS, server

STORES = ("embedded", *KINDS)


@contextlib.contextmanager
def store_url(kind: str, folder: Path) -> Iterator[str]:
    """The address of a new store: a directory in the folder, or a server of its own."""
    if kind == "embedded":
        yield str(folder / "store")
        return
    with server(kind) as running:
        yield running.url
