"""The workers of a server: their number, their replacement, and when a missing one is started.

`reconcile` runs after each event of the supervisor. It starts, replaces and drains workers until `target` of them serve.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator, Sequence

from .. import _native
from ..config import ServerConfig
from ..errors import StartupError
from .health import MIB
from .listeners import Listeners
from .logs import counted
from .loops import CLOSE_IDLE
from .spawner import QUICK_EXIT, State, Vacancy, Worker, WorkerSpawner, restart_delay

logger = logging.getLogger("towline.server")

EXIT_MARGIN = 6.0
"""Seconds after the drain deadline for cancellation, lifespan shutdown and exit; then SIGKILL."""
RELOAD_GRACE = 1.0
"""With --reload an open stream must not keep the old code running for long."""
REQUEST_POLL = 0.05
MEMORY_POLL = 1.0
STABLE_AFTER = 10.0
"""Seconds after which a worker that nobody has used, and that dies, is not taken for a failed start-up."""


class Recycling:
    """Decides when a worker is replaced because of its requests, its age or its memory."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._next_memory_check = 0.0

    def last_request(self, worker: Worker) -> int | None:
        """The value of the counters at which a worker that starts now is replaced."""
        limit = self._config.limit_max_requests
        if limit is None:
            return None
        import random

        return worker.requests + limit + random.randint(0, self._config.limit_max_requests_jitter)

    def due(self, workers: list[Worker], now: float) -> Iterator[tuple[Worker, str]]:
        """The workers to replace, each with the reason."""
        checks_memory = self._config.workers_max_rss is not None and now >= self._next_memory_check
        if checks_memory:
            self._next_memory_check = now + MEMORY_POLL
        for worker in workers:
            reason = "" if worker.retiring else self._reason(worker, now, checks_memory)
            if reason:
                yield worker, reason

    def _reason(self, worker: Worker, now: float, checks_memory: bool) -> str:
        lifetime, most_mib = self._config.workers_lifetime, self._config.workers_max_rss
        if worker.last_request is not None and worker.requests >= worker.last_request:
            return "it has served its number of requests"
        if lifetime is not None and now - worker.started_at >= lifetime:
            return f"it is {now - worker.started_at:.0f} s old"
        if checks_memory and most_mib is not None:
            resident = _native.resident_bytes(worker.pid)
            if resident > most_mib * MIB:
                return f"it holds {resident // MIB} MiB"
        return ""


