"""UDP sockets of HTTP/3: one for each event loop of the workers and address, bound to the same port.

The kernel selects a socket by the two addresses of a datagram (SO_REUSEPORT). A connection belongs to one worker, whose
number is in its connection IDs, so a worker that receives datagrams of another forwards them (`quic/workers.rs`).

The supervisor keeps all sockets open. A worker and its replacement have the same sockets: the group of sockets
of a port stays the same, and what arrives meanwhile waits. Only when a worker has died and is not replaced at once,
or is not replaced at all, are its sockets closed.
"""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Iterable

from .. import _native
from ..config import Address, Bind
from ..errors import StartupError

SECRET_BYTES = 32


@dataclasses.dataclass
class UdpPorts:
    """The UDP addresses of a server, and the sockets of each worker by its number. `None`: closed."""

    addresses: list[tuple[str, int, Address]] = dataclasses.field(default_factory=list)
    shared: list[tuple[int, Address]] = dataclasses.field(default_factory=list)
    """Descriptors of sockets that the service manager has opened. The first worker has them; others open sockets of their
    own beside those that have SO_REUSEPORT."""
    by_worker: list[list[Bind] | None] = dataclasses.field(default_factory=list)
    secret: bytes = dataclasses.field(default_factory=lambda: os.urandom(SECRET_BYTES), repr=False)
    spawns: bool = False
    """The workers are not forked, and inherit descriptors."""
    tickets: _native.TicketStore | None = None
    """Tickets of the workers that are started from now on, with early data."""

    def __bool__(self) -> bool:
        return bool(self.addresses or self.shared)

    def add(self, host: str, port: int, settings: Address) -> int:
        """Add an address, before the first sockets of a worker are opened. Returns its port. Raises `StartupError`."""
        with _socket(host) as probe:
            # Sockets of the same user with SO_REUSEPORT would share the port with a second server.
            port = _bind(probe, host, port)
        self.addresses.append((host, port, settings))
        return port

    def sockets(self, number: int) -> list[Bind]:
        """The sockets of a worker, which are opened if they are not. Raises `StartupError`."""
        if not self:
            return []
        while len(self.by_worker) <= number:
            self.by_worker.append(None)
        binds = self.by_worker[number]
        if binds is None:
            binds = self.by_worker[number] = self._open(is_first=number == 0)
        return [dataclasses.replace(bind, tickets=self.tickets) for bind in binds]

    def share_tickets(self) -> None:
        """Let the workers that are started from now on share their tickets, without those of earlier ones: a reload may have
        changed which clients are trusted. Memory that cannot be had leaves each worker its own tickets."""
        try:
            self.tickets = _native.TicketStore(inheritable=self.spawns)
        except OSError:
            self.tickets = None

    def close_sockets(self, numbers: Iterable[int]) -> None:
        """Close the sockets with these numbers. Workers that have them go on."""
        for number in numbers:
            if number < len(self.by_worker):
                _close(self.by_worker[number] or [])
                self.by_worker[number] = None

    def close(self) -> None:
        """Close all descriptors of this process."""
        self.close_except(())

    def close_except(self, numbers: Iterable[int]) -> None:
        """Close all descriptors but those of a worker, in this worker."""
        for fd, _ in self.shared:
            os.close(fd)
        self.shared = []
        self.close_sockets(set(range(len(self.by_worker))).difference(numbers))

    def _open(self, *, is_first: bool) -> list[Bind]:
        # In the same order in every worker: datagrams are forwarded to the socket with the same number.
        addresses = list(self.addresses)
        inherited = sorted(self.shared, key=lambda shared: not is_reusable(shared[0]))
        if not is_first:
            addresses += [(*_address(fd), settings) for fd, settings in inherited if is_reusable(fd)]
            inherited = []
        binds: list[Bind] = []
        try:
            for host, port, settings in addresses:
                with _socket(host) as opened:
                    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                    _bind(opened, host, port)
                    binds.append(self._bind_of(opened.detach(), settings))
            binds += [self._bind_of(os.dup(fd), settings) for fd, settings in inherited]
        except BaseException:
            _close(binds)
            raise
        return binds

    def _bind_of(self, fd: int, settings: Address) -> Bind:
        return Bind(fd, named(*_address(fd)), udp=True, secret=self.secret, settings=settings)


def named(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_udp(fd: int) -> bool:
    """Whether an inherited descriptor is a UDP socket."""
    try:
        with socket.socket(fileno=os.dup(fd)) as inherited:
            return inherited.type == socket.SOCK_DGRAM and inherited.family in (
                socket.AF_INET,
                socket.AF_INET6,
            )
    except OSError:
        return False  # the error is reported where it is opened


def _address(fd: int) -> tuple[str, int]:
    with socket.socket(fileno=os.dup(fd)) as opened:
        host, port = opened.getsockname()[:2]
    return host, port


def is_reusable(fd: int) -> bool:
    """Whether other sockets can be bound to the port of this one (`ReusePort=` of systemd)."""
    with socket.socket(fileno=os.dup(fd)) as opened:
        return opened.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT) != 0


def addresses_of(address: str) -> list[tuple[str, int]]:
    """The socket addresses of `host:port`, as for TCP. Raises `StartupError`."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "0.0.0.0"
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)
    except (OSError, ValueError) as error:
        raise StartupError(f"cannot listen on {address} (UDP): {error}") from None
    return list(dict.fromkeys((str(item[4][0]), int(item[4][1])) for item in found))


def _socket(host: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_DGRAM)
    if family == socket.AF_INET6:
        # The unspecified address serves IPv4, too.
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
    return opened


def _bind(opened: socket.socket, host: str, port: int) -> int:
    try:
        opened.bind((host, port))
    except OSError as error:
        raise StartupError(f"cannot listen on {named(host, port)} (UDP): {error.strerror}") from None
    return int(opened.getsockname()[1])


def _close(binds: list[Bind]) -> None:
    for bind in binds:
        try:
            os.close(bind.fd)
        except OSError:
            pass  # already closed
