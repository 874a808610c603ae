"""Clients as the runner's subjects: an experiment is one job for clients of one backend, with one responder.

    with ClientEnvironment(experiment, responder_cores) as environment:
        subjects = [environment.subject(client) for client in experiment.clients()]    # runner.protocol.Subject
each

`missing()` has the reason if a client is not installed; all other failures raise the runner's `Failed`.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from .. import record
from ..netem import Netem
from ..responder import Responder, ResponderElsewhere, ResponderFailed
from ..runner.drivers import HERE, Drivers
from ..runner.network import Network, with_netem
from ..runner.protocol import Failed, Memory, SliceSpec, StartConfig
from ..subjects.certificate import make_certificate
from ..subjects.machine import stolen_s
from ..subjects.resources import waited_s
from .process import ClientProcess, Worker
from .subjects import CLIENTS, Client, Interpreters, Missing, of_backend
from .worker.job import MICRO, SLOW, Job

SLOW_S = 6.0
"""Minimum duration of a slice with a slow reader."""
RESPONDER_FULL, CLIENT_FULL = 0.9, 0.9
"""Above this share of its core the responder may have been the limit, unless the client's core was full too."""
ASK_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class ClientExperiment:
    """A scenario with one load on clients of one backend."""

    name: str
    scenario: str
    title: str
    section: str
    job: Job
    slices: int | None = None
    """Slices per restart, if the scenario defines them (10 x 500 requests); None: as the plan has it."""
    floor_s: float | None = None
    """The minimum duration of a slice, by its arithmetic."""
    libraries: tuple[str, ...] | None = None
    """None: all clients with this backend."""
    baseline: str = "towline"
    alone: bool = False
    """Each client by itself, one slice per start, to measure its memory."""
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def over_a_network(self) -> bool:
        """Whether the network can be emulated: not for a step of a pool alone, nor over a unix socket."""
        return self.job.kind not in MICRO and "send_buffer_bytes" not in self.job.parameters

    def needs_one_machine(self) -> str | None:
        """Why the responder cannot be on another machine, or None."""
        if "send_buffer_bytes" in self.job.parameters:
            return "it is over a unix socket"
        return (
            "the responder needs a certificate that is on this machine" if self.job.protocol == "h3" else None
        )

    def clients(self, chosen: Collection[str] | None = None) -> list[Client]:
        """The clients of the experiment, or the chosen ones among them (by NAME, or NAME-sync)."""
        mine = of_backend(self.job.backend, self.libraries, self.job.protocol)
        if chosen is None:
            return mine
        requested = of_backend(self.job.backend, chosen, self.job.protocol)
        return requested if self.libraries is None else [client for client in requested if client in mine]


class ClientEnvironment:
    """The responder and the interpreters, shared by all subjects of an experiment."""

    def __init__(
        self,
        experiment: ClientExperiment,
        responder_cores: Sequence[int] | None = None,
        interpreters: Interpreters | None = None,
        responder: Responder | None = None,
        network: Network | None = None,
        drivers: Drivers = HERE,
    ) -> None:
        """`drivers`: where the responder is, unless one is given."""
        self.experiment, self.drivers = experiment, drivers
        self.network = network if experiment.over_a_network else None
        self.netems: list[Netem] = []
        self.interpreters = interpreters or Interpreters.usual()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._certificate: tempfile.TemporaryDirectory[str] | None = None
        self.responder, self.bases = (
            (responder, [responder.base_url]) if responder else self._listen(responder_cores)
        )
        if self.network is not None:
            try:
                for base in self.bases:
                    self.netems.append(self.network.netem(base.partition("://")[2]))
            except BaseException:
                self.close()
                raise
            scheme = self.bases[0].partition("://")[0]
            self.bases = [f"{scheme}://{netem.address}" for netem in self.netems]

    def _listen(self, cores: Sequence[int] | None) -> tuple[Responder, list[str]]:
        """A responder with as many origins as the job has, or on a unix socket."""
        parameters = self.experiment.job.parameters
        origins = parameters.get("origins", 1)
        # Only HTTP/2, so that a response proves its use.
        protocol = ["--protocol", "h2"] if self.experiment.job.protocol == "h2" else []
        if self.experiment.job.protocol == "h3":
            self._certificate = tempfile.TemporaryDirectory(prefix="towline-bench-")
            cert, key = make_certificate(Path(self._certificate.name)).tls
            protocol = ["--http3", "--cert", str(cert), "--key", str(key)]
        binds = ["--bind", f"{self.drivers.address}:0"] * origins
        if "send_buffer_bytes" in parameters:
            self._folder = tempfile.TemporaryDirectory(prefix="towline-bench-")
            path = str(Path(self._folder.name, "responder"))
            binds = ["--bind", f"unix:{path}"]
        try:
            responder = (
                ResponderElsewhere(self.drivers.driver, *binds, *protocol)
                if self.drivers.driver
                else Responder(*binds, *protocol, cores=cores)
            )
            more = [responder.read_line() for _ in range(origins - 1)]
        except ResponderFailed as failed:
            raise Failed(f"the responder: {failed}") from None
        if self._folder is not None:
            return responder, [path]
        return responder, [responder.base_url, *(f"http://{address}" for address in more)]

    def subject(self, client: Client) -> ClientSubject:
        return ClientSubject(client, self)

    def netem_s(self) -> float:
        """CPU time of the emulated network."""
        return sum(netem.cpu_s() for netem in self.netems)

    def close(self) -> None:
        for netem in self.netems:
            netem.stop()
        self.responder.stop()
        for folder in (self._folder, self._certificate):
            if folder is not None:
                folder.cleanup()

    def __enter__(self) -> ClientEnvironment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ClientSubject:
    """One client in one experiment; runner.protocol.Subject."""

    def __init__(self, client: Client, environment: ClientEnvironment) -> None:
        self.client, self.environment = client, environment

    @property
    def name(self) -> str:
        return self.client.library

    def missing(self) -> str | None:
        """Why it cannot be measured here, or None."""
        try:
            versions = self._versions()
        except (Missing, Failed) as reason:
            return str(reason)
        absent = [package for package, version in versions.items() if version is None]
        return (
            f"{', '.join(absent)}: not installed in {self.environment.interpreters.of(self.client)}"
            if absent
            else None
        )

    def describe(self) -> record.SubjectRecord:
        """Gets the versions from the client's interpreter."""
        job = self.environment.experiment.job
        options = {"backend": job.backend, "pool": str(job.pool)} | (
            {"loop": job.loop} if job.backend == "async" else {}
        )
        if job.protocol != "h1":
            options["protocol"] = job.protocol
        command, versions = [], dict[str, str]()
        if (why := self.missing()) is None:
            command = [str(self.environment.interpreters.of(self.client)), "towline/bench/clients/worker"]
            versions = {package: version or "" for package, version in self._versions().items()}
        return record.SubjectRecord(self.name, "client", command, versions, options, failure=why)

    def start(self, start_config: StartConfig) -> RunningClient:
        """A new process with an open client. Raises Failed."""
        environment = self.environment
        try:
            python = environment.interpreters.of(self.client)
        except Missing as missing:
            raise Failed(f"not installed: {missing}") from None
        process = ClientProcess(
            self.client,
            environment.experiment.job,
            environment.bases,
            python,
            start_config.cores,
            start_config.padding_bytes,
        )
        return RunningClient(self.name, process, environment, len(start_config.cores or (0,)))

    def _versions(self) -> dict[str, str | None]:
        found = versions_in(self.environment.interpreters.of(self.client))
        return {package: found[package] for package in self.client.packages}


