"""The supervisor: owns the listening sockets and keeps the wanted number of workers serving.

It imports the application only with `--preload` and has no threads, so that forking is safe and the application cannot crash it.
One loop waits for signals and for reports of the workers; after each event `_reconcile` starts, replaces and stops
workers as required.

| signal         | meaning                                                                        |
|----------------|--------------------------------------------------------------------------------|
| TERM           | finish requests in flight, within `timeout_graceful_shutdown`, then exit       |
| INT            | the same, but idle connections are closed at once; a second INT: QUIT          |
| QUIT           | cancel requests in flight and exit                                             |
| HUP            | start workers with new code; the old ones drain when those are ready; with     |
|                | `--reload`, when the terminal was closed: INT                                  |
| TTIN, TTOU     | one worker more, one fewer                                                     |
"""

from __future__ import annotations

import gc
import logging
import os
import random
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator

from .. import _native
from .._imports import collections_paused
from ..config import ServerConfig
from ..errors import ConfigError, Error, StartupError
from . import listeners, pid_file, reloader
from .application import Application, load, why_not_importable
from .health import MIB, SLOTS, WorkerSlots, resident_bytes
from .hooks import HookCaller
from .notify import Notifier
from .process import is_terminal_open
from .signal_pipe import SignalPipe
from .spawner import QUICK_EXIT, State, Vacancy, Worker, WorkerSpawner, fork, restart_delay
from .statsd import Statsd
from .worker import CLOSE_IDLE, FAILED, READY, STARTUP_FAILED, preload

logger = logging.getLogger("towline.server")

EXIT_MARGIN = 6.0
"""Seconds after the drain deadline for cancellation, lifespan shutdown and exit; then SIGKILL."""
RELOAD_GRACE = 1.0
"""With --reload an open stream must not keep the old code running for long."""
REQUEST_POLL = 0.05
MEMORY_POLL = 1.0
STABLE_AFTER = 10.0
"""Seconds after which a worker that nobody has used, and that dies, is not taken for a failed start-up."""


