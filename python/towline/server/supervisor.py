"""The supervisor: owns the listening sockets and keeps the wanted number of workers serving.

It imports the application only with `--preload` and has no threads, so that forking is safe and the application cannot crash it.
With `--spawn` it forks nothing: its processes are fresh interpreters.
One loop waits for signals and for reports of the workers; after each event `_reconcile` starts, replaces and stops
workers as required.

| signal         | meaning                                                                        |
|----------------|--------------------------------------------------------------------------------|
| TERM           | finish requests in flight, within `timeout_graceful_shutdown`, then exit; with |
|                | `drain_delay` readiness checks fail first, for that time                       |
| INT            | the same, but idle connections are closed at once; a second INT: QUIT          |
| QUIT           | cancel requests in flight and exit                                             |
| HUP            | start workers with new code; the old ones drain when those are ready; with     |
|                | `--reload`, when the terminal was closed: INT                                  |
| TTIN, TTOU     | one worker more, one fewer; of threads: in a new process, the old one drains   |
"""

from __future__ import annotations

import gc
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from .. import _native
from .._imports import collections_paused
from ..config import ServerConfig
from ..errors import ConfigError, Error
from . import listeners, pid_file, processors, spawned
from .acme import Certificates
from .acme_store import prepare as prepare_acme
from .application import Application, load, why_not_importable
from .health import SLOTS, WorkerSlots
from .hooks import HookCaller
from .logs import counted, report_failure
from .process import is_terminal_open
from .progress import Progress
from .reloader import Watcher
from .signal_pipe import SignalPipe
from .spawner import State, Worker, WorkerSpawner, fork
from .statsd import Statsd
from .worker import CANCELLED, FAILED, READY, STARTUP_FAILED, preload
from .workers import RELOAD_GRACE, Workers

logger = logging.getLogger("towline.server")


