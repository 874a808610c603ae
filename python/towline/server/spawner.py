"""The supervisor's side of a worker process: its record, its deadlines, its start, and signals to it.

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
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from .. import _native
from ..config import ServerConfig
from . import signal_handlers
from . import worker as worker_process
from .application import Application
from .health import Health, WorkerSlots, health, is_old
from .hooks import HookCaller, HookWorker
from .listeners import Listeners
from .loops import CLOSE_IDLE
from .signal_pipe import WATCHED

if TYPE_CHECKING:
    from .spawned import Spawner

logger = logging.getLogger("towline.server")

Start = Callable[[Callable[..., NoReturn], tuple[Any, ...], tuple[int, ...], int], int]
"""Starts a process that is no worker: its function with arguments, their descriptors, and one that it must not have. Returns
its id."""
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
    slots: Sequence[_native.Slot]
    """One for each of its event loops."""
    channel: int
    started_at: float
    for_hooks: HookWorker
    numbers: Sequence[int]
    """Numbers of its event loops and their UDP sockets. Its replacement has the same."""
    state: State = State.BOOTING
    replaces: Worker | None = None
    """The worker that serves until this one is ready."""
    retiring: bool = False
    """A replacement has been started."""
    outdated: bool = False
    """A reload was requested while it was booting: it is retired as soon as it serves."""
    last_request: int | None = None
    """Retired when its `requests` reach this."""
    kill_at: float | None = None
    unhealthy_since: float | None = None
    again: bool = False
    """The worker replaces another, which the metrics count once it is ready."""
    failures: int = 0
    """Start-ups that have failed in a row before this one."""
    connections_before: int = 0
    """The `connections` when it was started."""
    failed_replacements: int = 0
    retire_after: float = 0.0
    """No replacement is started before, because start-ups have failed."""
    failure: str = ""
    cancelled: int | None = None
    """Requests that it has not finished, as it has reported."""
    _unread: bytes = b""

    @property
    def requests(self) -> int:
        """Completed requests of all workers that have had these slots."""
        return sum(slot.requests for slot in self.slots)

    @property
    def connections(self) -> int:
        """Connections accepted by all workers that have had these slots."""
        return sum(slot.connections for slot in self.slots)

    @property
    def in_flight(self) -> int:
        return sum(slot.in_flight for slot in self.slots)

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

    def check_health(self, timeout: float, now: float) -> str:
        """End it if it is stuck, or stopped as a whole, for longer than `timeout`.

        If only some of its loops are stuck, it is to be replaced: the reason, else nothing.
        """
        status = health(self.slots, timeout)
        if status is Health.HEALTHY or self.kill_at is not None:
            self.unhealthy_since = None
            return ""
        if self.unhealthy_since is None:
            self.unhealthy_since = now
            return ""
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
        elif status is Health.PARTLY_STUCK and lasted >= CONFIRMATION:
            stuck = [
                str(number)
                for number, slot in zip(self.numbers, self.slots, strict=True)
                if is_old(slot, timeout)
            ]
            return f"loop {', '.join(stuck)} of {len(self.slots)} is stuck: it has not run for {timeout:g} s"
        return ""


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
    """Starts workers, in forks or with `spawned` in fresh interpreters. `inherited`: the supervisor's descriptors, which a
    fork must close."""

    config: ServerConfig
    listeners: Listeners
    slots: WorkerSlots
    lifeline: tuple[int, int]
    inherited: Callable[[], Iterable[int]]
    hooks: HookCaller
    application: Application | None = None
    """Imported before the fork (`--preload`)."""
    spawned: Spawner | None = None

    def spawn(
        self, numbers: Sequence[int], *, served: Sequence[int] = (), imports_again: bool = False
    ) -> Worker:
        """Start one worker, with an event loop for each of `numbers`. Another worker serves those in `served` until it is
        ready.

        `imports_again`: after a reload. Raises OSError if that fails, IndexError if no slot is free, `StartupError`
        without UDP sockets.
        """
        for number in numbers:
            self.listeners.udp.sockets(number)
        slots = self.slots.acquire(len(numbers))
        loops = [
            worker_process.LoopContext(number, slot, number in served, self.listeners.of_worker(number))
            for number, slot in zip(numbers, slots, strict=True)
        ]
        for_hooks = self.hooks.new_worker()
        self.hooks.notify("pre_fork", self.hooks.server, for_hooks)
        read, write = os.pipe()
        os.set_blocking(read, False)
        context = worker_process.WorkerContext(
            self.config,
            loops,
            write,
            self.lifeline[0],
            self.hooks,
            for_hooks,
            self.application,
            imports_again,
        )
        try:
            if self.spawned is None:
                pid = fork(lambda: self._child_main(context, read))
            else:
                pid = self.spawned.start(worker_process.main, (context,), context.descriptors())
        except OSError:
            os.close(read)
            self.slots.release(slots)
            raise
        finally:
            os.close(write)
        for_hooks.pid = pid
        worker = Worker(pid, slots, read, time.monotonic(), for_hooks, numbers)
        worker.connections_before = worker.connections
        return worker

    def _child_main(self, context: worker_process.WorkerContext, read: int) -> None:
        for fd in (*self.inherited(), self.lifeline[1], read):
            os.close(fd)
        self.listeners.udp.close_except(loop.number for loop in context.loops)
        context.for_hooks.pid = os.getpid()
        worker_process.main(context)


def fork(child: Callable[[], None]) -> int:
    """Fork with a clean signal state: `child` must never return."""
    handled = signal.valid_signals()
    signal.pthread_sigmask(signal.SIG_BLOCK, handled)
    try:
        pid = os.fork()
        if pid:
            return pid
        try:
            child_signals(nohup=signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
            child()
        finally:
            os._exit(1)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)


def child_signals(*, nohup: bool) -> None:
    """Set the handlers of a new process of the server: default ones. It ignores what is sent to the whole process group, by
    Ctrl-C or when a terminal is closed: only the supervisor handles it. After `nohup` it stays ignored in programs that
    the application starts."""
    for number in (*WATCHED, CLOSE_IDLE):
        ignored = nohup and number is signal.SIGHUP
        signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # SIGUSR1 would end the worker before it has a log to reopen.
    for number in (signal.SIGINT, signal.SIGUSR1, *(() if nohup else (signal.SIGHUP,))):
        signal_handlers.ignore(number)