class Supervisor:
    """Runs until it is stopped by a signal. `run()` returns the exit status: 0, or 3 if start-up failed."""

    def __init__(self, config: ServerConfig) -> None:
        if config.reload and config.workers > 1:
            # One file may serve development and production.
            logger.info("one worker instead of %d, because of --reload", config.workers)
            config = config.replace(workers=1)
        if config.reload:
            config = config.replace(timeout_drain_idle=min(config.timeout_drain_idle, RELOAD_GRACE / 2))
            if unloadable := why_not_importable(config):
                raise ConfigError(f"reload: {unloadable}")
        # After `nohup` the end of the terminal is not that of the server.
        self._has_terminal = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and is_terminal_open()
        self._config = config
        self._target = config.workers
        self._workers: list[Worker] = []
        self._vacancies: list[Vacancy] = []
        self._stopping = False
        self._ever_ready = False
        self._announced = False
        self._status = 0
        self._next_memory_check = 0.0
        self._watcher: tuple[int, int] | None = None  # process id and channel
        self._await_change = False
        self._stopping_since = 0.0
        self._requests_before = 0  # completed when the stop began
        self._reloading = False
        self._has_reloaded = False
        self._notifier = Notifier()
        self._statsd: Statsd | None = None
        self._hooks = HookCaller(config)

    def run(self) -> int:
        try:
            self._hooks.notify("nworkers_changed", self._hooks.server, self._target, None)
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
        with collections_paused():
            preload(self._config)
        # Collections of a worker would write to all objects of this process, and the memory would no longer be shared.
        gc.freeze()
        self._lifeline = os.pipe()
        self._spawner = WorkerSpawner(
            self._config,
            self._listeners,
            WorkerSlots(),
            self._lifeline,
            self._own_descriptors,
            self._hooks,
            application,
        )
        try:
            if self._config.pid_file is not None:
                pid_file.write(self._config.pid_file)
            if self._config.reload:
                self._start_watcher()
            self._loop()
        except Error as error:
            return self._fail(str(error))
        finally:
            self._clean_up()
        if not self._status:
            finished = self._spawner.slots.requests() - self._requests_before
            logger.info(
                "stopped after %.1f s, %d request%s finished",
                time.monotonic() - self._stopping_since,
                finished,
                "" if finished == 1 else "s",
            )
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
        while self._workers or not self._stopping:
            for number in self._wait():
                self._on_signal(number)
            for worker in list(self._workers):
                self._read_reports(worker)
            self._read_watcher()
            self._reap()
            self._reconcile(time.monotonic())
            if self._statsd is not None:
                self._statsd.send_due(self._spawner.slots.stats, len(self._workers), time.monotonic())

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
        deadlines = [now + min(1.0, self._config.timeout_worker_healthcheck / 4)]
        if self._config.limit_max_requests is not None and not self._stopping:
            deadlines.append(now + REQUEST_POLL)
        watchdog = self._notifier.watchdog(now)
        if watchdog is not None:
            deadlines.append(watchdog)
        if self._statsd is not None:
            deadlines.append(self._statsd.due)
        deadlines += [vacancy.due for vacancy in self._vacancies if vacancy.due > now]
        deadlines += [worker.kill_at for worker in self._workers if worker.kill_at is not None]
        return min(deadlines)

    def _own_descriptors(self) -> Iterator[int]:
        """The descriptors of this process alone. Children close them."""
        yield from self._signals.descriptors()
        yield from self._sending()
        yield from (worker.channel for worker in self._workers if worker.channel >= 0)
        if self._watcher is not None:
            yield self._watcher[1]

    def _sending(self) -> Iterator[int]:
        """The descriptors that are only written to."""
        yield from self._notifier.descriptors()
        if self._statsd is not None:
            yield self._statsd.fileno()

    # Events.

    def _on_signal(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            # Ctrl-C: somebody waits for the prompt, and no load balancer for the last response.
            is_interrupt = number == signal.SIGINT
            self._stop(quick=self._stopping, close_idle=is_interrupt)
        elif number == signal.SIGQUIT:
            self._stop(quick=True)
        elif number == signal.SIGHUP and not self._stopping:
            self._on_hangup()
        elif number == signal.SIGUSR1:
            for worker in self._workers:
                worker.signal(signal.SIGUSR1)
        elif number == signal.SIGTTIN and self._target < SLOTS // 4:
            self._change_target(1)
        elif number == signal.SIGTTOU and self._target > 1:
            self._change_target(-1)

    def _on_hangup(self) -> None:
        if self._config.reload and self._has_terminal and not is_terminal_open():
            logger.info("the terminal is closed")
            self._stop(quick=False, close_idle=True)
            return
        unloadable = None if self._config.preload else why_not_importable(self._config)
        if unloadable and not self._config.ssl_certfile:
            logger.error("SIGHUP: refused: %s", unloadable)
            return
        self._hooks.notify("on_reload", self._hooks.server)
        kept = unloadable or ("--preload" if self._config.preload else None)
        self._reload(f"SIGHUP, with the code of the start ({kept})" if kept else "SIGHUP")

    def _change_target(self, change: int) -> None:
        self._target += change
        logger.info("%d workers wanted", self._target)
        server = self._hooks.server
        server.num_workers = self._target
        self._hooks.notify("nworkers_changed", server, self._target, self._target - change)

    def _read_reports(self, worker: Worker) -> None:
        for kind, text in worker.lines():
            if kind == READY:
                self._on_ready(worker, text)
            elif kind == FAILED:
                worker.failure = text

    def _on_ready(self, worker: Worker, text: str) -> None:
        if worker.state is not State.BOOTING:
            return
        worker.state = State.SERVING
        if worker.again:
            self._spawner.slots.stats.worker_replaced()
        logger.debug("worker %d is serving", worker.pid)
        self._ever_ready = True
        if self._stopping:
            return  # the report came together with the signal: all workers have been told to end, and none starts
        if not self._announced and all(each.state is State.SERVING for each in self._workers):
            self._announced = True
            self._banner(text)
            self._hooks.notify("when_ready", self._hooks.server)
        if worker.replaces is not None:
            self._drain(worker.replaces)
            worker.replaces = None
        if worker.outdated:
            self._retire(worker, "reload")

    def _reap(self) -> None:
        for worker in list(self._workers):
            try:
                pid, status = os.waitpid(worker.pid, os.WNOHANG)
            except ChildProcessError:
                pid, status = worker.pid, 0  # reaped elsewhere
            if pid:
                self._on_exit(worker, os.waitstatus_to_exitcode(status))
        if os.getpid() == 1:
            self._reap_orphans()

    def _reap_orphans(self) -> None:
        """As the first process of a container: reap processes of the application whose parent has ended."""
        own = {worker.pid for worker in self._workers}
        if self._watcher is not None:
            own.add(self._watcher[0])
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
        self._workers.remove(worker)
        os.close(worker.channel)
        worker.channel = -1
        self._spawner.slots.release(worker.slot)
        self._hooks.notify("child_exit", self._hooks.server, worker.for_hooks)
        for other in self._workers:
            if other.replaces is worker:
                other.replaces = None  # it fills the vacancy itself
        if worker.state is State.DRAINING or self._stopping:
            logger.debug("worker %d ended (%s)", worker.pid, _cause(code))
            return
        if worker.state is State.BOOTING:
            self._on_failed_boot(worker, code)
            return
        self._spawner.slots.stats.worker_died()
        # A worker that was ready is replaced at once: one request that ends its process must not cost the others
        # more. Only if nobody has used it, and it dies again and again, its start-up is what fails.
        was_used = worker.slot.connections > worker.connections_before
        was_stable = time.monotonic() - worker.started_at >= STABLE_AFTER
        wait = self._vacate(0 if was_used or was_stable else worker.failures + 1, worker)
        logger.error("worker %d ended (%s), starting another%s", worker.pid, _cause(code), _after(wait))

    def _on_failed_boot(self, worker: Worker, code: int) -> None:
        self._spawner.slots.stats.worker_boot_failed()
        reason = worker.failure or f"worker {worker.pid} ended while starting ({_cause(code)})"
        if self._config.reload:
            self._await_change = worker.replaces is None
            logger.error("start failed, waiting for a change:\n%s", reason)
        elif not self._ever_ready:
            self._status = self._fail(reason)
            self._stop(quick=True)
            return
        else:
            if worker.replaces is None:
                again = f"trying again{_after(self._vacate(worker.failures + 1, worker))}"
            else:
                again = "the old one continues to serve"
            logger.error("a new worker failed to start, %s:\n%s", again, reason)
        if worker.replaces is not None:
            self._on_failed_replacement(worker.replaces)

    def _vacate(self, failures: int, ended: Worker | None = None) -> float:
        """Note that a worker is missing; returns the delay before it is started again."""
        wait = restart_delay(failures)
        if wait and ended is not None and any(w.state is State.SERVING for w in self._workers):
            # Until then the others get the datagrams that the kernel would give to its sockets.
            self._listeners.udp.close_sockets(ended.udp_index, but_for={w.udp_index for w in self._workers})
        self._vacancies.append(Vacancy(failures, time.monotonic() + wait, again=True))
        return wait

    def _on_failed_replacement(self, worker: Worker) -> None:
        worker.retiring = False
        worker.last_request = self._last_request(worker.slot)
        worker.failed_replacements += 1
        worker.retire_after = time.monotonic() + restart_delay(worker.failed_replacements)

    # Reconciliation of the workers with the configuration.

    def _reconcile(self, now: float) -> None:
        for worker in list(self._workers):
            worker.enforce_deadlines(now)
            if not self._config.reload:  # it may be at a breakpoint
                worker.enforce_startup(self._config.timeout_worker_startup, now)
        if self._stopping:
            return
        self._check_reload()
        for worker in list(self._workers):
            if worker.state is State.SERVING:
                if not self._config.reload:
                    worker.check_health(self._config.timeout_worker_healthcheck, now)
                self._check_recycling(worker, now)
        if now >= self._next_memory_check:
            self._next_memory_check = now + MEMORY_POLL
        self._adjust_count(now)

    def _adjust_count(self, now: float) -> None:
        """Start or drain workers until their number is the configured one."""
        self._spawner.slots.stats.workers_wanted(self._target)
        active = [w for w in self._workers if w.state is not State.DRAINING and w.replaces is None]
        serving = [w for w in active if w.state is State.SERVING]
        if self._listeners.udp.shared:
            # Inherited sockets may belong to the first worker only.
            serving.sort(key=lambda worker: -worker.udp_index)
        for worker in serving[: max(0, len(active) - self._target)]:
            self._drain(worker)
            self._listeners.udp.close_sockets(worker.udp_index)
        missing = max(0, self._target - len(active))
        del self._vacancies[missing:]
        self._vacancies += [Vacancy() for _ in range(missing - len(self._vacancies))]
        if self._await_change:
            return
        for vacancy in [vacancy for vacancy in self._vacancies if vacancy.due <= now]:
            self._vacancies.remove(vacancy)
            self._fill(vacancy)

    def _fill(self, vacancy: Vacancy) -> None:
        worker = self._spawn(vacancy.again)
        if worker is None:
            self._vacate(vacancy.failures + 1)
        else:
            worker.failures = vacancy.failures

    def _free_udp_index(self) -> int:
        taken = {worker.udp_index for worker in self._workers if worker.state is not State.DRAINING}
        return next(number for number in range(len(taken) + 1) if number not in taken)

    def _spawn(self, again: bool, udp_index: int | None = None) -> Worker | None:
        """Start a worker; `None` if the system does not allow it, which is logged. `again`: it replaces another.

        `udp_index`: of a worker that serves until this one is ready.
        """
        try:
            own = self._free_udp_index() if udp_index is None else udp_index
            worker = self._spawner.spawn(
                own, has_predecessor=udp_index is not None, imports_again=self._has_reloaded
            )
        except (OSError, IndexError, StartupError) as error:
            logger.error("cannot start a worker: %s", error)
            return None
        worker.again = again
        worker.last_request = self._last_request(worker.slot)
        self._workers.append(worker)
        return worker

    def _last_request(self, slot: _native.Slot) -> int | None:
        limit = self._config.limit_max_requests
        if limit is None:
            return None
        return slot.requests + limit + random.randint(0, self._config.limit_max_requests_jitter)

    def _retire(self, worker: Worker, reason: str) -> None:
        """Start a replacement; the worker serves until that is ready."""
        if worker.retiring or time.monotonic() < worker.retire_after:
            return
        logger.info("replacing worker %d: %s", worker.pid, reason)
        replacement = self._spawn(again=True, udp_index=worker.udp_index)
        if replacement is None:
            self._on_failed_replacement(worker)
            return
        replacement.replaces = worker
        worker.retiring = True

    def _drain(self, worker: Worker) -> None:
        worker.state = State.DRAINING
        worker.signal(signal.SIGTERM)
        grace = self._config.timeout_graceful_shutdown
        if self._config.reload:
            grace = min(grace, RELOAD_GRACE)
        worker.kill_at = time.monotonic() + grace + (0.0 if self._config.reload else EXIT_MARGIN)

    def _reload(self, cause: str) -> None:
        logger.info("reloading: %s", cause)
        if self._listeners.udp.tickets is not None:
            self._listeners.udp.share_tickets()
        if self._announced:
            self._reloading = True
            self._notifier.reloading()
        for vacancy in self._vacancies:
            vacancy.failures, vacancy.due = 0, 0.0
        self._await_change = False
        self._has_reloaded = True
        for worker in sorted(self._workers, key=lambda worker: worker.state is not State.BOOTING):
            if worker.state is State.BOOTING and self._config.reload:
                # It may wait for ever, at a breakpoint.
                if worker.replaces is not None:
                    worker.replaces.retiring, worker.replaces = False, None
                self._drain(worker)
            elif worker.state is State.BOOTING:
                worker.outdated = True
            elif worker.state is State.SERVING:
                worker.retire_after, worker.failed_replacements = 0.0, 0
                self._retire(worker, cause)

    def _check_reload(self) -> None:
        """Report the end of a reload, however it has ended."""
        if self._reloading and not any(
            worker.state is State.BOOTING
            or worker.outdated
            or (worker.retiring and worker.state is State.SERVING)
            for worker in self._workers
        ):
            self._reloading = False
            self._notifier.ready(self._summary)

    def _stop(self, *, quick: bool, close_idle: bool = False) -> None:
        if not self._stopping:
            if not self._status:
                logger.info("stopping")
            self._stopping = True
            self._stopping_since = time.monotonic()
            self._requests_before = self._spawner.slots.requests()
            self._notifier.stopping()
            self._listeners.close()
        now = time.monotonic()
        for worker in self._workers:
            worker.signal(signal.SIGQUIT if quick else CLOSE_IDLE if close_idle else signal.SIGTERM)
            grace = QUICK_EXIT if quick else self._config.timeout_graceful_shutdown + EXIT_MARGIN
            worker.kill_at = min(worker.kill_at or now + grace, now + grace)

    def _check_recycling(self, worker: Worker, now: float) -> None:
        config = self._config
        if worker.retiring:
            return
        if worker.last_request is not None and worker.slot.requests >= worker.last_request:
            self._retire(worker, "it has served its number of requests")
        elif config.workers_lifetime is not None and now - worker.started_at >= config.workers_lifetime:
            self._retire(worker, f"it is {now - worker.started_at:.0f} s old")
        elif config.workers_max_rss is not None and now >= self._next_memory_check:
            resident = resident_bytes(worker.pid)
            if resident > config.workers_max_rss * MIB:
                self._retire(worker, f"it holds {resident // MIB} MiB")

    # Start-up and clean-up.

    def _fail(self, message: str) -> int:
        sys.stderr.write(f"{message}\n" if message.startswith("Traceback") else f"towline: {message}\n")
        return STARTUP_FAILED

    def _banner(self, text: str) -> None:
        from .._version import __version__

        interface, _, detail = text.partition(" ")
        addresses = ", ".join(listeners.names(self._listeners, self._config))
        count = f"{self._target} worker{'s' if self._target > 1 else ''}"
        logger.info("Towline %s on %s (%s, %s, %s)", __version__, addresses, interface, count, detail)
        self._summary = f"{count} on {addresses}"
        self._notifier.ready(self._summary)

    def _start_watcher(self) -> None:
        read, write = os.pipe()
        os.set_blocking(read, False)

        def child() -> None:
            for fd in (*self._signals.descriptors(), *self._sending(), self._lifeline[1], read):
                os.close(fd)
            self._listeners.close()
            reloader.watch(self._config, write, self._lifeline[0])

        pid = fork(child)
        os.close(write)
        self._watcher = pid, read

    def _read_watcher(self) -> None:
        if self._watcher is None or self._stopping:
            return
        try:
            changed = os.read(self._watcher[1], 65536)
        except BlockingIOError:
            return
        if changed:
            self._reload(f"{changed.decode(errors='replace').splitlines()[0]} has changed")
        else:
            logger.error("the file watcher has ended: reloading is disabled")
            os.close(self._watcher[1])
            os.waitpid(self._watcher[0], 0)
            self._watcher = None

    def _clean_up(self) -> None:
        os.close(self._lifeline[1])  # ends the watcher, and workers left after an internal error
        if self._watcher is not None:
            os.kill(self._watcher[0], signal.SIGTERM)
            os.waitpid(self._watcher[0], 0)
        self._listeners.close()
        self._listeners.remove_unix_sockets()
        self._signals.close()
        self._notifier.close()
        if self._statsd is not None:
            self._statsd.send(self._spawner.slots.stats, len(self._workers))
            self._statsd.close()
        if self._config.pid_file is not None:
            pid_file.remove(self._config.pid_file)


def _cause(code: int) -> str:
    return f"status {code}" if code >= 0 else signal.Signals(-code).name


def _after(wait: float) -> str:
    return f" in {wait:g} s" if wait else ""
