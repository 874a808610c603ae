"""Servers as the loop's subjects: a process of `subjects`, a session of the generator, the scenario's checker."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..checker import WrongResponse, check
from ..netem import Netem
from ..record import Slice, SubjectRecord
from ..scenarios import Protocol, Scenario, session_config
from ..subjects import (
    NotSupported,
    Process,
    Server,
    Settings,
    SubjectFailed,
    installed,
    render,
    versions,
)
from ..subjects.attached import AttachedServer
from ..subjects.machine import stolen_s
from ..subjects.ports import ANY_HOST, HOST
from ..subjects.render import APPS
from .agent import Agent, slice_of
from .drivers import HERE, Drivers
from .network import Network, with_netem
from .peak import find_peak
from .protocol import Failed, Memory, SliceSpec, StartConfig


@dataclass(frozen=True)
class Binding:
    """One scenario with one load, bound to the generator, for all servers of an experiment."""

    scenario: Scenario
    agent: Agent
    connections: int | None = None
    """None: as in the scenario."""
    interface: str | None = None
    tls: tuple[Path, Path] | None = None
    peers_bin: Path | None = None
    network: Network | None = None
    protocol: Protocol = "h1"
    drivers: Drivers = HERE


def load_over(scenario: Scenario, protocol: Protocol) -> dict[str, object]:
    """The protocol's part of an experiment's load, for the reader."""
    found: dict[str, object] = {} if protocol == "h1" else {"protocol": protocol}
    if scenario.concurrency(protocol) > 1:
        found["pipeline" if protocol == "h1" else "streams"] = scenario.concurrency(protocol)
    return found


class ServerSubject:
    """A server definition in an experiment; protocol.Subject."""

    def __init__(
        self,
        server: Server,
        binding: Binding,
        *,
        name: str | None = None,
        app: str | None = None,
        app_folder: Path | None = None,
    ) -> None:
        """`app`: an application other than the fixture. `name`: a name other than the definition's, for a control."""
        self.server, self.binding, self._name = server, binding, name or server.name
        self._app, self._app_folder = app, app_folder or (Path.cwd() if app is not None else APPS)

    @property
    def name(self) -> str:
        return self._name

    def describe(self) -> SubjectRecord:
        server, peers = self.server, self.binding.peers_bin
        if (missing := installed(server, peers)) is not None:
            return SubjectRecord(self._name, "server", failure=missing)
        try:
            rendered = render(
                server, self._settings(), host=self._shown_host(), port=0, folder=Path("FOLDER")
            )
        except NotSupported as error:
            return SubjectRecord(self._name, "server", failure=str(error))
        options = dict(rendered.options)
        if rendered.interface is not None:
            options["interface"] = rendered.interface
        if rendered.protocol != "h1":
            options["protocol"] = rendered.protocol
        return SubjectRecord(self._name, "server", rendered.shown, versions(server, peers), options)

    def start(self, start_config: StartConfig) -> RunningServer:
        try:
            process = Process(self.server, self._settings(start_config))
            try:
                process.wait_ready()
            except BaseException:
                process.stop()
                raise
        except SubjectFailed as error:
            raise Failed(str(error), error.log) from None
        except NotSupported as error:
            raise Failed(str(error)) from None
        network = self.binding.network
        try:
            netem = network.netem(f"{HOST}:{process.port}") if network is not None else None
        except BaseException:
            process.stop()
            raise
        return RunningServer(self._name, process, self.binding, start_config, netem)

    def _settings(self, start_config: StartConfig | None = None) -> Settings:
        binding = self.binding
        interface = binding.interface if self.server.interfaces else None
        fixture = binding.scenario.fixture(interface) if interface is not None else None
        settings = Settings(
            interface=interface,
            app=self._app or fixture,
            app_folder=self._app_folder,
            protocol=binding.protocol,
            tls=binding.tls,
            limits=self._limits(),
            peers_bin=binding.peers_bin,
            host=binding.drivers.address,
        )
        if binding.network is not None and binding.network.conditions.packets:
            settings = replace(settings, host=ANY_HOST)
        if start_config is None:
            return settings
        return replace(settings, cores=start_config.cores, padding_bytes=start_config.padding_bytes)

    def _shown_host(self) -> str:
        """The address in the command line of the record, which has none of a user's machines."""
        return HOST if self.binding.drivers.address == HOST else "ADDRESS"

    def _limits(self) -> dict[str, int]:
        """The limits of the scenario that the server has options for; servers without a needed one are not in the
        experiment."""
        return {
            name: value
            for name, value in self.binding.scenario.limits.plain().items()
            if name in self.server.limits
        }


