"""Processes of the server in a fresh interpreter each (`--spawn`), as macOS needs them: its frameworks do not work after a fork
without exec.

Such a process inherits only the descriptors that are named to it. What it runs, with its arguments, is pickled into memory
of which one of them is the descriptor.
"""

from __future__ import annotations

import dataclasses
import io
import mmap
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from .. import _native, _state_location
from ..config import ServerConfig
from ..errors import ConfigError
from . import logs, signal_handlers, state_store
from .application import why_not_importable
from .health import WorkerSlots
from .hooks import HookCaller, HookWorker
from .process import owner
from .spawner import child_signals

WORKER_HOOKS = ("post_fork", "post_worker_init", "worker_int", "worker_exit")
COMMAND = (
    "import sys; sys.path[:] = sys.argv[2:]; from towline.server.spawned import main; main(int(sys.argv[1]))"
)
"""The module is found where this process has found it, and not in the working directory."""


def resolved(config: ServerConfig) -> ServerConfig:
    """The configuration with `spawn` on or off. It is off on macOS, too, where something needs a fork; raises `ConfigError`
    if it is on then."""
    if config.spawn is False or (config.spawn is None and sys.platform != "darwin"):
        return config.replace(spawn=False)
    reason = why_not_importable(config)
    names = [name for name in WORKER_HOOKS if config.hooks is not None and name in config.hooks.functions]
    if reason is None and names:
        reason = f"functions of a configuration file run in forked workers only ({', '.join(names)})"
    if reason is None:
        try:
            pickle.dumps(config.replace(hooks=None))
        except Exception as error:
            reason = f"an option cannot be passed to another process: {error}"
    if reason is not None and config.spawn:
        raise ConfigError(f"spawn: {reason}")
    return config.replace(spawn=reason is None)


@dataclasses.dataclass(frozen=True)
class Spawner:
    """Starts processes with the shared memory of this server."""

    config: ServerConfig
    slots: WorkerSlots

    def start(
        self, entry: Callable[..., NoReturn], arguments: tuple[Any, ...], descriptors: Iterable[int]
    ) -> int:
        """Run a function of a module in a new process, which inherits the descriptors. Returns its id. Raises OSError."""
        from multiprocessing import util

        inherited = {*descriptors, *state_store.locks(), *self.slots.descriptors}
        nohup = signal_handlers.original(signal.SIGHUP) is signal.SIG_IGN
        data = io.BytesIO()
        pickle.dump((sys.argv, nohup, self.slots.descriptors), data)
        _Pickler(data, inherited).dump((self.config, entry, arguments))
        memory = _native.shared_memory()
        os.ftruncate(memory, data.tell())
        with mmap.mmap(memory, data.tell()) as mapped:
            mapped.write(data.getvalue())
        flags = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
        command = [sys.executable, *flags, "-c", COMMAND, str(memory), *sys.path]
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            return util.spawnv_passfds(os.fsencode(sys.executable), command, sorted({memory, *inherited}))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(memory)


class _Pickler(pickle.Pickler):
    """Pickles what workers share by its place in shared memory, and hooks not at all."""

    def __init__(self, file: io.BytesIO, inherited: set[int]) -> None:
        super().__init__(file)
        self._inherited = inherited

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, _native.Slot):
            return _slot, (value.index,)
        if isinstance(value, _native.TicketStore):
            assert value.descriptor is not None
            self._inherited.add(value.descriptor)
            return _tickets, (value.descriptor,)
        if isinstance(value, HookCaller):
            return HookCaller, (ServerConfig(),)
        if isinstance(value, HookWorker):
            return HookWorker, (None, value.age, value.ppid)
        if isinstance(value, ServerConfig) and value.hooks is not None:
            return dataclasses.replace, (value.replace(hooks=None),)
        return NotImplemented


_stats: _native.SharedStats


def _slot(index: int) -> _native.Slot:
    return _stats.slot(index)


def _tickets(descriptor: int) -> _native.TicketStore:
    tickets = _native.TicketStore(descriptor)
    os.close(descriptor)
    return tickets


def main(memory: int) -> NoReturn:
    """The new process, in which all signals are blocked."""
    global _stats
    with mmap.mmap(memory, 0, access=mmap.ACCESS_READ) as mapped:
        data = io.BytesIO(mapped[:])
    os.close(memory)
    sys.argv, nohup, shared = pickle.load(data)
    _stats = WorkerSlots(descriptors=shared).stats
    for descriptor in shared:
        os.close(descriptor)
    config, entry, arguments = pickle.load(data)
    target = owner(config)
    _state_location.workers_user = None if target is None else target.uid
    logs.configure(config)
    child_signals(nohup=nohup)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    entry(*arguments)
    raise SystemExit(1)
