"""`--reload`: a process of its own that watches files and says when one has changed.

A separate process, because a watcher may use threads and the supervisor forks.
"""

from __future__ import annotations

import fnmatch
import os
import select
import time
from collections.abc import Iterator
from typing import NoReturn

from ..config import ServerConfig

POLL_INTERVAL = 0.25
"""Seconds between two looks at modification times, where watchfiles is not installed."""


def watch(config: ServerConfig, channel: int, lifeline: int) -> NoReturn:
    """Write one line, the changed file, for each burst of changes, until the supervisor is gone."""
    directories = [os.path.abspath(path) for path in config.reload_dir or (config.app_dir,)]
    wanted = Wanted(config.reload_include, config.reload_exclude)
    gone = select.poll()
    gone.register(lifeline, select.POLLIN)
    try:
        for path in _changes(directories, wanted):
            if gone.poll(0):
                break
            if path:
                os.write(channel, os.path.relpath(path).encode() + b"\n")
    except (BrokenPipeError, KeyboardInterrupt):
        pass
    finally:
        os._exit(0)


class Wanted:
    """Whether a path counts: its name matches an include glob and no part of it an exclude glob."""

    def __init__(self, include: tuple[str, ...], exclude: tuple[str, ...]) -> None:
        self._include, self._exclude = include, exclude

    def file(self, name: str) -> bool:
        return any(fnmatch.fnmatch(name, glob) for glob in self._include) and self.entry(name)

    def entry(self, name: str) -> bool:
        """A directory, or a file that is otherwise wanted, is not excluded."""
        return not any(fnmatch.fnmatch(name, glob) for glob in self._exclude)

    def path(self, path: str, root: str) -> bool:
        *directories, name = os.path.relpath(path, root).split(os.sep)
        return self.file(name) and all(map(self.entry, directories))


def _changes(directories: list[str], wanted: Wanted) -> Iterator[str]:
    """A changed file, or an empty string every now and then so that the caller can look around."""
    try:
        import watchfiles
    except ImportError:
        yield from _polled(directories, wanted)
        return
    watcher = watchfiles.watch(
        *directories, watch_filter=None, yield_on_timeout=True, rust_timeout=1000, debounce=200, step=50
    )
    for changes in watcher:
        paths = (path for _, path in changes)
        yield next((p for p in paths if any(p.startswith(d) and wanted.path(p, d) for d in directories)), "")


def _polled(directories: list[str], wanted: Wanted) -> Iterator[str]:
    before = snapshot(directories, wanted)
    while True:
        time.sleep(POLL_INTERVAL)
        after = snapshot(directories, wanted)
        # Also what was removed or added.
        yield next((path for path, _ in before.items() ^ after.items()), "")
        before = after


def snapshot(directories: list[str], wanted: Wanted) -> dict[str, tuple[int, int]]:
    """Path -> modification time (ns) and size, of every file that counts."""
    found: dict[str, tuple[int, int]] = {}
    for directory in directories:
        for where, inner, names in os.walk(directory):
            inner[:] = [name for name in inner if wanted.entry(name)]
            for name in filter(wanted.file, names):
                path = os.path.join(where, name)
                try:
                    status = os.stat(path)
                except OSError:
                    continue  # removed in between
                found[path] = status.st_mtime_ns, status.st_size
    return found
