"""Attributes of the processes: working directory, umask, variables, user and group."""

from __future__ import annotations

import dataclasses
import grp
import os
import pwd

from .._standard_streams import open_standard_streams
from ..config import ServerConfig
from ..errors import StartupError


def prepare(config: ServerConfig) -> None:
    """Apply what all processes share, in the process that starts them. Raises `StartupError`."""
    open_standard_streams()
    if config.chdir is not None:
        try:
            os.chdir(config.chdir)
        except OSError as error:
            raise StartupError(f"--chdir: cannot enter {config.chdir}: {error.strerror}") from None
    if config.umask is not None:
        os.umask(config.umask)
    for path in config.env_file:
        read_env_file(path)
    os.environ.update(config.env)
    owner(config)


def read_env_file(path: str) -> None:
    """Set the variables of a file that are not set yet, as python-dotenv reads it. Raises `StartupError`."""
    import dotenv

    try:
        with open(path, encoding="utf-8-sig") as file:
            dotenv.load_dotenv(stream=file)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise StartupError(f"--env-file: cannot read {path}: {reason}") from None


@dataclasses.dataclass(frozen=True)
class Owner:
    """The user and group of the workers; `name`: for the user's other groups."""

    uid: int | None
    gid: int | None
    name: str | None


def owner(config: ServerConfig) -> Owner | None:
    """The user and group of the configuration; None without them. Raises `StartupError` if they cannot be used."""
    if config.user is None and config.group is None:
        return None
    uid, gid, name = None, None, None
    if config.user is not None:
        try:
            entry = pwd.getpwuid(int(config.user)) if config.user.isdigit() else pwd.getpwnam(config.user)
            uid, gid, name = entry.pw_uid, entry.pw_gid, entry.pw_name
        except KeyError:
            if not config.user.isdigit():
                raise StartupError(f"--user: there is no user {config.user!r}") from None
            uid = gid = int(config.user)
    if config.group is not None:
        try:
            gid = int(config.group) if config.group.isdigit() else grp.getgrnam(config.group).gr_gid
        except KeyError:
            raise StartupError(f"--group: there is no group {config.group!r}") from None
    if os.geteuid() != 0 and not (uid in (None, os.geteuid()) and gid in (None, os.getegid())):
        raise StartupError("--user and --group: only root can change them")
    return Owner(uid, gid, name)


def is_terminal_open() -> bool:
    """Whether this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def become(target: Owner) -> None:
    """Give up root for good, in a worker: the other groups, then the group, then the user."""
    try:
        if os.geteuid() == 0:
            if target.name is not None and target.gid is not None:
                os.initgroups(target.name, target.gid)
            else:
                os.setgroups([] if target.gid is None else [target.gid])
        if target.gid is not None:
            os.setgid(target.gid)
        if target.uid is not None:
            os.setuid(target.uid)
    except OSError as error:
        raise StartupError(f"--user and --group: cannot become {target}: {error.strerror}") from None
    for path in (os.__file__, __file__):
        # Otherwise an import fails later, anywhere.
        if not os.access(path, os.R_OK):
            raise StartupError(f"--user: {target.name or target.uid} cannot read {path}, which Python needs")
