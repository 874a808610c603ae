"""`--reload`: a process that watches files and reports changes to the supervisor.

It is a separate process because a watcher may use threads and the supervisor forks.
"""

from __future__ import annotations

import fnmatch
import logging
import os
import select
import signal
import time
from collections.abc import Iterator
from typing import NoReturn

from ..config import ServerConfig
from .importer import search_path
from .spawner import Start

logger = logging.getLogger("towline.server")

POLL_INTERVAL = 0.25
"""Polling interval of modification times, in seconds, if watchfiles is not installed."""


class Watcher:
    """The supervisor's side of the process."""

    def __init__(self, config: ServerConfig, lifeline: int, start: Start) -> None:
        self._channel, write = os.pipe()
        os.set_blocking(self._channel, False)
        self.pid = start(watch, (config, write, lifeline), (write, lifeline), self._channel)
        os.close(write)

    def descriptors(self) -> tuple[int, ...]:
        return () if self._channel < 0 else (self._channel,)

    def changed(self) -> str | None:
        """The first file that has changed since the last call."""
        if self._channel < 0:
            return None
        try:
            lines = os.read(self._channel, 65536)
        except BlockingIOError:
            return None
        if not lines:
            logger.error("the file watcher has ended: reloading is disabled")
            self._end()
            return None
        return lines.decode(errors="replace").splitlines()[0]

    def close(self) -> None:
        if self._channel >= 0:
            os.kill(self.pid, signal.SIGTERM)
            self._end()

    def _end(self) -> None:
        os.close(self._channel)
        os.waitpid(self.pid, 0)
        self._channel = self.pid = -1


def watch(config: ServerConfig, channel: int, lifeline: int) -> NoReturn:
    """Write one line, a changed file, for each burst of changes, until the supervisor ends."""
    directories = [os.path.abspath(path) for path in config.reload_dir or search_path(config.app_dir)]
    path_filter = PathFilter(config.reload_include, config.reload_exclude)
    supervisor = select.poll()
    supervisor.register(lifeline, select.POLLIN)
    try:
        for path in _changes(directories, path_filter):
            if supervisor.poll(0):
                break
            if path:
                os.write(channel, os.path.relpath(path).encode() + b"\n")
    except (BrokenPipeError, KeyboardInterrupt):
        pass
    finally:
        os._exit(0)


class PathFilter:
    """Selects the watched paths: the name matches an include glob, and no part of the path an exclude glob."""

    def __init__(self, include: tuple[str, ...], exclude: tuple[str, ...]) -> None:
        self._include, self._exclude = include, exclude

    def file(self, name: str) -> bool:
        return any(fnmatch.fnmatch(name, glob) for glob in self._include) and self.entry(name)

    def entry(self, name: str) -> bool:
        """Whether a directory or file is not excluded."""
        return not any(fnmatch.fnmatch(name, glob) for glob in self._exclude)

    def path(self, path: str, root: str) -> bool:
        *directories, name = os.path.relpath(path, root).split(os.sep)
        return self.file(name) and all(map(self.entry, directories))


def _changes(directories: list[str], path_filter: PathFilter) -> Iterator[str]:
    """Yield each changed file, and from time to time an empty string so that the caller can check its lifeline."""
    try:
        import watchfiles
    except ImportError:
        yield from _polled(directories, path_filter)
        return
    watcher = watchfiles.watch(
        *directories, watch_filter=None, yield_on_timeout=True, rust_timeout=1000, debounce=200, step=50
    )
    for changes in watcher:
        paths = (path for _, path in changes)
        yield next(
            (p for p in paths if any(p.startswith(d) and path_filter.path(p, d) for d in directories)), ""
        )


def _polled(directories: list[str], path_filter: PathFilter) -> Iterator[str]:
    before = snapshot(directories, path_filter)
    while True:
        time.sleep(POLL_INTERVAL)
        after = snapshot(directories, path_filter)
        # The difference includes added and removed files.
        yield next((path for path, _ in before.items() ^ after.items()), "")
        before = after


def snapshot(directories: list[str], path_filter: PathFilter) -> dict[str, tuple[int, int]]:
    """Modification time (ns) and size of every watched file, by path."""
    found: dict[str, tuple[int, int]] = {}
    for directory in directories:
        for where, inner, names in os.walk(directory):
            inner[:] = [name for name in inner if path_filter.entry(name)]
            for name in filter(path_filter.file, names):
                path = os.path.join(where, name)
                try:
                    status = os.stat(path)
                except OSError:
                    continue  # removed in between
                found[path] = status.st_mtime_ns, status.st_size
    return found
