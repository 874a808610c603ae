"""The store of `--acme`: one folder for each CA, which the workers read and one process at a time writes.

```text
DIR/lock                      locked by the process that orders
DIR/CA/account.json           private key and address of the account
DIR/CA/NAME.pem               chain and key; renewed by rename
DIR/CA/NAME.json              the order in progress, failures, the next date
DIR/CA/tls-alpn-01/NAME.pem   responses to the challenge in progress
DIR/CA/http-01/TOKEN
```
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Iterator
from typing import Any

from ..config import ServerConfig
from ..errors import StartupError
from .process import owner

CHALLENGES = ("tls-alpn-01", "http-01")


class Store:
    """The files of one CA. Only the holder of the lock writes."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Wait until no other process orders, of this server or of another one with this store."""
        file = os.open(
            os.path.join(self.folder, os.pardir, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def read(self, name: str) -> bytes | None:
        try:
            with open(self.path(name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Replace a file, whole, also if the machine stops meanwhile."""
        path = self.path(name)
        new = f"{path}.new"
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)

    def record(self, name: str) -> dict[str, Any]:
        """The JSON object of a name or of the account. A damaged one is as good as none."""
        try:
            found = json.loads(self.read(f"{name}.json") or b"{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def save(self, name: str, record: dict[str, Any]) -> None:
        self.write(f"{name}.json", json.dumps(record).encode())

    def clear_challenges(self) -> None:
        for kind in CHALLENGES:
            for entry in os.scandir(self.path(kind)):
                os.unlink(entry.path)


def prepare(config: ServerConfig) -> ServerConfig:
    """Make the store, of the user of the workers; the configuration with its absolute path. Raises `StartupError`."""
    if config.acme_folder is None:
        return config
    from importlib.util import find_spec

    if find_spec("acme") is None:
        raise StartupError("--acme needs the package acme: pip install 'towline[acme]'")
    store = os.path.abspath(os.path.dirname(config.acme_folder))
    ca = None if config.acme_ca is None else os.path.abspath(config.acme_ca)
    if ca is not None and not os.access(ca, os.R_OK):
        raise StartupError(f"--acme-ca: cannot read {ca}")
    config = config.replace(acme_store=store, acme_ca=ca)
    folder = config.acme_folder
    assert folder is not None
    try:
        os.makedirs(os.path.dirname(store), exist_ok=True)
        for path in (store, folder, *(os.path.join(folder, kind) for kind in CHALLENGES)):
            _make(path, config)
    except OSError as error:
        raise StartupError(f"--acme-store: {error.filename}: {error.strerror}") from None
    return config


def _make(path: str, config: ServerConfig) -> None:
    target = owner(config)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    else:
        if target is not None and os.geteuid() == 0:
            os.chown(path, *(-1 if number is None else number for number in (target.uid, target.gid)))
    found = os.stat(path)
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise StartupError(
            f"--acme-store: others can enter {path} (mode {stat.S_IMODE(found.st_mode):o}), and private keys are "
            "kept there: chmod 700, or name a new directory in it"
        )
    user = os.geteuid() if target is None or target.uid is None else target.uid
    if found.st_uid != user:
        raise StartupError(
            f"--acme-store: {path} is of user {found.st_uid}, and the workers are of user {user}"
        )