class Supervisor:
    """Runs until it is stopped by a signal. `run()` returns the exit status: 0, or 3 if start-up failed."""

    def __init__(self, config: ServerConfig) -> None:
        if config.reload and config.workers != 1:
            # One file may serve development and production.
            logger.info("one worker instead of %s, because of --reload", config.workers or "auto")
            config = config.replace(workers=1)
        if not config.workers:
            count, reason = processors.usable(most=SLOTS // 2)
            logger.info("%s: %s", counted(count, "worker"), reason)
            config = config.replace(workers=count)
        if config.worker_mode == "threads" and config.preload:
            config = config.replace(
                preload=False
            )  # all threads have one import as it is, and HUP makes a new one
        if config.reload:
            idle = min(config.timeout_drain_idle, RELOAD_GRACE / 2)
            config = config.replace(timeout_drain_idle=idle, drain_delay=0.0)
            if unloadable := why_not_importable(config):
                raise ConfigError(f"reload: {unloadable}")
        # After `nohup` the end of the terminal is not that of the server.
        self._has_terminal = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and is_terminal_open()
        self._hung_up = False
        """SIGHUP has come, and with `--reload` the end of the terminal is that of the server."""
        self._config = config = spawned.resolved(config)
        self._hooks = HookCaller(config)
        self._progress = Progress(config)
        self._statsd: Statsd | None = None
        self._watcher: Watcher | None = None
        self._certificates: Certificates | None = None
        """Set while the server serves."""
        self._status = 0

    def run(self) -> int:
        try:
            self._hooks.notify("nworkers_changed", self._hooks.server, self._config.workers, None)
            self._config = prepare_acme(self._config)
            application = self._preloaded()
            self._statsd = Statsd.of(self._config)
            self._hooks.call("on_starting", self._hooks.server)
        except Error as error:
            return self._fail(str(error))
        try:
            return self._run(application)
        finally:
            self._hooks.notify("on_exit", self._hooks.server)

    def _run(self, application: Application | None) -> int:
        # Before the port is open: from then on somebody may send signals.
        self._signals = SignalPipe()
        try:
            self._listeners = listeners.open_all(self._config)
        except Error as error:
            self._signals.close()
            return self._fail(str(error))
        self._slots = WorkerSlots()
        self._spawned: spawned.Spawner | None = None
        if self._config.spawn:
            self._slots = WorkerSlots(descriptors=[_native.shared_memory(), _native.shared_memory()])
            self._spawned = spawned.Spawner(self._config, self._slots)
        else:
            with collections_paused():
                preload(self._config)
            # Collections of a worker would write to all objects of this process, and the memory would no longer be shared.
            gc.freeze()
        self._lifeline = os.pipe()
        spawner = WorkerSpawner(
            self._config,
            self._listeners,
            self._slots,
            self._lifeline,
            self._own_descriptors,
            self._hooks,
            application,
            self._spawned,
        )
        self._workers = Workers(self._config, spawner, self._listeners)
        try:
            if self._config.pid_file is not None:
                pid_file.write(self._config.pid_file)
            if self._config.reload:
                self._watcher = Watcher(self._config, self._lifeline[0], self._start)
            self._loop()
        except Error as error:
            return self._fail(str(error))
        finally:
            self._clean_up()
        if not self._status:
            self._progress.stopped()
        return self._status

    def _preloaded(self) -> Application | None:
        """The application with `--preload`. Threads of it do not exist in the workers, as after any fork."""
        if not self._config.preload:
            return None
        application = load(self._config)
        others = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
        if others:
            logger.warning(
                "--preload: the application started threads when it was imported (%s), and workers will not have them",
                ", ".join(others),
            )
        gc.collect()
        return application

    # The loop.

    def _loop(self) -> None:
        self._reconcile(time.monotonic())
        while len(self._workers) or not self._progress.is_stopping:
            for number in self._wait():
                self._on_signal(number)
            for worker in self._workers:
                self._read_reports(worker)
            if self._watcher is not None and not self._progress.is_stopping:
                changed = self._watcher.changed()
                if changed is not None:
                    self._reload(f"{changed} has changed")
            if self._certificates is not None:
                self._certificates.run_due(time.monotonic())
            self._end_with_terminal()
            self._reap()
            self._reconcile(time.monotonic())
            if self._statsd is not None:
                self._statsd.send_due(self._slots.stats, self._workers.loops, time.monotonic())

    def _wait(self) -> list[int]:
        """Wait for an event or the next deadline; returns the signals received."""
        poller = select.poll()
        for fd in self._own_descriptors():
            if fd not in (self._signals.write, *self._sending()):
                poller.register(fd, select.POLLIN)
        poller.poll(max(0.0, self._next_deadline() - time.monotonic()) * 1000 + 1)
        return self._signals.take()

    def _next_deadline(self) -> float:
        now = time.monotonic()
        deadlines = [*self._workers.deadlines(now), self._progress.drain_at]
        watchdog = self._progress.notifier.watchdog(now)
        if watchdog is not None:
            deadlines.append(watchdog)
        if self._statsd is not None:
            deadlines.append(self._statsd.due)
        if self._certificates is not None:
            deadlines.append(self._certificates.due)
        return min(deadlines)

    def _reconcile(self, now: float) -> None:
        self._workers.enforce_deadlines(now)
        if now >= self._progress.drain_at:
            self._stop(quick=False)
        if self._progress.is_stopping:
            return
        self._workers.reconcile(now)
        since = self._progress.reload_since
        if since is not None and not self._workers.are_being_replaced:
            self._progress.reload_ends(self._workers.started_since(since), self._workers.target)

    def _own_descriptors(self) -> Iterator[int]:
        """The descriptors of this process alone. Children close them."""
        yield from self._signals.descriptors()
        yield from self._sending()
        yield from (worker.channel for worker in self._workers if worker.channel >= 0)
        for helper in (self._watcher, self._certificates):
            if helper is not None:
                yield from helper.descriptors()

    def _sending(self) -> Iterator[int]:
        """The descriptors that are only written to."""
        yield from self._progress.notifier.descriptors()
        if self._statsd is not None:
            yield self._statsd.fileno()

    def _start(
        self,
        entry: Callable[..., NoReturn],
        arguments: tuple[Any, ...],
        descriptors: tuple[int, ...],
        channel: int,
    ) -> int:
        """Start a process that is no worker (`Start`)."""
        if self._spawned is not None:
            return self._spawned.start(entry, arguments, descriptors)

        def child() -> NoReturn:
            for fd in (*self._own_descriptors(), self._lifeline[1], channel):
                os.close(fd)
            self._listeners.close()
            entry(*arguments)

        return fork(child)

    # Events.

    def _on_signal(self, number: int) -> None:
        delay, progress = self._config.drain_delay, self._progress
        if number == signal.SIGTERM and delay and progress.has_started and not progress.is_leaving:
            self._slots.stats.begin_stopping()
            progress.leave_begins(delay)
        elif number in (signal.SIGTERM, signal.SIGINT):
            # Ctrl-C: somebody waits for the prompt, and no load balancer for the last response.
            self._stop(quick=self._progress.is_stopping, close_idle=number == signal.SIGINT)
        elif number == signal.SIGQUIT:
            self._stop(quick=True)
        elif number == signal.SIGHUP and not self._progress.is_leaving:
            self._on_hangup()
        elif number == signal.SIGUSR1:
            for worker in self._workers:
                worker.signal(signal.SIGUSR1)
        elif number == signal.SIGTTIN and self._workers.target < SLOTS // 4:
            self._change_target(1)
        elif number == signal.SIGTTOU and self._workers.target > 1:
            self._change_target(-1)

    def _end_with_terminal(self) -> bool:
        """Stop if the terminal was closed. A shell may send SIGHUP before it closes the terminal."""
        is_closed = self._hung_up and not self._progress.is_stopping and not is_terminal_open()
        if is_closed:
            logger.info("the terminal is closed")
            self._stop(quick=False, close_idle=True)
        return is_closed

    def _on_hangup(self) -> None:
        self._hung_up = self._config.reload and self._has_terminal
        if self._end_with_terminal():
            return
        unloadable = None if self._config.preload else why_not_importable(self._config)
        if unloadable and not self._listeners.have_tls:
            logger.error("SIGHUP: refused: %s", unloadable)
            return
        if self._certificates is not None:
            self._certificates.at_once()
        self._hooks.notify("on_reload", self._hooks.server)
        kept = unloadable or ("--preload" if self._config.preload else None)
        self._reload(f"SIGHUP, with the code of the start ({kept})" if kept else "SIGHUP")

    def _change_target(self, change: int) -> None:
        before = self._workers.target
        self._workers.target += change
        logger.info("%s wanted", self._progress.counted(self._workers.target))
        server = self._hooks.server
        server.num_workers = self._workers.target
        self._hooks.notify("nworkers_changed", server, self._workers.target, before)

    def _read_reports(self, worker: Worker) -> None:
        for kind, text in worker.lines():
            if kind == READY:
                self._on_ready(worker, text)
            elif kind == FAILED:
                worker.failure = text
            elif kind == CANCELLED:
                worker.cancelled = int(text)

    def _on_ready(self, worker: Worker, text: str) -> None:
        if not self._workers.became_ready(worker):
            return
        if self._progress.is_stopping:
            return  # the report came together with the signal: all workers have been told to end, and none starts
        if not self._progress.has_started and self._workers.all_serve:
            addresses = ", ".join(listeners.names(self._listeners))
            details = f"{text}, HTTP/3" if self._listeners.udp else text
            self._progress.started(addresses, self._workers.target, details)
            self._hooks.notify("when_ready", self._hooks.server)
            if self._config.acme:
                self._certificates = Certificates(self._config, self._slots.stats, self._start)
        self._workers.relieve(worker)

    def _reap(self) -> None:
        for worker in self._workers:
            try:
                pid, status = os.waitpid(worker.pid, os.WNOHANG)
            except ChildProcessError:
                pid, status = worker.pid, 0  # reaped elsewhere
            if pid:
                self._on_exit(worker, os.waitstatus_to_exitcode(status))
        if os.getpid() == 1:
            self._reap_orphans()

    def _reap_orphans(self) -> None:
        """Reap processes of the application whose parent has ended: the duty of the first process of a container."""
        own = {worker.pid for worker in self._workers}
        own.update(helper.pid for helper in (self._watcher, self._certificates) if helper is not None)
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None or ended.si_pid in own:
                return
            os.waitpid(ended.si_pid, 0)

    def _on_exit(self, worker: Worker, code: int) -> None:
        self._read_reports(worker)
        stopping = self._progress.is_stopping
        if stopping and worker.state is not State.BOOTING:
            # A worker that was killed reports nothing; its slots still count its requests.
            self._progress.cancelled(worker.in_flight if worker.cancelled is None else worker.cancelled)
        self._hooks.notify("child_exit", self._hooks.server, worker.for_hooks)
        failure = self._workers.remove(worker, code, stopping=stopping)
        if failure is not None:
            self._status = self._fail(failure)
            self._stop(quick=True)

    def _reload(self, cause: str) -> None:
        if self._listeners.udp.tickets is not None:
            self._listeners.udp.share_tickets()
        self._progress.reload_begins(cause)
        self._workers.reload(cause)

    def _stop(self, *, quick: bool, close_idle: bool = False) -> None:
        if not self._progress.is_stopping:
            in_flight = sum(worker.in_flight for worker in self._workers)
            self._progress.stop_begins(in_flight, is_silent=bool(self._status))
            self._slots.stats.begin_stopping()
            if self._certificates is not None:
                self._certificates.close()
                self._certificates = None
            self._listeners.close()
        self._workers.stop(quick=quick, close_idle=close_idle)

    # Failure and clean-up.

    def _fail(self, message: str) -> int:
        report_failure(message, as_json=self._config.log_format == "json")
        return STARTUP_FAILED

    def _clean_up(self) -> None:
        os.close(self._lifeline[1])  # ends the watcher, and workers left after an internal error
        for helper in (self._watcher, self._certificates):
            if helper is not None:
                helper.close()
        self._listeners.close()
        self._listeners.remove_unix_sockets()
        self._signals.close()
        self._progress.notifier.close()
        if self._statsd is not None:
            self._statsd.send(self._slots.stats, self._workers.loops)
            self._statsd.close()
        if self._config.pid_file is not None:
            pid_file.remove(self._config.pid_file)
