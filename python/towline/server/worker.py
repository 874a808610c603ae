"""The worker process: what happens between fork and exit.

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
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import NoReturn

from .. import _native
from ..config import Bind, ServerConfig
from ..errors import Error
from .application import Application, load
from .hooks import HookCaller, HookWorker
from .importer import forget_modules, search_path
from .logs import counted
from .process import become, owner
from .signal_handlers import install
from .state_store import give_store

logger = logging.getLogger("towline.server")

STARTUP_FAILED = 3
EXIT_TIMEOUT = 3
"""Whole seconds for non-daemon threads and atexit handlers after the last request; then SIGALRM ends the process."""
HEARTBEATS = 8
"""Heartbeats, and turns of an idle loop, within the time after which the supervisor considers them old."""
CLOSE_IDLE = signal.SIGUSR2
"""Drains the worker like SIGTERM, and closes idle connections at once."""
# Reports need it, and a worker with --user may be unable to read Python's files, which it then has to report.
codecs.lookup("unicode_escape")
READY, FAILED, CANCELLED = "ready", "failed", "cancelled"
SUPERVISOR_ENDED = "the supervisor has ended: finishing requests in flight, then exiting"


@dataclasses.dataclass(frozen=True)
class WorkerContext:
    """Start-up data of a worker, from the supervisor. The worker owns the descriptors from the fork on."""

    config: ServerConfig
    binds: list[Bind]
    slot: _native.Slot
    channel: int
    lifeline: int
    hooks: HookCaller
    for_hooks: HookWorker
    application: Application | None = None
    has_predecessor: bool = False
    """Another worker serves until this one is ready, and reads the same UDP sockets."""
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
        context.slot.start_heartbeat(context.config.timeout_worker_healthcheck / HEARTBEATS)
        if not context.has_predecessor:
            context.slot.start_forwarding(context.binds)
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
    # One of several workers tells it.
    application = context.application or load(context.config, tells_gil=context.slot.index == 0)
    context.hooks.call("post_worker_init", context.for_hooks)
    try:
        if application.interface == "wsgi":
            _serve_wsgi(application.call, context)
        else:
            _serve_asgi(application.call, context)
    finally:
        if context.config.otel:
            from .tracing import flush

            flush()
    return 0


def _serve_asgi(app: Callable[..., object], context: WorkerContext) -> None:
    from .asgi import AsgiWorker, new_loop, run_to_end

    loop, loop_name = new_loop(context.config.loop)
    worker = AsgiWorker(app, context.config, context.binds, slot=context.slot)

    async def serve() -> None:
        period = context.config.timeout_worker_healthcheck / HEARTBEATS

        def tick() -> None:
            # An idle loop does not run otherwise.
            context.slot.turned()
            loop.call_later(period, tick)

        def orphaned() -> None:
            loop.remove_reader(context.lifeline)
            logger.error(SUPERVISOR_ENDED)
            worker.stop()

        def interrupted() -> None:
            context.interrupted()
            worker.stop(True)

        install(signal.SIGTERM, worker.stop, loop=loop, shown=worker.handle_exit)
        install(CLOSE_IDLE, worker.stop, False, True, loop=loop)
        install(signal.SIGQUIT, interrupted, loop=loop)
        install(signal.SIGUSR1, worker.reopen_logs, loop=loop)
        loop.add_reader(context.lifeline, orphaned)
        tick()
        try:
            await worker.serve(lambda: _ready(context, "asgi", loop_name))
        finally:
            loop.remove_reader(context.lifeline)

    run_to_end(loop, serve(), is_serving=lambda: worker.is_serving)
    context.report(CANCELLED, str(worker.cancelled))


def _serve_wsgi(app: Callable[..., object], context: WorkerContext) -> None:
    from .wsgi import WsgiWorker

    worker = WsgiWorker(app, context.config, context.binds, slot=context.slot)

    def interrupted() -> None:
        context.interrupted()
        worker.stop(True)

    install(signal.SIGTERM, worker.stop)
    install(CLOSE_IDLE, worker.stop, False, True)
    install(signal.SIGQUIT, interrupted)
    install(signal.SIGUSR1, worker.reopen_logs)

    def watch_lifeline() -> None:
        poller = select.poll()
        poller.register(context.lifeline, select.POLLIN)
        poller.poll()
        logger.error(SUPERVISOR_ENDED)
        worker.stop()

    threading.Thread(target=watch_lifeline, name="towline-lifeline", daemon=True).start()
    worker.serve(lambda: _ready(context, "wsgi", counted(context.config.threads, "thread")))
    context.report(CANCELLED, str(worker.cancelled))


def _ready(context: WorkerContext, interface: str, detail: str) -> None:
    # The native server has duplicates. These would keep the port open after it has stopped listening.
    for bind in context.binds:
        os.close(bind.fd)
    # Exclude the imported modules from garbage collections, which would scan them for milliseconds.
    gc.collect()
    gc.freeze()
    context.report(READY, f"{interface} {detail}")


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
