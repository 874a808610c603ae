"""Listening sockets: opened once, by the supervisor, and inherited by the workers.

A TCP socket is only bound here. It listens when the first worker is ready, so that a probe of the port does not succeed
before anybody can respond; until then connections are refused.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import stat

from .. import _native
from ..config import Address, Bind, ServerConfig
from ..errors import StartupError
from . import udp
from .process import owner

logger = logging.getLogger("towline.server")

SYSTEMD_FIRST_FD = 3
PORT_ATTEMPTS = 20
"""Ports that the kernel selects for TCP until one is free for UDP as well."""


@dataclasses.dataclass
class Listeners:
    """The open sockets, and the paths of the Unix sockets that were created."""

    binds: list[Bind] = dataclasses.field(default_factory=list)
    udp: udp.UdpPorts = dataclasses.field(default_factory=udp.UdpPorts)
    unix_paths: list[str] = dataclasses.field(default_factory=list)

    def of_worker(self, number: int) -> list[Bind]:
        """The sockets of the event loop with this number: those for TCP, and its own for UDP. Raises `StartupError`."""
        return [*self.binds, *self.udp.sockets(number)]

    @property
    def have_tls(self) -> bool:
        return bool(self.udp) or any(bind.settings and bind.settings.tls for bind in self.binds)

    def close(self) -> None:
        """Close the descriptors of this process. Inherited copies stay open."""
        self.udp.close()
        for bind in self.binds:
            try:
                os.close(bind.fd)
            except OSError:
                pass  # already closed
        self.binds = []

    def remove_unix_sockets(self) -> None:
        """Remove the socket files, after the last process that uses them has ended."""
        for path in self.unix_paths:
            try:
                if stat.S_ISSOCK(os.lstat(path).st_mode):
                    os.unlink(path)
            except OSError:
                pass  # already removed
        self.unix_paths = []


def open_all(config: ServerConfig) -> Listeners:
    """Open every address of the configuration, or use the sockets of systemd (`LISTEN_FDS`).

    Raises `StartupError` with the address; sockets that have been opened are closed again.
    """
    listeners = Listeners(udp=udp.UdpPorts(spawns=bool(config.spawn)))
    inherited = [] if config.bind or config.uds or config.fd is not None else _systemd_addresses()
    addresses = [Address(address).resolved(config) for address in inherited] or config.addresses
    if config.http3_early_data and any(3 in (address.http or ()) for address in addresses):
        listeners.udp.share_tickets()
    try:
        for address in addresses:
            if 3 in (address.http or ()):
                _open_with_udp(address, config, listeners)
            else:
                _open_into(listeners, address, config)
        if config.metrics_address is not None:
            _open_into(listeners, Address(config.metrics_address), config, metrics=True)
    except BaseException:
        listeners.close()
        listeners.remove_unix_sockets()
        raise
    return listeners


def _open_into(listeners: Listeners, address: Address, config: ServerConfig, metrics: bool = False) -> None:
    location = address.address
    opened = _open(location, config, metrics)
    listeners.binds += [dataclasses.replace(bind, settings=None if metrics else address) for bind in opened]
    if location.startswith("unix:") and not location.startswith("unix:@"):
        listeners.unix_paths.append(os.path.abspath(location.removeprefix("unix:")))


def _open_with_udp(settings: Address, config: ServerConfig, listeners: Listeners) -> None:
    """Open an address for HTTP/3, and for TCP unless HTTP/3 is the only protocol."""
    address = settings.address
    inherited = address.removeprefix("fd://")
    if inherited != address and inherited.isdigit() and udp.is_udp(int(inherited)):
        listeners.udp.shared.append((int(inherited), settings))
        if config.workers > 1 and not udp.is_reusable(int(inherited)):
            logger.warning("only one worker serves HTTP/3 on %s: set ReusePort=yes for this socket", address)
        return
    if settings.http == (3,):
        for host, port in udp.addresses_of(address):
            listeners.udp.add(host, port, settings)
        return
    for attempt in range(PORT_ATTEMPTS):
        binds = _open(address, config, metrics=False)
        before = len(listeners.udp.addresses)
        try:
            for bind in binds:
                host, _, number = bind.address.rpartition(":")
                if not bind.address.startswith("unix:"):
                    listeners.udp.add(host.removeprefix("[").removesuffix("]"), int(number), settings)
        except StartupError:
            Listeners(binds).close()
            del listeners.udp.addresses[before:]
            if not address.endswith(":0") or attempt == PORT_ATTEMPTS - 1:
                raise
        else:
            listeners.binds += [dataclasses.replace(bind, settings=settings) for bind in binds]
            return


def names(listeners: Listeners) -> list[str]:
    """The URLs of all addresses."""
    tcp = {bind.address for bind in listeners.binds}
    alone = [bind for bind in listeners.udp.sockets(0) if bind.address not in tcp]
    return [*map(url, listeners.binds), *(f"https://{bind.address} (UDP)" for bind in alone)]


def url(bind: Bind) -> str:
    """The URL of an address."""
    if bind.address.startswith("unix:"):
        return bind.address
    if bind.metrics:
        return f"http://{bind.address}/metrics"
    return f"{'https' if bind.settings and bind.settings.tls else 'http'}://{bind.address}"


def _systemd_addresses() -> list[str]:
    """The addresses of systemd's sockets: LISTEN_PID is this process, LISTEN_FDS counts descriptors from 3 on."""
    count, process = os.environ.get("LISTEN_FDS", ""), os.environ.get("LISTEN_PID", "")
    if not count.isdigit() or process != str(os.getpid()):
        return []
    for variable in ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"):
        os.environ.pop(variable, None)  # not for child processes
    return [f"fd://{SYSTEMD_FIRST_FD + index}" for index in range(int(count))]


def _open(address: str, config: ServerConfig, metrics: bool) -> list[Bind]:
    host, _, port = address.rpartition(":")
    if host == "localhost":
        return _open_localhost(port, config, metrics)
    try:
        fds = _native.open_listeners(address, config.backlog, config.uds_permissions)
        _give_to_owner(address, config)
    except OSError as error:
        raise StartupError(f"cannot listen on {str(error).partition(' (os error')[0]}") from None
    return [Bind(fd, _name(fd, address), metrics) for fd in fds]


def _open_localhost(port: str, config: ServerConfig, metrics: bool) -> list[Bind]:
    """Both loopback addresses with one port (RFC 6761 6.3): which of them clients try first differs."""
    binds = _open(f"127.0.0.1:{port}", config, metrics)
    if _has_ipv6_loopback():
        try:
            binds += _open(f"[::1]:{binds[0].address.rpartition(':')[2]}", config, metrics)
        except BaseException:
            Listeners(binds).close()
            raise
    return binds


def _has_ipv6_loopback() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def _give_to_owner(address: str, config: ServerConfig) -> None:
    """Give a Unix socket to `--user` and `--group`."""
    path = address.removeprefix("unix:")
    target = owner(config)
    if target is None or path == address or path.startswith("@"):
        return
    uid, gid = target.uid, target.gid
    os.chown(path, -1 if uid is None else uid, -1 if gid is None else gid, follow_symlinks=False)


def _name(fd: int, address: str) -> str:
    """The address with the port that the kernel has selected."""
    with socket.socket(fileno=os.dup(fd)) as listener:
        name = listener.getsockname()
    if isinstance(name, tuple):
        return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
    if isinstance(name, bytes):
        name = "@" + name[1:].decode(errors="replace")
    return f"unix:{name}" if name else address
