"""The worker process: what happens between fork and exit.

It reports to the supervisor over a pipe, one line per event (`ready asgi uvloop`, `failed <text>`), and holds
the read end of the supervisor's lifeline: end of file there means that the supervisor is gone, and the worker
drains and ends rather than become an orphan.
"""

from __future__ import annotations

import atexit
import dataclasses
import faulthandler
import gc
import logging
import os
import random
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

logger = logging.getLogger("towline.server")

STARTUP_FAILED = 3
EXIT_TIMEOUT = 3
"""Whole seconds for non-daemon threads and atexit handlers after the last request, then the kernel ends it."""
HEARTBEATS = 8
"""Beats, and turns of an idle loop, in the time after which the supervisor calls them old."""
READY, FAILED = "ready", "failed"


@dataclasses.dataclass(frozen=True)
class Berth:
    """Everything a worker gets from the supervisor. Descriptors are the worker's own from the fork on."""

    config: ServerConfig
    binds: list[Bind]
    slot: _native.Slot
    channel: int
    lifeline: int

    def report(self, kind: str, text: str) -> None:
        """One line to the supervisor. Nobody reads it when the supervisor is gone, and that is well."""
        try:
            data = f"{kind} ".encode() + text.encode("unicode_escape") + b"\n"
            while data:
                data = data[os.write(self.channel, data) :]
        except BrokenPipeError:
            pass


def preload(config: ServerConfig) -> None:
    """Import what a worker needs and no application has a say in, once, before the forks.

    A worker that takes over from a dead one then has only its application to import. None of these modules
    starts a thread or touches an event loop when it is imported.
    """
    from . import application, wsgi  # noqa: F401 - for the forks, which find them imported

    if config.interface == "wsgi":
        return
    from . import asgi

    asgi.loop_module(config.loop)


def main(berth: Berth) -> NoReturn:
    """Never returns: the frames below are the supervisor's."""
    status = 1
    try:
        atexit._clear()  # the supervisor's handlers are not ours to run
        random.seed()
        faulthandler.enable()  # SIGABRT from the supervisor shows where a stuck worker is stuck
        berth.slot.start_heartbeat(berth.config.timeout_worker_healthcheck / HEARTBEATS)
        status = _serve(berth)
    except Error as error:
        berth.report(FAILED, str(error))
        status = STARTUP_FAILED
    except BaseException:
        berth.report(FAILED, traceback.format_exc())
    finally:
        _leave(status)


def _serve(berth: Berth) -> int:
    from .application import load

    application = load(berth.config)
    if application.interface == "wsgi":
        _serve_wsgi(application.call, berth)
    else:
        _serve_asgi(application.call, berth)
    return 0


def _serve_asgi(app: Callable[..., object], berth: Berth) -> None:
    from .asgi import AsgiWorker, new_loop, run_to_end

    loop, loop_name = new_loop(berth.config.loop)

    async def serve() -> None:
        worker = AsgiWorker(app, berth.config, berth.binds, slot=berth.slot)

        def tick() -> None:
            # An idle loop has no reason to turn; this one proves that it could.
            berth.slot.turned()
            loop.call_later(berth.config.timeout_worker_healthcheck / HEARTBEATS, tick)

        def orphaned() -> None:
            loop.remove_reader(berth.lifeline)
            logger.error("the supervisor is gone: finishing what is in flight, then ending")
            worker.stop()

        loop.add_signal_handler(signal.SIGTERM, worker.stop)
        loop.add_signal_handler(signal.SIGQUIT, worker.stop, True)
        loop.add_signal_handler(signal.SIGUSR1, worker.reopen_logs)
        loop.add_reader(berth.lifeline, orphaned)
        tick()
        try:
            await worker.serve(lambda: _ready(berth, "asgi", loop_name))
        finally:
            loop.remove_reader(berth.lifeline)

    run_to_end(loop, serve())


def _serve_wsgi(app: Callable[..., object], berth: Berth) -> None:
    from .wsgi import WsgiWorker

    worker = WsgiWorker(app, berth.config, berth.binds, slot=berth.slot)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    signal.signal(signal.SIGQUIT, lambda *_: worker.stop(True))
    signal.signal(signal.SIGUSR1, lambda *_: worker.reopen_logs())

    def watch_lifeline() -> None:
        poller = select.poll()
        poller.register(berth.lifeline, select.POLLIN)
        poller.poll()
        logger.error("the supervisor is gone: finishing what is in flight, then ending")
        worker.stop()

    threading.Thread(target=watch_lifeline, name="towline-lifeline", daemon=True).start()
    worker.serve(lambda: _ready(berth, "wsgi", f"{berth.config.threads} threads"))


def _ready(berth: Berth, interface: str, detail: str) -> None:
    # The native server has copies of its own. Ours would keep a port open that has stopped listening.
    for bind in berth.binds:
        os.close(bind.fd)
    # What is there now stays: the collector need not look through all that was imported (milliseconds, in which
    # nobody is served) each time requests have left enough behind.
    gc.collect()
    gc.freeze()
    berth.report(READY, f"{interface} {detail}")


def _leave(status: int) -> NoReturn:
    """What the interpreter does at exit, bounded by an alarm, and without unwinding into the supervisor."""
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(EXIT_TIMEOUT)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
