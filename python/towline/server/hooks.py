"""Calls of the hooks of a gunicorn configuration, with as much of gunicorn's `server` and `worker` as exists here.

An exception in `on_starting`, `post_fork` or `post_worker_init` fails the start. One in any other hook is logged, because
it must not cost requests.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import types
from typing import Any

from ..config import ServerConfig
from ..errors import StartupError
from .importer import own_traceback

logger = logging.getLogger("towline.server")

BOOTING = "[booting]"
"""The `pid` of a worker before the fork."""


@dataclasses.dataclass
class HookServer:
    """The argument `server`."""

    cfg: Any
    num_workers: int
    pid: int = dataclasses.field(default_factory=os.getpid)
    log: logging.Logger = logger


@dataclasses.dataclass
class HookWorker:
    """The argument `worker`. `age`: its number, from 1, among all workers of this supervisor."""

    cfg: Any
    age: int
    ppid: int
    pid: int | str = BOOTING
    log: logging.Logger = logger


class HookCaller:
    """Calls the hooks of a configuration, if it has any."""

    def __init__(self, config: ServerConfig) -> None:
        hooks = config.hooks
        self._functions = {} if hooks is None else hooks.functions
        settings = {} if hooks is None else hooks.settings
        self.server = HookServer(types.SimpleNamespace(**settings), config.workers)
        self._ages = itertools.count(1)

    def new_worker(self) -> HookWorker:
        """The argument for a worker that is going to be forked."""
        return HookWorker(self.server.cfg, next(self._ages), self.server.pid)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a hook that decides about the start. Raises `StartupError`, with its part of the traceback."""
        function = self._functions.get(name)
        if function is None:
            return
        try:
            function(*arguments)
        except Exception as error:
            frame = error.__traceback__
            inner = error.with_traceback(frame and frame.tb_next)  # without this one
            raise StartupError(f"the hook {name} raised an exception\n{own_traceback(inner)}") from error

    def notify(self, name: str, *arguments: Any) -> None:
        """Call any other hook."""
        function = self._functions.get(name)
        if function is None:
            return
        try:
            function(*arguments)
        except Exception:
            logger.exception("the hook %s raised an exception", name)
