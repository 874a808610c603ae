"""The worker process: what happens between its start and its exit.

It reports to the supervisor over a pipe, one line per event (`ready asgi uvloop`, `failed <text>`). It holds the
read end of a second pipe, the lifeline: end of file there means that the supervisor has ended, and the worker drains
and exits.
"""

from __future__ import annotations

import atexit
import codecs
import dataclasses
import faulthandler
import gc
import logging
import os
import signal
import sys
import threading
import traceback
from typing import NoReturn

from .. import _native
from ..config import Bind, ServerConfig
from ..errors import Error
from . import gil
from .application import Application, load
from .hooks import HookCaller, HookWorker
from .importer import forget_modules, search_path
from .loops import serve
from .process import become, owner
from .state_store import give_store

logger = logging.getLogger("towline.server")

STARTUP_FAILED = 3
EXIT_TIMEOUT = 3
"""Whole seconds for non-daemon threads and atexit handlers after the last request; then SIGALRM ends the process."""
HEARTBEATS = 8
"""Heartbeats, and turns of an idle loop, within the time after which the supervisor considers them old."""
# Reports need it, and a worker with --user may be unable to read Python's files, which it then has to report.
codecs.lookup("unicode_escape")
READY, FAILED, CANCELLED = "ready", "failed", "cancelled"


@dataclasses.dataclass(frozen=True)
class LoopContext:
    """An event loop of a worker, or a WSGI server. `number`: of its UDP sockets."""

    number: int
    slot: _native.Slot
    has_predecessor: bool = False
    """Another worker serves until this one is ready, and reads the same UDP sockets."""
    binds: list[Bind] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class WorkerContext:
    """Start-up data of a worker, from the supervisor. The worker owns the descriptors from its start on."""

    config: ServerConfig
    loops: list[LoopContext]
    channel: int
    lifeline: int
    hooks: HookCaller
    for_hooks: HookWorker
    application: Application | None = None
    imports_again: bool = False
    """The code may have changed since the process that called `towline.serve` has imported some of it."""

    def report(self, kind: str, text: str) -> None:
        """Send one line to the supervisor. It is lost if the supervisor has ended."""
        try:
            data = f"{kind} ".encode() + text.encode("unicode_escape") + b"\n"
            while data:
                data = data[os.write(self.channel, data) :]
        except BrokenPipeError:
            pass

    @property
    def turn_period(self) -> float:
        """Seconds between two turns of an idle loop, which would not run otherwise."""
        return self.config.timeout_worker_healthcheck / HEARTBEATS

    def ready(self, detail: str) -> None:
        """Report that all loops serve. `detail`: the interface, and its loop or threads (`asgi uvloop`)."""
        # The native servers have duplicates. These would keep the port open after they have stopped listening.
        for fd in {bind.fd for loop in self.loops for bind in loop.binds}:
            os.close(fd)
        # Exclude the imported modules from garbage collections, which would scan them for milliseconds.
        gc.collect()
        gc.freeze()
        self.report(READY, detail)

    def descriptors(self) -> list[int]:
        binds = (bind.fd for loop in self.loops for bind in loop.binds)
        return [self.channel, self.lifeline, *binds]

    def interrupted(self) -> None:
        """SIGQUIT, on which gunicorn's workers call `worker_int`."""
        self.hooks.notify("worker_int", self.for_hooks)


def preload(config: ServerConfig) -> None:
    """Import the modules that every worker needs, once, before the forks.

    A new worker then has only its application to import. None of these modules starts a thread or uses an event
    loop when it is imported.
    """
    from . import application, wsgi  # noqa: F401 - imported for the forks

    if config.interface == "wsgi":
        return
    from . import asgi

    asgi.loop_module(config.loop)


def main(context: WorkerContext) -> NoReturn:
    """Run the worker. Never returns, because the stack frames below belong to the supervisor."""
    status = 1
    try:
        if context.application is None:
            atexit._clear()  # the handlers of the supervisor
        faulthandler.enable()  # prints the stack of a stuck worker at SIGABRT
        context.hooks.call("post_fork", context.hooks.server, context.for_hooks)
        first, *others = (loop.slot for loop in context.loops)
        first.start_heartbeat(context.turn_period, others)
        for loop in context.loops:
            if not loop.has_predecessor:
                loop.slot.start_forwarding(loop.binds)
        status = _serve(context)
    except Error as error:
        context.report(FAILED, str(error))
        status = STARTUP_FAILED
    except BaseException:
        context.report(FAILED, traceback.format_exc())
    finally:
        _exit(status, context)


def _serve(context: WorkerContext) -> int:
    target = owner(context.config)
    if target is not None:
        give_store(target)
        become(target)
    if context.imports_again and context.application is None:
        forget_modules((*search_path(context.config.app_dir), *context.config.reload_dir))
    first = context.loops[0]
    # One of several workers tells it.
    application = context.application or load(context.config, tells_gil=first.slot.index == 0)
    if first.number == 0 and not first.has_predecessor:
        gil.tell_turns(context.config)
    context.hooks.call("post_worker_init", context.for_hooks)
    try:
        context.report(CANCELLED, str(serve(application, context)))
    finally:
        if context.config.otel:
            from .tracing import flush

            flush()
    return 0


def _exit(status: int, context: WorkerContext) -> NoReturn:
    """Do what the interpreter does at exit, bounded by an alarm, without unwinding into the supervisor's frames."""
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(EXIT_TIMEOUT)
        context.hooks.notify("worker_exit", context.hooks.server, context.for_hooks)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
