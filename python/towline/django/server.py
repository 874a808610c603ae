"""The server that `runserver` starts: Towline with the interface of Django's `WSGIServer`.

With the autoreloader it runs in a daemon thread, and the main thread ends the process when a file changes. A thread in
native code may not outlive the interpreter, so the server ends before.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - registers its end before ours, which then comes first
import logging
import os
import socket
import socketserver
import threading
from typing import Any

from ..config import ServerConfig
from ..server import Server

LOGGER = "django.server"
THREADS = 16
"""Django's own server has no bound; each thread has its own connections to the database."""
GRACE = 1.0
"""Seconds for requests in flight at the end: somebody waits for the prompt, or for the new code."""

RELOAD = 3
"""The exit status at which Django's autoreloader starts the process again."""


class DevelopmentServer:
    """Opens the address, and serves one application until a signal, or the end of the interpreter.

    Django's `run` makes a subclass with `ThreadingMixIn` unless --nothreading is given.
    """

    def __init__(self, address: tuple[str, int], _handler: Any, ipv6: bool = False) -> None:
        family = socket.AF_INET6 if ipv6 else socket.AF_INET
        # An OSError has the number by which Django explains it.
        self._listener = socket.create_server(address, family=family, backlog=128)
        self.server_port = self._listener.getsockname()[1]

    def set_app(self, app: Any) -> None:
        self._app = app

    def serve_forever(self) -> None:
        server = Server(self._config())
        if threading.current_thread() is threading.main_thread():
            server.run()
            _exit_later(0)
            raise KeyboardInterrupt  # the end that `runserver` expects
        ended = threading.Event()

        def end() -> None:
            server.stop(now=True)
            ended.wait(2 * GRACE)
            _exit_later(RELOAD)

        # Before `concurrent.futures` waits for its threads, and so before what is registered with atexit.
        threading._register_atexit(end)  # type: ignore[attr-defined]
        try:
            server.run()
        finally:
            ended.set()

    def _config(self) -> ServerConfig:
        logging.getLogger(LOGGER).addFilter(_with_status)
        return ServerConfig(
            self._app,
            fd=self._listener.detach(),  # the server closes it
            threads=THREADS if isinstance(self, socketserver.ThreadingMixIn) else 1,
            access_log_logger=LOGGER,
            access_log_format='"%(r)s" %(s)s %(B)s',
            log_level="warning",
            timeout_graceful_shutdown=GRACE,
            timeout_drain_idle=0.0,
        )


def _exit_later(status: int) -> None:
    """End the process if the interpreter does not: it waits for a view that runs in a thread of asgiref."""
    timer = threading.Timer(GRACE, os._exit, (status,))
    timer.daemon = True
    timer.start()


def _with_status(record: logging.LogRecord) -> bool:
    """Add the status, by which Django's formatter colours a line."""
    status = record.getMessage().rpartition('" ')[2].split(" ")[0]
    if status.isdigit():
        record.status_code = int(status)
    return True
