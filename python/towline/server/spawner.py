"""The supervisor's side of a worker process: its record, its deadlines, the fork, and signals to it.

```
           ready                retired or stopping            exit
 Booting ─────────▶ Serving ────────────────────────▶ Draining ─────▶ (reaped)
    └───────────────────────────── exit ────────────────────────────▶
```
"""

from __future__ import annotations

import dataclasses
import enum
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable

from .. import _native
from ..config import ServerConfig
from . import signal_handlers
from . import worker as worker_process
from .application import Application
from .health import Health, WorkerSlots, health
from .hooks import HookCaller, HookWorker
from .listeners import Listeners
from .signal_pipe import WATCHED

logger = logging.getLogger("towline.server")

FIRST_RESTART_DELAY = 0.1
MAX_RESTART_DELAY = 30.0
QUICK_EXIT = 2.0
"""Seconds in which a worker that must end at once does; then SIGKILL."""
CONFIRMATION = 0.5
"""Seconds for which bad health must last: after a pause of the whole machine all workers look unhealthy."""


class State(enum.Enum):
    BOOTING = "booting"
    SERVING = "serving"
    DRAINING = "draining"


@dataclasses.dataclass(eq=False)
class Worker:
    """The supervisor's record of a worker process. Times are seconds of `time.monotonic()`."""

    pid: int
    slot: _native.Slot
    channel: int
    started_at: float
    for_hooks: HookWorker
    udp_index: int = 0
    """Number of its UDP sockets. Its replacement has the same."""
    state: State = State.BOOTING
    replaces: Worker | None = None
    """The worker that serves until this one is ready."""
    retiring: bool = False
    """A replacement has been started."""
    outdated: bool = False
    """A reload was requested while it was booting: it is retired as soon as it serves."""
    last_request: int | None = None
    """Retired when its slot's request counter reaches this."""
    kill_at: float | None = None
    unhealthy_since: float | None = None
    again: bool = False
    """The worker replaces another, which the metrics count once it is ready."""
    failures: int = 0
    """Start-ups that have failed in a row before this one."""
    connections_before: int = 0
    """Connection counter of its slot when it was started."""
    failed_replacements: int = 0
    retire_after: float = 0.0
    """No replacement is started before, because start-ups have failed."""
    failure: str = ""
    cancelled: int | None = None
    """Requests that it has not finished, as it has reported."""
    _unread: bytes = b""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal. The process is a child that has not been reaped, so its id cannot have been reused."""
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            pass

    def lines(self) -> Iterable[tuple[str, str]]:
        """The reports since the last call: (kind, text)."""
        try:
            data = os.read(self.channel, 65536)
        except BlockingIOError:
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            kind, _, text = line.decode("ascii").partition(" ")
            yield kind, text.encode("ascii").decode("unicode_escape")

    def enforce_deadlines(self, now: float) -> None:
        """Kill it if it has not ended in time."""
        if self.kill_at is not None and now >= self.kill_at:
            logger.error("worker %d did not end in time: killed", self.pid)
            self.signal(signal.SIGKILL)
            self.kill_at = None

    def enforce_startup(self, startup_timeout: float, now: float) -> None:
        """Abort it if it has not started in time."""
        booting_for = now - self.started_at
        if self.state is State.BOOTING and booting_for > startup_timeout:
            self.failure = f"worker {self.pid} was not ready after {booting_for:.0f} s"
            self.signal(signal.SIGABRT)
            self.kill_at = self.kill_at or now + QUICK_EXIT

    def check_health(self, timeout: float, now: float) -> None:
        """End it if it is stuck, or stopped as a whole, for longer than `timeout`."""
        status = health(self.slot, timeout)
        if status is Health.HEALTHY or self.kill_at is not None:
            self.unhealthy_since = None
            return
        if self.unhealthy_since is None:
            self.unhealthy_since = now
            return
        lasted = now - self.unhealthy_since
        if status is Health.STUCK and lasted >= CONFIRMATION:
            logger.error(
                "worker %d is stuck: its event loop has not run for %g s; its stack follows",
                self.pid,
                timeout,
            )
            self.signal(signal.SIGABRT)
            self.kill_at = now + QUICK_EXIT
        elif status is Health.PAUSED and lasted >= timeout:
            logger.error("worker %d is suspended: killed", self.pid)
            self.signal(signal.SIGKILL)
            self.kill_at = now + QUICK_EXIT


@dataclasses.dataclass
class Vacancy:
    """A worker that is missing, and when it may be started. Each has its own back-off."""

    failures: int = 0
    """Start-ups that have failed in a row."""
    due: float = 0.0
    again: bool = False
    """The missing worker has died."""


def restart_delay(failures: int) -> float:
    """Seconds before a worker is started again after this many failed start-ups in a row: none for the first."""
    return (
        0.0
        if failures < 2
        else float(min(FIRST_RESTART_DELAY * 2 ** min(failures - 2, 20), MAX_RESTART_DELAY))
    )


@dataclasses.dataclass(frozen=True)
class WorkerSpawner:
    """Forks workers. `inherited`: the supervisor's descriptors, which a child must close."""

    config: ServerConfig
    listeners: Listeners
    slots: WorkerSlots
    lifeline: tuple[int, int]
    inherited: Callable[[], Iterable[int]]
    hooks: HookCaller
    application: Application | None = None
    """Imported before the fork (`--preload`)."""

    def spawn(self, udp_index: int, *, has_predecessor: bool = False, imports_again: bool = False) -> Worker:
        """Fork one worker. `has_predecessor`: another one with these sockets serves until it is ready.

        `imports_again`: after a reload. Raises OSError if the fork fails, IndexError if no slot is free, `StartupError`
        without UDP sockets.
        """
        self.listeners.udp.sockets(udp_index)
        slot = self.slots.acquire()
        for_hooks = self.hooks.new_worker()
        self.hooks.notify("pre_fork", self.hooks.server, for_hooks)
        read, write = os.pipe()
        os.set_blocking(read, False)
        context = worker_process.WorkerContext(
            self.config,
            [],
            slot,
            write,
            self.lifeline[0],
            self.hooks,
            for_hooks,
            self.application,
            has_predecessor,
            imports_again,
        )
        try:
            pid = fork(lambda: self._child_main(context, udp_index, read))
        except OSError:
            os.close(read)
            self.slots.release(slot)
            raise
        finally:
            os.close(write)
        for_hooks.pid = pid
        return Worker(
            pid, slot, read, time.monotonic(), for_hooks, udp_index, connections_before=slot.connections
        )

    def _child_main(self, context: worker_process.WorkerContext, udp_index: int, read: int) -> None:
        for fd in (*self.inherited(), self.lifeline[1], read):
            os.close(fd)
        binds = self.listeners.of_worker(udp_index)
        self.listeners.udp.close_except(udp_index)
        context.for_hooks.pid = os.getpid()
        worker_process.main(dataclasses.replace(context, binds=binds))


def fork(child: Callable[[], None]) -> int:
    """Fork with a clean signal state: `child` must never return. It has default handlers, and ignores what is sent to
    the whole process group, by Ctrl-C or when a terminal is closed: only the supervisor handles it. After `nohup` it
    stays ignored in programs that the application starts."""
    handled = signal.valid_signals()
    signal.pthread_sigmask(signal.SIG_BLOCK, handled)
    try:
        pid = os.fork()
        if pid:
            return pid
        try:
            nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            for number in (*WATCHED, worker_process.CLOSE_IDLE):
                if not (nohup and number is signal.SIGHUP):
                    signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            # SIGUSR1 would end the worker before it has a log to reopen.
            for number in (signal.SIGINT, signal.SIGUSR1, *(() if nohup else (signal.SIGHUP,))):
                signal_handlers.ignore(number)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
            child()
        finally:
            os._exit(1)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
