"""Listening sockets: opened once, by the process that will outlive the workers, and inherited by them."""

from __future__ import annotations

import dataclasses
import os
import socket
import stat

from .. import _native
from ..config import Bind, ServerConfig
from ..errors import StartupError

SYSTEMD_FIRST_FD = 3


@dataclasses.dataclass
class Listeners:
    """The open sockets, and the paths of those Unix sockets that were created here."""

    binds: list[Bind] = dataclasses.field(default_factory=list)
    unix_paths: list[str] = dataclasses.field(default_factory=list)

    def close(self) -> None:
        """Close this process's descriptors. Inherited copies stay open."""
        for bind in self.binds:
            try:
                os.close(bind.fd)
            except OSError:
                pass  # closed before; there is nothing left to do about it
        self.binds = []

    def remove_unix_sockets(self) -> None:
        """Remove our socket files. Call it when the last process that used them has stopped."""
        for path in self.unix_paths:
            try:
                if stat.S_ISSOCK(os.stat(path).st_mode):
                    os.unlink(path)
            except OSError:
                pass  # gone already
        self.unix_paths = []


def open_all(config: ServerConfig) -> Listeners:
    """Open every address of the configuration, or take the sockets systemd has opened (`LISTEN_FDS`).

    Raises `StartupError` naming the address; what was opened before is closed again.
    """
    listeners = Listeners()
    activated = [] if config.bind or config.uds or config.fd is not None else _activated()
    addresses = [(address, False) for address in activated or config.addresses]
    if config.metrics_address is not None:
        addresses.append((config.metrics_address, True))
    try:
        for address, metrics in addresses:
            listeners.binds += _open(address, config, metrics)
            if address.startswith("unix:") and not address.startswith("unix:@"):
                listeners.unix_paths.append(os.path.abspath(address.removeprefix("unix:")))
    except BaseException:
        listeners.close()
        listeners.remove_unix_sockets()
        raise
    return listeners


def url(bind: Bind, config: ServerConfig) -> str:
    """How a person reaches this address."""
    if bind.address.startswith("unix:"):
        return bind.address
    if bind.metrics:
        return f"http://{bind.address}/metrics"
    return f"{'https' if config.ssl_certfile else 'http'}://{bind.address}"


def _activated() -> list[str]:
    """systemd's protocol: LISTEN_PID is us, LISTEN_FDS counts descriptors from 3 on."""
    count, process = os.environ.get("LISTEN_FDS", ""), os.environ.get("LISTEN_PID", "")
    if not count.isdigit() or process != str(os.getpid()):
        return []
    for variable in ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"):
        os.environ.pop(variable, None)  # not for the processes we start
    return [f"fd://{SYSTEMD_FIRST_FD + index}" for index in range(int(count))]


def _open(address: str, config: ServerConfig, metrics: bool) -> list[Bind]:
    try:
        fds = _native.open_listeners(address, config.backlog)
    except OSError as error:
        raise StartupError(f"cannot listen on {str(error).partition(' (os error')[0]}") from None
    return [Bind(fd, _name(fd, address), metrics) for fd in fds]


def _name(fd: int, address: str) -> str:
    """The address with the port that the kernel chose."""
    with socket.socket(fileno=os.dup(fd)) as listener:
        name = listener.getsockname()
    if isinstance(name, tuple):
        return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
    if isinstance(name, bytes):
        name = "@" + name[1:].decode(errors="replace")
    return f"unix:{name}" if name else address