class Workers:
    """Iterates over the worker processes that have not been reaped."""

    def __init__(self, config: ServerConfig, spawner: WorkerSpawner, listeners: Listeners) -> None:
        self.target = config.workers
        """The wanted number: of processes, or of event loops in one process. SIGTTIN and SIGTTOU change it."""
        self._are_threads = config.worker_mode == "threads"
        self._config, self._spawner, self._udp = config, spawner, listeners.udp
        self._stats = spawner.slots.stats
        self._recycling = Recycling(config)
        self._workers: list[Worker] = []
        self._vacancies: list[Vacancy] = []
        self._has_served = False
        """A worker has been ready. Until then a failed start ends the server."""
        self._imports_again = False
        """A reload was requested: workers import code that may have changed since the start of the server."""
        self._await_change = False
        """With --reload: a start has failed, and the next one waits for a change of a file."""

    def __iter__(self) -> Iterator[Worker]:
        return iter(list(self._workers))

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def loops(self) -> int:
        """The event loops of all processes, also of those that start or drain."""
        return sum(len(worker.slots) for worker in self._workers)

    @property
    def _loops_of_each(self) -> int:
        return self.target if self._are_threads else 1

    @property
    def all_serve(self) -> bool:
        return all(worker.state is State.SERVING for worker in self._workers)

    @property
    def are_being_replaced(self) -> bool:
        """Whether a replacement is starting or has to be started."""
        return any(
            worker.state is State.BOOTING
            or worker.outdated
            or (worker.retiring and worker.state is State.SERVING)
            for worker in self._workers
        )

    def started_since(self, moment: float) -> int:
        """The number of loops that serve in processes younger than a time of `time.monotonic()`."""
        return sum(len(w.slots) for w in self._workers if w.state is State.SERVING and w.started_at >= moment)

    def deadlines(self, now: float) -> Iterator[float]:
        """Times at which `reconcile` has to run, whatever happens."""
        yield now + min(1.0, self._config.timeout_worker_healthcheck / 4)
        if self._config.limit_max_requests is not None:
            yield now + REQUEST_POLL
        yield from (vacancy.due for vacancy in self._vacancies if vacancy.due > now)
        yield from (worker.kill_at for worker in self._workers if worker.kill_at is not None)

    # Events.

    def became_ready(self, worker: Worker) -> bool:
        """Note that a worker serves. Returns False if it had been told to end before."""
        if worker.state is not State.BOOTING:
            return False
        worker.state = State.SERVING
        if worker.again:
            self._stats.worker_replaced()
        logger.debug("worker %d is serving", worker.pid)
        self._has_served = True
        return True

    def relieve(self, worker: Worker) -> None:
        """Drain the worker that a ready one replaces; replace the ready one if a reload came while it started."""
        if worker.replaces is not None:
            self._drain(worker.replaces)
            self._close_unused(worker.replaces)
            worker.replaces = None
        if worker.outdated:
            self._retire(worker, "reload")

    def remove(self, worker: Worker, code: int, *, stopping: bool) -> str | None:
        """Forget a worker that has ended and plan its replacement.

        Returns the reason if the first start of the server has failed.
        """
        self._workers.remove(worker)
        os.close(worker.channel)
        worker.channel = -1
        self._spawner.slots.release(worker.slots)
        for other in self._workers:
            if other.replaces is worker:
                other.replaces = None  # it fills the vacancy itself
        if worker.state is State.DRAINING or stopping:
            logger.debug("worker %d ended (%s)", worker.pid, _cause(code))
            return None
        if worker.state is State.BOOTING:
            return self._on_failed_boot(worker, code)
        self._stats.worker_died()
        # A worker that was ready is replaced at once: one request that ends its process must not cost the others
        # more. Only if nobody has used it, and it dies again and again, its start-up is what fails.
        was_used = worker.connections > worker.connections_before
        was_stable = time.monotonic() - worker.started_at >= STABLE_AFTER
        wait = self._vacate(0 if was_used or was_stable else worker.failures + 1, worker)
        logger.error("worker %d ended (%s), starting another%s", worker.pid, _cause(code), _after(wait))
        return None

    def _on_failed_boot(self, worker: Worker, code: int) -> str | None:
        self._stats.worker_boot_failed()
        reason = worker.failure or f"worker {worker.pid} ended while starting ({_cause(code)})"
        if self._config.reload:
            self._await_change = worker.replaces is None
            logger.error("start failed, waiting for a change:\n%s", reason)
        elif not self._has_served:
            return reason
        else:
            if worker.replaces is None:
                again = f"trying again{_after(self._vacate(worker.failures + 1, worker))}"
            else:
                again = "the old one continues to serve"
            logger.error("a new worker failed to start, %s:\n%s", again, reason)
        if worker.replaces is not None:
            self._close_unused(worker)
            self._on_failed_replacement(worker.replaces)
        return None

    def _vacate(self, failures: int, ended: Worker | None = None) -> float:
        """Note that a worker is missing; returns the delay before it is started again."""
        wait = restart_delay(failures)
        if wait and ended is not None and any(w.state is State.SERVING for w in self._workers):
            # Until then the others get the datagrams that the kernel would give to its sockets.
            self._close_unused(ended)
        self._vacancies.append(Vacancy(failures, time.monotonic() + wait, again=True))
        return wait

    def _close_unused(self, worker: Worker) -> None:
        """Close the UDP sockets of a worker that does not serve on, unless another has them."""
        serving = (w for w in self._workers if w is not worker and w.state is not State.DRAINING)
        self._udp.close_sockets(set(worker.numbers).difference(*(w.numbers for w in serving)))

    def _on_failed_replacement(self, worker: Worker) -> None:
        worker.retiring = False
        worker.last_request = self._recycling.last_request(worker)
        worker.failed_replacements += 1
        worker.retire_after = time.monotonic() + restart_delay(worker.failed_replacements)

    # Commands.

    def reload(self, cause: str) -> None:
        """Replace all workers, those that are starting included."""
        for vacancy in self._vacancies:
            vacancy.failures, vacancy.due = 0, 0.0
        self._await_change = False
        self._imports_again = True
        for worker in sorted(self._workers, key=lambda worker: worker.state is not State.BOOTING):
            if worker.state is State.BOOTING and self._config.reload:
                # A worker at a breakpoint would wait for ever.
                if worker.replaces is not None:
                    worker.replaces.retiring, worker.replaces = False, None
                self._drain(worker)
            elif worker.state is State.BOOTING:
                worker.outdated = True
            elif worker.state is State.SERVING:
                worker.retire_after, worker.failed_replacements = 0.0, 0
                self._retire(worker, cause)

    def stop(self, *, quick: bool, close_idle: bool = False) -> None:
        """End all workers."""
        now = time.monotonic()
        for worker in self._workers:
            worker.signal(signal.SIGQUIT if quick else CLOSE_IDLE if close_idle else signal.SIGTERM)
            grace = QUICK_EXIT if quick else self._config.timeout_graceful_shutdown + EXIT_MARGIN
            if close_idle and self._config.reload:  # Ctrl-C at a breakpoint, or a terminal that was closed
                grace = min(grace, RELOAD_GRACE + QUICK_EXIT)
            worker.kill_at = min(worker.kill_at or now + grace, now + grace)

    def enforce_deadlines(self, now: float) -> None:
        """Kill the workers that have not started or ended in time."""
        for worker in self:
            worker.enforce_deadlines(now)
            if not self._config.reload:  # a worker may be at a breakpoint
                worker.enforce_startup(self._config.timeout_worker_startup, now)

    def reconcile(self, now: float) -> None:
        """Replace the unhealthy and the old workers, then start or drain some until their number is right."""
        serving = [worker for worker in self._workers if worker.state is State.SERVING]
        if not self._config.reload:
            for worker in serving:
                if reason := worker.check_health(self._config.timeout_worker_healthcheck, now):
                    self._retire(worker, reason, logging.ERROR)
        for worker, reason in self._recycling.due(serving, now):
            self._retire(worker, reason)
        for worker in serving:
            if len(worker.slots) != self._loops_of_each:
                self._retire(worker, f"{counted(self.target, 'loop')} wanted")
        self._adjust_count(now)

    def _adjust_count(self, now: float) -> None:
        self._stats.workers_wanted(self.target)
        active = [w for w in self._workers if w.state is not State.DRAINING and w.replaces is None]
        serving = [w for w in active if w.state is State.SERVING]
        if self._udp.shared:
            # Inherited sockets may belong to the first worker only.
            serving.sort(key=lambda worker: -worker.numbers[0])
        processes = 1 if self._are_threads else self.target
        for worker in serving[: max(0, len(active) - processes)]:
            self._drain(worker)
            self._close_unused(worker)
        missing = max(0, processes - len(active))
        del self._vacancies[missing:]
        self._vacancies += [Vacancy() for _ in range(missing - len(self._vacancies))]
        if self._await_change:
            return
        for vacancy in [vacancy for vacancy in self._vacancies if vacancy.due <= now]:
            self._vacancies.remove(vacancy)
            started = self._spawn(vacancy.again)
            if started is None:
                self._vacate(vacancy.failures + 1)
            else:
                started.failures = vacancy.failures

    def _spawn(self, again: bool, served: Sequence[int] = ()) -> Worker | None:
        """Start a worker; `None` if the system does not allow it, which is logged. `again`: it replaces another.

        `served`: the numbers of the worker that serves until this one is ready.
        """
        numbers = [*served, *self._free_numbers()][: self._loops_of_each]
        try:
            worker = self._spawner.spawn(numbers, served=served, imports_again=self._imports_again)
        except (OSError, IndexError, StartupError) as error:
            logger.error("cannot start a worker: %s", error)
            return None
        worker.again = again
        worker.last_request = self._recycling.last_request(worker)
        self._workers.append(worker)
        return worker

    def _free_numbers(self) -> Sequence[int]:
        """As many as a worker may need."""
        taken = {n for worker in self._workers if worker.state is not State.DRAINING for n in worker.numbers}
        return sorted(set(range(len(taken) + self._loops_of_each)) - taken)

    def _retire(self, worker: Worker, reason: str, level: int = logging.INFO) -> None:
        """Start a replacement; the worker serves until that is ready."""
        if worker.retiring or time.monotonic() < worker.retire_after:
            return
        logger.log(level, "replacing worker %d: %s", worker.pid, reason)
        replacement = self._spawn(again=True, served=worker.numbers)
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


def _cause(code: int) -> str:
    return f"status {code}" if code >= 0 else signal.Signals(-code).name


def _after(wait: float) -> str:
    return f" in {wait:g} s" if wait else ""
