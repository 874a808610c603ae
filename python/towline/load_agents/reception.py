"""Connections of agents that a cluster has started: each shows the token of the run first."""

from __future__ import annotations

import hmac
import json
import secrets
import select
import socket
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from types import TracebackType

TOKEN_VARIABLE = "TOWLINE_AGENT_TOKEN"
NAME_VARIABLE = "TOWLINE_AGENT_NAME"
MAX_LINE_BYTES = 4096
"""Limit of the first line, which comes before the token is known to be right."""
FIRST_LINE_TIMEOUT_S = 10.0


class PlacementFailed(Exception):
    """The agents of a cluster could not be started; the message names those that are missing."""


@dataclass(frozen=True)
class Address:
    """`HOST:PORT` at which agents find the controller."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, port: int | None = None) -> Address:
        """`HOST:PORT`; with `port`, that is the default."""
        host, colon, digits = text.rpartition(":")
        if port is not None and (not colon or text.endswith("]")):
            host, digits = text, str(port)
        host = host.removeprefix("[").removesuffix("]")
        if not host or not digits.isascii() or not digits.isdigit() or int(digits) > 65_535:
            raise ValueError(f"{text!r} is not HOST:PORT")
        return cls(host, int(digits))


def address_towards(host: str, port: int) -> str:
    """The local address from which packets to `host` leave: the one at which its network finds this machine."""
    family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(where)  # of a datagram socket: nothing is sent
        name: str = probe.getsockname()[0]
        return name


class Reception:
    """Listens for the agents of one run."""

    def __init__(self, address: Address) -> None:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self._listener = socket.create_server((address.host, address.port), family=family, backlog=1024)
        self.address = Address(address.host, self._listener.getsockname()[1])
        self.token = secrets.token_urlsafe(32)
        self._arrived: dict[str, socket.socket] = {}

    def __enter__(self) -> Reception:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        for connection in self._arrived.values():
            connection.close()
        self._arrived.clear()

    def environment(self, name: str) -> dict[str, str]:
        """Variables of the agent with this name."""
        return {TOKEN_VARIABLE: self.token, NAME_VARIABLE: name}

    def receive(
        self, names: Collection[str], timeout_s: float, failures: Callable[[], dict[str, str]]
    ) -> Iterator[tuple[str, socket.socket]]:
        """Waits for all agents, and gives their sockets away. `failures`: what the engine says of those that failed."""
        deadline = time.monotonic() + timeout_s
        while missing := [name for name in names if name not in self._arrived]:
            failed = failures()
            if failed:
                reasons = (f"{name}: {why}" for name, why in failed.items())
                raise PlacementFailed(f"agents did not start: {'; '.join(reasons)}")
            if time.monotonic() > deadline:
                raise PlacementFailed(
                    f"no agent on {', '.join(missing)} has connected to {self.address} within {timeout_s:.0f} s: "
                    "can these nodes reach this address (--listen)?"
                )
            if select.select([self._listener], [], [], 0.2)[0]:
                self._accept(missing)
        for name in names:
            yield name, self._arrived.pop(name)

    def _accept(self, missing: Collection[str]) -> None:
        connection, _ = self._listener.accept()
        try:
            name = self._name_of(connection)
        except (OSError, ValueError):
            connection.close()
            return
        if name not in missing:
            connection.close()
            return
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._arrived[name] = connection

    def _name_of(self, connection: socket.socket) -> str:
        """The name in the first line; ValueError: not an agent of this run."""
        connection.settimeout(FIRST_LINE_TIMEOUT_S)
        line = b""
        while not line.endswith(b"\n"):
            # Nothing follows the line before the controller has written.
            piece = connection.recv(MAX_LINE_BYTES)
            line += piece
            if not piece or len(line) > MAX_LINE_BYTES:
                raise ValueError("no line")
        shown = json.loads(line)
        if not isinstance(shown, dict):
            raise ValueError("not an agent")
        if not hmac.compare_digest(str(shown.get("token")).encode(), self.token.encode()):
            raise ValueError("another token")
        return str(shown.get("name"))


def socket_list(sockets: Iterator[tuple[str, socket.socket]]) -> str:
    """The value of the native option `--agent-sockets`, which takes the sockets over."""
    return ",".join(f"{name.replace(',', ';')}={connection.detach()}" for name, connection in sockets)
