"""The server: `serve` runs supervised workers, as the command line does; `Server` is one worker for embedding."""

from __future__ import annotations

import contextlib
import signal
import textwrap
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._imports import collections_paused
from .._keywords import fields
from .._options import rows_of
from ..config import Bind, ServerConfig
from ..errors import ConfigError, StartupError

if TYPE_CHECKING:
    import asyncio

    from typing_extensions import Unpack

    from .._serve_options import ServeOptions
    from .application import Application
    from .asgi import AsgiWorker
    from .wsgi import WsgiWorker

__all__ = ["Server", "check", "run", "serve", "serve_config"]


def serve(app: Any, **options: Unpack[ServeOptions]) -> None:
    """Serve `app` as `towline serve` does, with supervised workers, until a signal stops it.

    `app` is an import string (`"module:app"`) or the application; `options` are those of `ServerConfig`, listed below, and
    of `uvicorn.run` where they map to one.
    Call it from the main thread of a program that has started no other threads, because workers are forked.
    Raises `SystemExit(3)` if start-up fails and `ConfigError` for an invalid option.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError(
            "towline.serve() needs the main thread, because it forks: use towline.Server(config).run(), "
            "or `await towline.Server(config).serve()`"
        )
    status = serve_config(ServerConfig(app, **fields(options)))
    if status:
        raise SystemExit(status)


def serve_config(config: ServerConfig) -> int:
    """`serve` for a configuration; returns the exit status."""
    with collections_paused():
        from . import logs
        from .process import prepare
        from .state_store import server_store
        from .supervisor import Supervisor

    prepare(config)
    config = logs.configure(config)
    with server_store(config):
        return Supervisor(config).run()


if serve.__doc__:
    serve.__doc__ = f"{serve.__doc__}\n{textwrap.indent(rows_of(ServerConfig), '    ')}\n"
run = serve
"""uvicorn's name."""


def check(config: ServerConfig) -> int:
    """Do everything that a start does except opening addresses and serving; returns the exit status.

    Reads the files of the configuration and imports the application, whose lifespan does not run. Raises an `Error`
    for the first thing that is wrong.
    """
    import asyncio
    import sys

    from .. import _native
    from . import gil, logs
    from .acme_store import prepare as prepare_acme
    from .application import load
    from .asgi import new_loop
    from .process import prepare

    prepare(config)
    config = logs.configure(prepare_acme(config))
    application = load(config)
    gil.tell_turns(config)
    binds = [Bind(-1, address.address, settings=address) for address in config.addresses]
    try:
        if application.interface == "wsgi":
            _native.WsgiServer(application.call, config, binds, log=logs.native_log).stop()
        else:
            loop, _ = new_loop(config.loop)
            asyncio.set_event_loop(loop)
            _native.AsgiServer(
                application.call, loop, config, binds, state={}, slot=None, log=logs.native_log
            ).close()
            loop.close()
    except ValueError as error:
        raise StartupError(str(error)) from error
    sys.stdout.write(f"{config.app or 'static files'}: ready to serve ({application.interface})\n")
    return 0


