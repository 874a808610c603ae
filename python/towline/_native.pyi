"""The native module, as Python sees it. Held against the real one by mypy.stubtest."""

from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

from .config import Bind, ServerConfig

__all__ = ["VERSION", "AsgiServer", "Board", "Slot", "WsgiServer", "open_listeners"]

VERSION: str

@final
class Board:
    """One slot per worker, in memory that forked processes share."""
    def __new__(cls, slots: int) -> Board: ...
    def __len__(self) -> int: ...
    def slot(self, index: int) -> Slot: ...

@final
class Slot:
    """One worker's counters and signs of life. Times are nanoseconds of `time.monotonic_ns()`."""
    @property
    def index(self) -> int: ...
    @property
    def heartbeat(self) -> int:
        """When the native thread last beat."""
    @property
    def last_turn(self) -> int:
        """When the loop last turned."""
    @property
    def requests(self) -> int:
        """Requests that have ended in this slot, by all its workers."""
    @property
    def in_flight(self) -> int: ...
    def begin(self, pid: int, again: bool) -> None:
        """A worker takes the slot over: counters go on, gauges start again. `again`: it replaces another."""
    def end(self) -> None:
        """The worker is gone."""
    def turned(self) -> None: ...
    def start_heartbeat(self, period: float) -> None:
        """Note this process in the slot, and beat every `period` seconds from a native thread. After the fork."""

_Log: TypeAlias = Callable[[int, str, BaseException | None], None]

def open_listeners(address: str, backlog: int) -> list[int]:
    """Open the listening sockets of `host:port`, `[v6]:port`, `:port`, `unix:PATH` or `fd://N`: descriptors.

    A host name gives one for each of its addresses. Raises OSError; the message names the address.
    """

@final
class AsgiServer:
    """Serves one ASGI application: `loop.add_reader(server.fileno(), server.turn)`, once."""
    def __new__(
        cls,
        app: Any,
        loop: AbstractEventLoop,
        config: ServerConfig,
        binds: Sequence[Bind],
        *,
        state: dict[str, Any] | None = None,
        slot: Slot | None = None,
        log: _Log | None = None,
    ) -> AsgiServer: ...
    @property
    def in_flight(self) -> int:
        """Calls of the application that have not returned."""
    @property
    def connections(self) -> int: ...
    @property
    def requests(self) -> int: ...
    @property
    def addresses(self) -> list[str]: ...
    def fileno(self) -> int: ...
    def turn(self) -> None: ...
    def stop_listening(self) -> None: ...
    def drain(self) -> None:
        """Idle connections close, the others after what is in flight."""
    def cancel_all(self) -> None:
        """Requests in flight are disconnected and cancelled, sockets closed."""
    def reopen_logs(self) -> None:
        """Open the access log's file anew before its next line: it was rotated."""
    def close(self) -> None: ...

@final
class WsgiServer:
    """Serves one WSGI application: `run()` blocks without the GIL until all is drained, or `stop()`."""
    def __new__(
        cls,
        app: Any,
        config: ServerConfig,
        binds: Sequence[Bind],
        *,
        slot: Slot | None = None,
        log: _Log | None = None,
    ) -> WsgiServer: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def connections(self) -> int: ...
    @property
    def requests(self) -> int: ...
    @property
    def addresses(self) -> list[str]: ...
    def run(self) -> None: ...
    def stop(self) -> None: ...
    def stop_listening(self) -> None: ...
    def drain(self) -> None: ...
    def reopen_logs(self) -> None:
        """Open the access log's file anew before its next line: it was rotated."""
