"""A temporary PostgreSQL server on a unix socket, run by a user other than root."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.support.process import eventually


def _folder_of_binaries() -> Path | None:
    found = shutil.which("postgres")
    versions = sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"))
    return Path(found or versions[-1]).parent if found or versions else None


def _user() -> str | None:
    """The user to become: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    pytest.skip("no user to run PostgreSQL as")


@contextmanager
def server(*settings: str) -> Iterator[str]:
    """The URL of its database `postgres`; `settings` as in postgresql.conf. Skips where PostgreSQL is not installed."""
    binaries = _folder_of_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL's server is not installed")
    user = _user()
    # Not pytest's folder: other users have no access to it.
    folder = tempfile.mkdtemp(prefix="towline-pg-")
    try:
        if user is not None:
            shutil.chown(folder, user)
        data = f"{folder}/data"
        options = ["--auth=trust", "--username=towline", "--encoding=UTF8", "--locale=C"]
        subprocess.run(
            [binaries / "initdb", "-D", data, *options],
            user=user,
            cwd=folder,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        command = [binaries / "postgres", "-D", data, "-k", folder, "-c", "listen_addresses="]
        command += [word for one in settings for word in ("-c", one)]
        process = subprocess.Popen(command, user=user, cwd=folder, stderr=subprocess.DEVNULL)
        url = f"postgresql:///postgres?host={folder}&user=towline"
        try:
            eventually(lambda: _is_ready(url), "PostgreSQL")
            yield url
        finally:
            process.send_signal(signal.SIGQUIT)
            process.wait(20)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_ready(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True
