"""The experiments of a run on clients; bench/clients derives their jobs."""

from __future__ import annotations

from dataclasses import replace

from ...errors import ConfigError
from ..clients.jobs import client_scenarios, experiments_of, takes_connections
from ..clients.measure import ClientEnvironment, ClientExperiment, ClientSubject
from ..clients.subjects import CLIENTS, Interpreters
from ..record import ExperimentRecord
from ..scenarios import Scenario
from .drivers import Drivers
from .loop import ExperimentPlan
from .plan import Options, select
from .server_experiments import marks
from .session import Session

QUICK, QUICK_EXPERIMENT = "hello_async", "hello_async_20"
"""Twenty concurrent requests with immediate responses: the clients' own cost, and short slices."""


class ClientExperiments:
    """Measures the chosen scenarios on the chosen clients, each experiment with a responder of its own."""

    def __init__(self, session: Session, options: Options, *, quick: bool = False) -> None:
        self._session, self._options, self._quick = session, options, quick
        self._chosen = chosen_clients(options)
        self._interpreters = Interpreters.usual(dict(options.client_python))
        self._drivers = Drivers.of(options)

    def run(self) -> None:
        control = not self._options.no_control
        for scenario in chosen_scenarios(self._options, quick=self._quick):
            if self._options.protocol and not set(scenario.protocols) & set(self._options.protocol):
                continue
            experiments = experiments_of(
                scenario, "uvloop" if self._options.loop == "uvloop" else "asyncio", self._options.connections
            )
            if self._quick and scenario.name == QUICK:
                experiments = [
                    experiment for experiment in experiments if experiment.name == QUICK_EXPERIMENT
                ]
            for experiment in experiments:
                record = self._experiment(experiment, control=False)
                if control and record is not None and record.slices:
                    self._experiment(
                        experiment,
                        control=True,
                        names=[one.name for one in record.subjects if not one.failure],
                    )
                    control = False

    def _experiment(
        self, experiment: ClientExperiment, *, control: bool, names: list[str] | None = None
    ) -> ExperimentRecord | None:
        clients = experiment.clients(self._chosen)
        if not clients:
            return None
        if self._drivers.elsewhere and (why := experiment.needs_one_machine()) is not None:
            self._session.progress.message(
                f"{experiment.name} is not measured with a driver elsewhere: {why}"
            )
            return None
        if self._quick:  # a time, not a number of requests, ends a slice
            experiment = replace(
                experiment, job=replace(experiment.job, count=None), slices=None, floor_s=None
            )
        with ClientEnvironment(
            experiment,
            self._session.design.cores.driver,
            self._interpreters,
            network=self._session.network,
            drivers=self._drivers,
        ) as environment:
            subjects = [environment.subject(client) for client in clients]
            if control:
                subjects = twins(subjects, self._session.design.baseline, names or [])
            return self._session.measure(self._plan(experiment, subjects, control=control))

    def _plan(
        self, experiment: ClientExperiment, subjects: list[ClientSubject], *, control: bool
    ) -> ExperimentPlan:
        job = experiment.job
        load: dict[str, object] = {"concurrency": job.concurrency, "pool": job.pool}
        if job.protocol != "h1":
            load["protocol"] = job.protocol
        if job.batch > 1:
            load["batch"] = job.batch
        notes = (
            experiment.notes if not control else ("the same client twice: any difference is the bench's own",)
        )
        if self._drivers.elsewhere:
            notes = (
                *notes,
                f"the responder is at {self._drivers.address}; its core is not pinned, and its stolen time not known",
            )
        if (network := self._session.network) is not None and experiment.over_a_network:
            load["net"] = network.requested
            notes = (*notes, network.description())
        return ExperimentPlan(
            name=experiment.name + (" control" if control else ""),
            scenario=experiment.scenario,
            title=experiment.title,
            section=experiment.section,
            subjects=tuple(subjects),
            load=load,
            control=control,
            requests=job.count,
            rounds=experiment.slices,
            alone=experiment.alone,
            baseline=experiment.baseline,
            floor_s=experiment.floor_s,
            notes=notes,
        )


def twins(subjects: list[ClientSubject], baseline: str, names: list[str]) -> list[ClientSubject]:
    """The baseline, or the first that was measured, twice."""
    wanted = baseline if baseline in names else names[0]
    one = next(subject for subject in subjects if subject.name == wanted)
    return [one, Twin(one)]


class Twin(ClientSubject):
    """A client under another name, for the control."""

    def __init__(self, other: ClientSubject) -> None:
        super().__init__(other.client, other.environment)

    @property
    def name(self) -> str:
        return f"{super().name} again"


def chosen_clients(options: Options) -> list[str] | None:
    """Names of clients, or of libraries; None: all. Raises `NothingToDo`."""
    if not options.subject:
        return None
    known = list(dict.fromkeys([*CLIENTS, *(client.library for client in CLIENTS.values())]))
    return select(options.subject, known, "client")


def chosen_scenarios(options: Options, *, quick: bool = False) -> list[Scenario]:
    """The client scenarios selected by the options.

    Raises `NothingToDo`, and `ConfigError` where `--connections` is given for a scenario that it does not apply to.
    """
    known = client_scenarios()
    if quick and not options.scenario:
        return [known[QUICK]]
    chosen = [
        known[name] for name in select(options.scenario, known, "scenario", lambda name: marks(known[name]))
    ]
    if options.scenario and options.connections:
        for scenario in chosen:
            if not takes_connections(scenario):
                raise ConfigError(
                    f"connections: {scenario.name} has a load of its own, not a number of concurrent requests; "
                    "measure it without --connections"
                )
    return chosen
