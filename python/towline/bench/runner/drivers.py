"""The machines of the drivers: this one, the one of a command (`--driver`), or several hosts (`--hosts`).

```text
no option             the generator is a process of this machine
--driver COMMAND      the generator is what the command runs, elsewhere; of clients, the responder is
--hosts a,b           the generator of this machine is the controller of an agent on each host
```
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from typing import Protocol

from ..._version import __version__
from ...errors import ConfigError
from ..subjects.ports import HOST
from .agent import COMMAND, Agent, AgentFailed

UNRECORDED = ("driver", "ssh", "agent_command", "address")
"""Options with paths and addresses of a user's machines; the names of the hosts are recorded."""


class Chosen(Protocol):
    """The options of a command that has drivers."""

    @property
    def driver(self) -> tuple[str, ...]: ...
    @property
    def hosts(self) -> str | None: ...
    @property
    def ssh(self) -> str | None: ...
    @property
    def agent_command(self) -> str | None: ...
    @property
    def address(self) -> str | None: ...


@dataclass(frozen=True)
class Drivers:
    """Where the load comes from, and the address at which the servers that are started here listen for it."""

    driver: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    """Arguments of `towline load`, none without `--hosts`."""
    address: str = HOST

    @classmethod
    def of(cls, options: Chosen) -> Drivers:
        """Drivers of options that `check` has accepted."""
        hosts: list[str] = []
        if options.hosts is not None:
            hosts += ["--hosts", options.hosts]
            hosts += ["--ssh", options.ssh] if options.ssh else []
            hosts += ["--agent-command", options.agent_command] if options.agent_command else []
        return cls(options.driver, tuple(hosts), options.address or HOST)

    @property
    def elsewhere(self) -> bool:
        """Whether the load comes from other machines."""
        return bool(self.driver or self.hosts)

    def generator(self) -> tuple[str, ...]:
        """The command of the generator."""
        return self.driver or (*COMMAND, *self.hosts)

    def introduced(self, agent: Agent) -> tuple[str, ...]:
        """A note about the machines, none if the generator is here. Raises `ConfigError` if there is no agent of
        this version, or a server that is started here could not listen."""
        if not self.elsewhere:
            return ()
        if self.address != HOST and not _is_local(self.address):
            raise ConfigError(f"address: {self.address} is no address of this machine")
        try:
            machine = agent.introduction()
        except AgentFailed as error:
            raise ConfigError(f"driver: {error}") from None
        if machine.get("version") != __version__:
            raise ConfigError(f"driver: it is towline {machine.get('version')}, this is {__version__}")
        return (
            f"the load comes from {machine.get('host')}; its core is not pinned, and its stolen time is not known",
        )


HERE = Drivers()
"""The generator, or the responder, is a process of this machine."""


def check(options: Chosen, *, starts_servers: bool) -> None:
    """Raises `ConfigError` for options that contradict each other."""
    elsewhere = "driver" if options.driver else "hosts" if options.hosts else None
    if options.driver and options.hosts:
        raise ConfigError("driver and hosts: one will do")
    if (options.ssh or options.agent_command) and not options.hosts:
        raise ConfigError("ssh and agent-command: need --hosts")
    if options.address is None:
        if elsewhere and starts_servers:
            raise ConfigError(
                f"{elsewhere}: needs --address, the address of servers that are started here for another machine; "
                f"without it they listen at {HOST}"
            )
        return
    if not (elsewhere and starts_servers):
        raise ConfigError(
            "address: is that of servers that are started for drivers elsewhere (--driver, --hosts)"
        )
    try:
        unusable = ipaddress.IPv4Address(options.address).is_unspecified
    except ValueError:
        unusable = True
    if unusable:
        raise ConfigError(f"address: {options.address!r} is no IPv4 address that another machine can reach")


def _is_local(address: str) -> bool:
    with socket.socket() as candidate:
        try:
            candidate.bind((address, 0))
        except OSError:
            return False
    return True