class Server:
    """One worker in this process, without a supervisor.

    `run()` blocks and, in the main thread, handles SIGTERM (with `drain_delay`), SIGINT and, to reopen the access log, SIGUSR1. `serve()`
    runs an ASGI application in the running event loop and handles no signals: cancel it, or call `stop()`.
    Options for several processes (workers, recycling, reload, pid file) have no effect here.
    """

    def __init__(self, config: ServerConfig) -> None:
        if config.acme:
            raise ConfigError("acme: needs the supervisor of towline.serve(), which gets the certificates")
        self.config = config
        self.addresses: list[str] = []
        """The addresses (`127.0.0.1:8000`), set once it listens."""
        self.started = threading.Event()
        self._lock = threading.RLock()  # a signal may interrupt `stop`
        self._early_stops: list[tuple[bool, bool]] = []
        self._stop: Callable[[bool, bool], None] | None = None
        self._is_leaving = False
        self._signals = 0

    def stop(self, now: bool = False, close_idle: bool = False) -> None:
        """Shut down gracefully; `now` cancels requests in flight, `close_idle` closes idle connections at once.

        From any thread, also before it serves: then it ends as soon as it has started.
        """
        with self._lock:
            if self._stop is None:
                self._early_stops.append((now, close_idle))
            else:
                self._stop(now, close_idle)

    def run(self) -> None:
        """Serve until SIGTERM, SIGINT or `stop()`. Raises `StartupError`."""
        from . import logs, signal_handlers
        from .application import load
        from .state_store import server_store

        self.config = logs.configure(self.config)
        with server_store(self.config):
            application = load(self.config)
            in_main_thread = threading.current_thread() is threading.main_thread()
            try:
                self._run(application, signals=in_main_thread)
            finally:
                if in_main_thread:
                    signal_handlers.restore()
                if self.config.otel:
                    from .tracing import flush

                    flush()

    def _run(self, application: Application, *, signals: bool) -> None:
        if application.interface == "wsgi":
            self._run_wsgi(application.call, signals=signals)
            return
        from .asgi import new_loop, run_to_end

        loop, _ = new_loop(self.config.loop)
        run_to_end(loop, self._serve_asgi(application.call, signals=signals))

    async def serve(self) -> None:
        """Serve an ASGI application in the running loop until cancelled or stopped. Raises `StartupError`."""
        from .application import load

        application = load(self.config)
        if application.interface == "wsgi":
            raise ConfigError("Server.serve() is for ASGI applications; Server.run() serves WSGI")
        await self._serve_asgi(application.call, signals=False)

    async def _serve_asgi(self, app: Any, *, signals: bool) -> None:
        import asyncio

        from . import listeners
        from .asgi import AsgiWorker

        loop = asyncio.get_running_loop()
        opened = listeners.open_all(self.config)
        try:
            worker = AsgiWorker(app, self.config, opened.of_worker(0))
            self._accept_stops(worker.stop, loop)
            if signals:
                self._handle_signals(worker, loop)
            await worker.serve(lambda: self._ready(opened))
        finally:
            opened.close()
            opened.remove_unix_sockets()

    def _run_wsgi(self, app: Any, *, signals: bool) -> None:
        from . import listeners
        from .wsgi import WsgiWorker

        opened = listeners.open_all(self.config)
        try:
            worker = WsgiWorker(app, self.config, opened.of_worker(0))
            self._accept_stops(worker.stop)
            if signals:
                self._handle_signals(worker)
            worker.serve(lambda: self._ready(opened))
        finally:
            opened.close()
            opened.remove_unix_sockets()

    def _accept_stops(
        self, stop: Callable[[bool, bool], None], loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        """Let `stop()` call that of the worker, in its loop if there is one."""

        def call(now: bool, close_idle: bool) -> None:
            if loop is None:
                stop(now, close_idle)
            else:
                with contextlib.suppress(RuntimeError):  # the loop is closed: it has stopped
                    loop.call_soon_threadsafe(stop, now, close_idle)

        with self._lock:
            self._stop = call
            for early in self._early_stops:
                call(*early)

    def _handle_signals(
        self, worker: AsgiWorker | WsgiWorker, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        from .signal_handlers import install

        shown = getattr(worker, "handle_exit", None)
        for number in (signal.SIGTERM, signal.SIGINT):
            install(number, self._signalled, number, worker, loop=loop, shown=shown)
        install(signal.SIGUSR1, worker.reopen_logs, loop=loop)

    def _signalled(self, number: int, worker: AsgiWorker | WsgiWorker) -> None:
        """Shut down gracefully, after `drain_delay` if it is SIGTERM; at a further signal, at once."""
        may_delay = self.started.is_set() and not (self._is_leaving or self._signals)
        if number == signal.SIGTERM and self.config.drain_delay and may_delay:
            self._is_leaving = True
            worker.fail_readiness()
            timer = threading.Timer(self.config.drain_delay, self.stop)
            timer.daemon = True
            timer.start()
            return
        self.stop(now=self._signals > 0, close_idle=number == signal.SIGINT)
        self._signals += 1

    def _ready(self, opened: Any) -> None:
        self.addresses = list(dict.fromkeys(bind.address for bind in opened.of_worker(0)))
        # The worker has duplicates. While these are open the port would accept connections after `stop_listening`.
        opened.close()
        self.started.set()
