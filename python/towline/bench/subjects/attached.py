"""A server that is already running, found by its URL: it is measured, and never started, stopped or signalled.

Its processes are those that listen on its port, if they run on this machine under the same user, and their
descendants: they give its CPU time and memory. Otherwise the figures lack both.
"""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from ...errors import ConfigError
from .process import StopReport, SubjectFailed
from .reaper import descendants
from .resources import Meter, Peaks, Usage, high_water_bytes

CONNECT_TIMEOUT_S = 3.0
QUERY = "/%:@!$&'()*+,;=~-._?"
LISTEN, UNCONNECTED = "0A", "07"
"""State of a listening socket in /proc/net/tcp, and of one in /proc/net/udp that takes datagrams of everybody."""
PROBE_TIMEOUT_S = 0.2
"""Time for the refusal of a datagram by this machine or one nearby."""


@dataclass(frozen=True)
class Address:
    """A URL, divided."""

    scheme: str
    host: str
    port: int
    target: str
    """Path and query."""
    over_udp: bool = False
    """The server has HTTP/3, and perhaps nothing on TCP."""

    @classmethod
    def of(cls, url: str) -> Address:
        """Raises `ConfigError` for anything else than a URL of http or https without credentials and fragment."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"{url}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise ConfigError(f"{url!r} is no URL of http or https without credentials in it")
        # Text that is percent-encoded already stays so.
        target = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
        target += f"?{quote(parts.query, safe=QUERY)}" if parts.query else ""
        return cls(parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80), target)

    @property
    def authority(self) -> str:
        """Host and port as in a URL; the default port is left out (RFC 9110 4.2.3)."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = self.port == (443 if self.scheme == "https" else 80)
        return host if usual else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.authority}"

    def connect(self) -> str | None:
        """Opens and closes a connection. Returns the reason if that is not possible.

        Over UDP the reason is known if the machine refuses a datagram; what listens there is seen by its responses.
        """
        try:
            if self.over_udp:
                self._send_datagram()
                return None
            with socket.create_connection((self.host, self.port), CONNECT_TIMEOUT_S) as connection:
                self_connected = connection.getsockname() == connection.getpeername()
        except socket.gaierror:
            return f"the name {self.host} has no address"
        except ConnectionRefusedError:
            return "nothing listens there (connection refused)"
        except TimeoutError:
            return f"no connection within {CONNECT_TIMEOUT_S:g} s"
        except OSError as error:
            return str(error.strerror or error)
        return "nothing listens there" if self_connected else None

    def _send_datagram(self) -> None:
        """Sends a byte, which is no QUIC, and waits for its refusal (ICMP). Raises OSError."""
        ((family, kind, _, _, name), *_) = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_DGRAM)
        with socket.socket(family, kind) as sender:
            sender.settimeout(PROBE_TIMEOUT_S)
            sender.connect(name)
            sender.send(b"\0")
            with contextlib.suppress(TimeoutError):
                sender.recv(1)


class AttachedServer:
    """The part of `Process` that a measurement uses, for a server that was not started here."""

    def __init__(self, name: str, address: Address) -> None:
        self.name, self.address = name, address
        self.port, self.base_url = address.port, address.origin
        self._meter = _ListenersMeter(address)

    def wait_ready(self) -> None:
        """Raises `SubjectFailed` if nothing listens at its address."""
        self.check("")

    def check(self, when: str = "while it was measured") -> None:
        """Raises `SubjectFailed` if it does not accept connections any more."""
        if why := self.address.connect():
            raise SubjectFailed(f"{self.name}: {self.base_url}: {' '.join((why, when)).strip()}")

    def pause(self) -> None:
        """Does nothing: `--exclusive` is refused."""

    def resume(self) -> None:
        """Does nothing."""

    def usage(self) -> Usage:
        return self._meter.usage()

    def peaks(self) -> Peaks:
        return self._meter.peaks()

    def log_tail(self, lines: int = 40) -> str:
        """The output of this server is not known."""
        return ""

    def stop(self) -> StopReport:
        """Leaves it running."""
        return StopReport(None, killed=False, strays=(), stuck=0, seconds=0.0)


class _ListenersMeter(Meter):
    """Follows the processes that listen on a port of this machine."""

    def __init__(self, address: Address) -> None:
        super().__init__(0)
        self._listeners = listeners(address)

    def processes(self) -> list[int]:
        found = dict.fromkeys(self._listeners)
        for listener in self._listeners:
            below = descendants(listener)
            if os.getpid() not in below:  # init holds the sockets that it passes on, and is above everything
                found |= dict.fromkeys(below)
        return list(found)

    def peaks(self) -> Peaks:
        """The high-water marks since the start of the processes, which belong to somebody else and are not reset."""
        usage = self.usage()
        return Peaks(high_water_bytes(self.pids()), usage.processes, usage.threads)


def listeners(address: Address) -> list[int]:
    """Ids of this machine's processes that listen on the port, as far as /proc shows them; none for a remote one."""
    if not _is_local(address):
        return []
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(address.port, over_udp=address.over_udp)}
    found = []
    for folder in Path("/proc").glob("[0-9]*/fd") if sockets else ():
        try:
            links = {os.readlink(entry) for entry in folder.iterdir()}
        except OSError:
            continue  # it has ended, or belongs to another user
        if links & sockets:
            found.append(int(folder.parent.name))
    return sorted(found)


def _is_local(address: Address) -> bool:
    """Whether a socket of this machine could be bound to the address."""
    try:
        candidates = socket.getaddrinfo(address.host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, _, _, name in candidates:
        try:
            with socket.socket(family, kind) as candidate:
                candidate.bind(name)
        except OSError:
            continue
        return True
    return False


def _listening_inodes(port: int, *, over_udp: bool) -> set[str]:
    """Listening sockets of /proc/net/tcp and the like: local address in field 1, state in field 3, inode in field 9."""
    found = set()
    names, state = (("udp", "udp6"), UNCONNECTED) if over_udp else (("tcp", "tcp6"), LISTEN)
    for name in names:
        try:
            lines = Path("/proc/net", name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == state and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found