class RunningServer:
    """A server that is ready; protocol.Running."""

    def __init__(
        self,
        name: str,
        process: Process | AttachedServer,
        binding: Binding,
        start_config: StartConfig,
        netem: Netem | None = None,
    ) -> None:
        self._name, self.process, self._binding, self._netem = name, process, binding, netem
        self.base_url = (
            process.base_url.replace(f"{HOST}:{process.port}", netem.address) if netem else process.base_url
        )
        self._cores = len(start_config.cores or (0,))
        self._seed = start_config.seed
        self._opened = False

    def verify(self) -> None:
        binding = self._binding
        binding.agent.open(self._name, self.config())
        self._opened = True
        try:
            check(binding.agent, self._name, binding.scenario, self.base_url, binding.protocol)
        except WrongResponse as error:
            raise self._failed(f"wrong response:  {error}") from None
        self._alive("while its responses were checked")

    def config(self) -> dict[str, Any]:
        """The configuration of the generator's session."""
        binding = self._binding
        return session_config(
            binding.scenario,
            self.base_url,
            protocol=binding.protocol,
            connections=binding.connections,
            seed=self._seed,
        )

    def slice(self, work: SliceSpec) -> Slice:
        if work.search:
            return self._search()
        stolen_before = stolen_s()
        before, began, netem_s = self.process.usage(), time.monotonic(), self._netem_s()
        try:
            report = self._binding.agent.slice(self._name, work)
        except Failed as error:
            self._alive("while it was measured")
            raise self._failed(str(error)) from None
        spent = self.process.usage().since(before)
        one = slice_of(report, self._name)
        if self._netem is not None:
            one = with_netem(one, self._netem_s() - netem_s, time.monotonic() - began)
        if one.failed:
            self._alive("while it was measured")
        # The discarded part, and the last responses after the end, cost as much per response as the counted part.
        completed = report.get("completed") or one.answered
        share = min(one.answered / completed, 1.0) if completed else 1.0
        cpu_s = spent.cpu_s * share
        return replace(
            one,
            subject_cpu_s=cpu_s,
            context_switches=round(spent.switches * share),
            subject_waited_s=spent.waited_s * share,
            stolen_s=stolen_s() - stolen_before,
            subject_busiest_share=min(cpu_s / one.measured_s, float(self._cores)) if one.measured_s else 0.0,
        )

    def _search(self) -> Slice:
        """The window that confirmed the highest rate within the goal."""
        binding = self._binding
        connections = binding.connections or binding.scenario.connections_over(binding.protocol)
        before = self.process.usage()
        report = find_peak(
            binding.scenario,
            self.base_url,
            binding.protocol,
            connections,
            self._seed,
            binding.agent.cores,
            binding.drivers.hosts,
        )
        spent = self.process.usage().since(before)
        one = slice_of(report, self._name)
        self._alive("while its peak was searched")
        return replace(one, subject_cpu_s=0.0, context_switches=spent.switches)

    def pause(self) -> None:
        self.process.pause()

    def resume(self) -> None:
        self.process.resume()

    def memory(self) -> Memory:
        return Memory(self.process.usage().rss_bytes, self.process.peaks().rss_bytes)

    def stop(self) -> str | None:
        if self._opened:
            self._binding.agent.close(self._name)
        notes = self.process.stop().notes(self._name)
        if self._netem is not None:
            # Last: the ends of the connections pass through it, and a server waits for them.
            self._netem.stop()
        return "; ".join(notes) or None

    def _netem_s(self) -> float:
        """CPU time of the network emulator; if it has ended, the bench has failed, not the server."""
        if self._netem is None:
            return 0.0
        if not self._netem.alive():
            raise Failed("the emulated network ended", self._netem.log())
        return self._netem.cpu_s()

    def _alive(self, when: str) -> None:
        try:
            self.process.check(when)
        except SubjectFailed as error:
            raise Failed(str(error), error.log) from None

    def _failed(self, reason: str) -> Failed:
        return Failed(reason, self.process.log_tail())
