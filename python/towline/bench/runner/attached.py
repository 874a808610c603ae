"""A running server as the loop's subject: a restart is a new set of connections, its processes stay the same."""

from __future__ import annotations

import os
from dataclasses import replace

from ..record import SubjectRecord
from ..subjects import SubjectFailed
from ..subjects.attached import Address, AttachedServer
from .protocol import Failed, StartConfig
from .servers import Binding, RunningServer


class AttachedSubject:
    """A server at an address in an experiment; protocol.Subject."""

    def __init__(self, name: str, address: Address, binding: Binding) -> None:
        self._name, self.address, self.binding = name, address, binding

    @property
    def name(self) -> str:
        return self._name

    def describe(self) -> SubjectRecord:
        options: dict[str, str] = {}
        if self.binding.protocol != "h1":
            options["protocol"] = self.binding.protocol
        return SubjectRecord(self._name, "server", [self.address.origin], {}, options)

    def start(self, start_config: StartConfig) -> RunningServer:
        server = AttachedServer(self._name, self.address)
        try:
            server.wait_ready()
        except SubjectFailed as error:
            raise Failed(str(error)) from None
        # The server runs on any core: it was not started here.
        anywhere = replace(start_config, cores=tuple(sorted(os.sched_getaffinity(0))))
        return RunningServer(self._name, server, self.binding, anywhere)