@cache
def versions_in(python: Path) -> dict[str, str | None]:
    """Versions of all packages that any client needs, in one interpreter. Raises Failed."""
    worker = Worker(python)
    try:
        packages = sorted({package for client in CLIENTS.values() for package in client.packages})
        found: dict[str, str | None] = worker.call(ASK_TIMEOUT_S, op="versions", packages=packages)[
            "versions"
        ]
    finally:
        worker.stop()
    return found


class RunningClient:
    """An open client; runner.protocol.Running."""

    def __init__(self, name: str, process: ClientProcess, environment: ClientEnvironment, cores: int) -> None:
        self.name, self.process, self.environment, self.cores = name, process, environment, cores

    def verify(self) -> None:
        """Sends each request of the job over a new connection and over the same one again. Raises Failed."""
        self.process.verify()

    def slice(self, work: SliceSpec) -> record.Slice:
        """Runs load for a time, or for the job's count. Raises Failed."""
        if work.rate_per_s is not None:
            raise Failed("clients are measured in a closed loop: their capacity is the question")
        responder = self.environment.responder
        seconds = (
            max(work.duration_s, SLOW_S) if self.environment.experiment.job.kind in SLOW else work.duration_s
        )
        client = self.process.worker.pid
        stolen_before, waited_before = stolen_s(), waited_s(client) + responder.waited_s()
        began, spent, netem_s = time.time(), responder.cpu_s(), self.environment.netem_s()
        found = self.process.slice(seconds, work.discard_s, work.requests)
        one = replace(
            _slice(self.name, began, found, responder.cpu_s() - spent, self.cores),
            subject_waited_s=waited_s(client) + responder.waited_s() - waited_before,
            stolen_s=stolen_s() - stolen_before,
        )
        return (
            with_netem(one, self.environment.netem_s() - netem_s, found["whole_s"])
            if self.environment.netems
            else one
        )

    def pause(self) -> None:
        self.process.worker.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.worker.signal(signal.SIGCONT)

    def memory(self) -> Memory:
        return Memory(*self.process.memory_bytes())

    def stop(self) -> str | None:
        """Stops at once; reports a client that had already ended."""
        ended = None if self.process.worker.alive() else "it had ended before it was stopped"
        self.process.stop()
        return ended


def _slice(name: str, began: float, found: dict[str, Any], driver_cpu_s: float, cores: int) -> record.Slice:
    measured_s, whole_s = found["measured_s"], found["whole_s"]
    share = min(found["cpu_s"] / measured_s, float(cores)) if measured_s else 0.0
    driver_share = min(driver_cpu_s / whole_s, 1.0) if whole_s else 0.0
    limit = None
    if driver_share > RESPONDER_FULL and share < CLIENT_FULL:
        limit = f"the responder used {driver_share:.0%} of its core"
    return record.Slice(
        subject=name,
        restart=0,
        round=0,
        position=0,
        began_unix_s=began,
        measured_s=measured_s,
        answered=found["answered"],
        failed=found["failed"],
        response=record.Latency(**found.get("response", {})),
        subject_cpu_s=found["cpu_s"],
        subject_busiest_share=share,
        driver_cpu_s=driver_cpu_s,
        driver_busiest_share=driver_share,
        context_switches=found.get("switches", 0),
        body_bytes=found["body_bytes"],
        errors=found.get("errors", {}),
        first_failure=found.get("first_failure"),
        driver_limit=limit,
        histogram=found.get("histogram"),
        extra=found.get("extra", {}),
    )
