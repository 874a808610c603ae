"""The store of a server (`towline.state`): its directory is made before the workers, and removed after them.

Only the directory: the store in it is made by the first worker that opens it, so that a server whose application does
not use it costs nothing. It is in memory (`/dev/shm`) where there is room, since it ends with the server.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .. import _state_location
from .._state_location import STATE_VARIABLE
from ..config import ServerConfig
from .process import Owner, owner

logger = logging.getLogger("towline.server")

NAME = "towline-state-"
MEMORY = "/dev/shm"
ROOM = 256 << 20
"""Free bytes that the memory must have; a container often has 64 MiB."""
OWNER = "owner"
"""File that a running server and its workers have locked."""
BEING_MADE = "towline-new-"
LONGEST_MAKING_S = 60
"""Age from which a directory that is being made was left by a server that was killed meanwhile."""


_locks: list[int] = []


def locks() -> list[int]:
    """Descriptors that the workers hold: the store is in use as long as one of them is open."""
    return _locks


@contextmanager
def server_store(config: ServerConfig) -> Iterator[None]:
    """Name a store to the processes of the server: that of `--state`, or one of its own."""
    before = os.environ.get(STATE_VARIABLE)
    workers = owner(config)
    _state_location.workers_user = None if workers is None else workers.uid
    if config.state is not None:
        with _variable(config.state if "://" in config.state else os.path.abspath(config.state), before):
            yield
        return
    made = _make(config)
    if made is None:
        yield
        return
    folder, lock = made
    _locks.append(lock)
    try:
        with _variable(folder, before):
            yield
    finally:
        _remove(folder)
        _locks.remove(lock)
        os.close(lock)


@contextmanager
def _variable(value: str, before: str | None) -> Iterator[None]:
    os.environ[STATE_VARIABLE] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(STATE_VARIABLE, None)
        else:
            os.environ[STATE_VARIABLE] = before


def _make(config: ServerConfig) -> tuple[str, int] | None:
    """A new directory, of the user of the workers, and the lock that shows that it is in use.

    None if there is no place for it: an application that uses the store learns it there, others need none.
    """
    base = _base()
    _remove_left_over(base)
    try:
        # The store gets its name once it is locked: before that, another server could take it for a left-over.
        name = os.urandom(8).hex()
        made = os.path.join(base, f"{BEING_MADE}{name}")
        os.mkdir(made, mode=0o700)
        lock = os.open(os.path.join(made, OWNER), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        target = owner(config)
        if target is not None and os.geteuid() == 0:
            for path in (made, os.path.join(made, OWNER)):
                _chown(path, target)
        folder = os.path.join(base, f"{NAME}{name}")
        os.rename(made, folder)
    except OSError as error:
        logger.info("no store for towline.state, because %s has no place for it: %s", base, error.strerror)
        return None
    return folder, lock


def give_store(target: Owner) -> None:
    """Give the server's own store to the user of the workers. With `--preload` the application may have made it as root."""
    folder = os.environ.get(STATE_VARIABLE, "")
    if os.geteuid() != 0 or not os.path.basename(folder).startswith(NAME) or not os.path.isdir(folder):
        return
    for path in (folder, *(entry.path for entry in os.scandir(folder))):
        status = os.lstat(path)
        if stat.S_ISDIR(status.st_mode) or status.st_nlink == 1:  # not a second name of another file
            _chown(path, target)


def _chown(path: str, target: Owner) -> None:
    user, group = (-1 if number is None else number for number in (target.uid, target.gid))
    os.chown(path, user, group, follow_symlinks=False)


def _base() -> str:
    """A directory in memory with enough room, or that of temporary files."""
    try:
        found = os.statvfs(MEMORY)
        if os.access(MEMORY, os.W_OK) and found.f_bavail * found.f_frsize >= ROOM:
            return MEMORY
    except OSError:
        pass
    import tempfile  # rarely needed, and at every start otherwise

    return tempfile.gettempdir()


def _remove(folder: str) -> None:
    import shutil  # here because the server needs it only when it ends

    shutil.rmtree(folder, ignore_errors=True)


def _remove_left_over(base: str) -> None:
    """Remove stores of this user whose server was killed, and whose workers have ended, too. Root removes those of all users."""
    try:
        names = [name for name in os.listdir(base) if name.startswith((NAME, BEING_MADE))]
    except OSError:
        return  # it can be entered, and not read
    for name in names:
        folder = os.path.join(base, name)
        if name.startswith(NAME):
            _remove_unlocked(folder)
            continue
        try:
            age_s = time.time() - os.lstat(folder).st_mtime
            if age_s > LONGEST_MAKING_S and not _remove_unlocked(folder) and _is_ours(os.lstat(folder)):
                os.rmdir(folder)  # its maker was killed before it made the lock
        except OSError:
            continue  # locked, or another server was faster


def _remove_unlocked(folder: str) -> bool:
    """Remove a store that no process uses. False: it has no lock that may be opened."""
    try:
        lock = os.open(os.path.join(folder, OWNER), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        if _is_ours(os.fstat(lock)):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(folder)
    except BlockingIOError:
        pass
    finally:
        os.close(lock)
    return True


def _is_ours(status: os.stat_result) -> bool:
    return os.geteuid() in (0, status.st_uid)
