"""State that the workers of a server share: values, counters, messages, locks, rate limits.

    state = towline.state.open()                  # in a worker: the store of its server
    state.set("greeting", "hello", ttl=60)
    state.increment("visits")

    state = towline.state.open_async()            # for an event loop
    async with state.subscribe("chat") as messages: ...

`open("/var/lib/app/state")` is a store that stays, `open("redis://host")` one beyond the machine.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar, overload

from ..errors import (
    LockLost,
    LockTimeout,
    OnceInProgress,
    SlowSubscriber,
    StateClosed,
    StateConflict,
    StateError,
    StateFull,
    StateUnavailable,
)
from . import keys
from .async_state import AsyncLock, AsyncState, AsyncSubscription, AsyncTransaction
from .backend import AsyncBackend, Backend
from .codecs import Codec, codec_of
from .locations import connect, connect_async
from .state import Lock, State, Subscription, Transaction
from .view import Decision, Message

__all__ = [
    "AsyncBackend",
    "AsyncLock",
    "AsyncState",
    "AsyncSubscription",
    "AsyncTransaction",
    "Backend",
    "Codec",
    "Decision",
    "Lock",
    "LockLost",
    "LockTimeout",
    "Message",
    "OnceInProgress",
    "SlowSubscriber",
    "State",
    "StateClosed",
    "StateConflict",
    "StateError",
    "StateFull",
    "StateUnavailable",
    "Subscription",
    "Transaction",
    "open",
    "open_async",
]

V = TypeVar("V")


@overload
def open(
    url: str | None = None, *, codec: Literal["bytes"], namespace: str | None = None, **options: Any
) -> State[bytes]: ...
@overload
def open(
    url: str | None = None,
    *,
    codec: Literal["json", "msgpack"] = "json",
    namespace: str | None = None,
    **options: Any,
) -> State[Any]: ...
@overload
def open(
    url: str | None = None, *, codec: Codec[V], namespace: str | None = None, **options: Any
) -> State[V]: ...
def open(
    url: str | None = None, *, codec: Any = "json", namespace: str | None = None, **options: Any
) -> State[Any]:
    """Open a store for a program that blocks.

    - `url`: None is the store of the server, in a process that `towline serve` has started; a directory (made if it is
      missing), or a URL of another kind of store.
    - `codec`: kind of the values: "json", "bytes", "msgpack", or an object with `dumps` and `loads`.
    - `namespace`: prefix of all keys and channels.
    - `options`: of the kind of store. Of a directory: `size` in bytes, and `when_full`, "error" or "evict".

    Raises `StateError` if there is no store, and `StateUnavailable` if it cannot be opened.
    """
    return State(connect(url, **options), codec_of(codec), _prefix(namespace))


@overload
def open_async(
    url: str | None = None, *, codec: Literal["bytes"], namespace: str | None = None, **options: Any
) -> AsyncState[bytes]: ...
@overload
def open_async(
    url: str | None = None,
    *,
    codec: Literal["json", "msgpack"] = "json",
    namespace: str | None = None,
    **options: Any,
) -> AsyncState[Any]: ...
@overload
def open_async(
    url: str | None = None, *, codec: Codec[V], namespace: str | None = None, **options: Any
) -> AsyncState[V]: ...
def open_async(
    url: str | None = None, *, codec: Any = "json", namespace: str | None = None, **options: Any
) -> AsyncState[Any]:
    """Open a store for an event loop. Opening does not wait for a server."""
    return AsyncState(connect_async(url, **options), codec_of(codec), _prefix(namespace))


def _prefix(namespace: str | None) -> bytes:
    return b"" if namespace is None else keys.nested(b"", namespace)
