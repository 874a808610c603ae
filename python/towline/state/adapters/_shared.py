"""Parts of several adapters."""

from __future__ import annotations

import hashlib
from typing import Any

import towline.state

from ..async_state import AsyncState

MAX_NAME_BYTES = 200
"""Longer names from outside, such as paths, become a hash: a key of a store is short."""


def short_name(name: str) -> str:
    """The name, or its beginning and a hash of it all if it is long."""
    encoded = name.encode(errors="surrogateescape")
    if len(encoded) <= MAX_NAME_BYTES:
        return name or "-"
    digest = hashlib.blake2b(encoded, digest_size=16).hexdigest()
    return f"{encoded[:64].decode(errors='replace')}#{digest}"


class LazyState:
    """The store of an adapter: a state, or an address that is opened when the first request needs it."""

    def __init__(self, state: AsyncState[Any] | str | None, namespace: str) -> None:
        self._given = state
        self._namespace = namespace
        self._opened: AsyncState[Any] | None = None

    def get(self) -> AsyncState[Any]:
        if self._opened is None:
            given = self._given
            state = given if isinstance(given, AsyncState) else towline.state.open_async(given)
            self._opened = state.namespace(self._namespace, codec="json")
        return self._opened
