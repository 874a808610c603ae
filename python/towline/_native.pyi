"""The native module, as Python sees it. Held against the real one by mypy.stubtest."""

from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

from .config import Bind, ServerConfig

VERSION: str

SLOT_BYTES: int
"""Size of one worker's slot in the shared page: counters, then what follows."""
SLOT_HEARTBEAT: int
"""Offset in a slot: CLOCK_MONOTONIC nanoseconds (u64, native order) of the native thread's last beat."""
SLOT_LAST_TURN: int
"""Offset in a slot: CLOCK_MONOTONIC nanoseconds (u64, native order) of the loop's last turn."""

_Log: TypeAlias = Callable[[int, str, BaseException | None], None]

def open_listener(address: str, backlog: int) -> int:
    """Open a listening socket (`host:port`, `[v6]:port`, `unix:PATH`, `fd://N`) and return its descriptor.

    Raises OSError with the system's errno, ValueError for an address that is none.
    """

@final
class AsgiServer:
    in_flight: int
    connections: int
    requests: int
    addresses: list[str]
    def __init__(
        self,
        app: Any,
        loop: AbstractEventLoop,
        config: ServerConfig,
        binds: Sequence[Bind],
        *,
        state: dict[str, Any] | None = None,
        slot: memoryview | None = None,
        log: _Log,
    ) -> None: ...
    def fileno(self) -> int: ...
    def turn(self) -> None: ...
    def stop_listening(self) -> None: ...
    def drain(self) -> None: ...
    def cancel_all(self) -> None: ...
    def close(self) -> None: ...

@final
class WsgiServer:
    in_flight: int
    connections: int
    requests: int
    addresses: list[str]
    def __init__(
        self,
        app: Any,
        config: ServerConfig,
        binds: Sequence[Bind],
        *,
        slot: memoryview | None = None,
        log: _Log,
    ) -> None: ...
    def run(self) -> None: ...
    def stop(self) -> None: ...
    def stop_listening(self) -> None: ...
    def drain(self) -> None: ...
