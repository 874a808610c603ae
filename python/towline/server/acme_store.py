"""The store of `--acme`: one folder for each CA, which the workers read and one process at a time writes.

```text
DIR/lock                      locked by the process that orders
DIR/CA/account.json           private key of the account
DIR/CA/NAME.pem               chain and key; renewed by rename
DIR/CA/NAME.json              the order in progress, failures, the next date
DIR/CA/tls-alpn-01/NAME.pem   responses to the challenge in progress
DIR/CA/http-01/TOKEN
```
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from typing import Any

from ..config import ServerConfig
from ..errors import StartupError
from .process import owner

CHALLENGES = ("tls-alpn-01", "http-01")


class Store:
    """The files of one CA. Only the holder of the lock writes."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Wait until no other process orders, of this server or of another one with this store."""
        with _private(os.path.join(self._folder, os.pardir, "lock")) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def read(self, name: str) -> bytes | None:
        try:
            with open(os.path.join(self._folder, name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Replace a file, whole, also if the machine stops meanwhile."""
        path = os.path.join(self._folder, name)
        with _private(f"{path}.new") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.new", path)

    def record(self, name: str) -> dict[str, Any]:
        """The JSON object of a name or of the account. A damaged one is as good as none."""
        import json

        with contextlib.suppress(ValueError):
            return dict(json.loads(self.read(f"{name}.json") or b"{}"))
        return {}

    def save(self, name: str, record: dict[str, Any]) -> None:
        import json

        self.write(f"{name}.json", json.dumps(record).encode())

    def clear_challenges(self) -> None:
        for kind in CHALLENGES:
            for entry in os.scandir(os.path.join(self._folder, kind)):
                os.unlink(entry.path)


def _private(path: str) -> Any:
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


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
    umask = os.umask(0o077)
    try:
        for kind in CHALLENGES:
            os.makedirs(os.path.join(store, os.path.basename(config.acme_folder), kind), exist_ok=True)
        mode = os.stat(store).st_mode & 0o777
        if mode & 0o077:
            raise StartupError(
                f"--acme-store: others can enter {store} (mode {mode:o}), and private keys are kept there: "
                "chmod 700, or name a new directory in it"
            )
        _give_to_workers(store, config)
    except OSError as error:
        raise StartupError(f"--acme-store: {error.filename}: {error.strerror}") from None
    finally:
        os.umask(umask)
    return config.replace(acme_store=store, acme_ca=ca)


def _give_to_workers(store: str, config: ServerConfig) -> None:
    target = owner(config)
    if target is None or os.geteuid() != 0:
        return
    user, group = (-1 if number is None else number for number in (target.uid, target.gid))
    for folder, _, files in os.walk(store):
        for path in (folder, *(os.path.join(folder, name) for name in files)):
            os.chown(path, user, group, follow_symlinks=False)
