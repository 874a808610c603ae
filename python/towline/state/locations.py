"""Names of stores: which back end a URL means, and which store belongs to this process."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, cast

from .._state_location import STATE_VARIABLE, scheme_of
from ..errors import StateError
from .backend import AsyncBackend, Backend


def connect(url: str | None, **options: Any) -> Backend:
    url = found(url)
    return cast(Backend, _module(url).connect(url, **options))


def connect_async(url: str | None, **options: Any) -> AsyncBackend:
    url = found(url)
    return cast(AsyncBackend, _module(url).connect_async(url, **options))


def found(url: str | None) -> str:
    """The URL, or that of this process's server. Raises `StateError` if there is neither."""
    if url is None:
        url = os.environ.get(STATE_VARIABLE)
    if not url:
        raise StateError(
            "this process was not started by a server that has a store: give open() a directory or a URL, "
            f"or set {STATE_VARIABLE}"
        )
    return os.fspath(url)


def _module(url: str) -> Any:
    """The module with `connect(url, **options)` and `connect_async(url, **options)`."""
    return import_module(".embedded" if scheme_of(url) == "file" else ".redis", __package__)
