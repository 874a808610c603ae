"""Which cells a run on clients has; the clients themselves know their jobs (bench/clients)."""

from __future__ import annotations

from dataclasses import replace

from ..clients.jobs import cells_of, client_scenarios
from ..clients.measure import ClientCell, ClientSubject, Setting
from ..clients.subjects import CLIENTS, Interpreters
from ..record import CellRecord
from ..scenarios import Scenario
from .loop import CellPlan
from .plan import Options, select
from .server_experiments import marks
from .session import Session

QUICK, QUICK_CELL = "hello_async", "hello_async_20"
"""Twenty at once, answered at once: the clients' own cost, and short slices."""


class ClientCells:
    """Measures the chosen scenarios on the chosen clients, each cell beside an upstream of its own."""

    def __init__(self, session: Session, options: Options, *, quick: bool = False) -> None:
        self._session, self._options, self._quick = session, options, quick
        self._chosen = chosen_clients(options)
        self._interpreters = Interpreters.usual(dict(options.client_python))

    def run(self) -> None:
        control = not self._options.no_control
        for scenario in chosen_scenarios(self._options, quick=self._quick):
            if self._options.protocol and not set(scenario.protocols) & set(self._options.protocol):
                continue
            cells = cells_of(scenario, "uvloop" if self._options.loop == "uvloop" else "asyncio")
            if self._quick and scenario.name == QUICK:
                cells = [cell for cell in cells if cell.name == QUICK_CELL]
            for cell in cells:
                record = self._cell(cell, control=False)
                if control and record is not None and record.slices:
                    self._cell(
                        cell, control=True, names=[one.name for one in record.subjects if not one.failure]
                    )
                    control = False

    def _cell(self, cell: ClientCell, *, control: bool, names: list[str] | None = None) -> CellRecord | None:
        clients = cell.clients(self._chosen)
        if not clients:
            return None
        if self._quick:  # a time, not a number of requests, ends a slice
            cell = replace(cell, job=replace(cell.job, count=None), slices=None, floor_s=None)
        with Setting(
            cell, self._session.design.cores.driver, self._interpreters, network=self._session.network
        ) as setting:
            subjects = [setting.subject(client) for client in clients]
            if control:
                subjects = twins(subjects, self._session.design.baseline, names or [])
            return self._session.measure(self._plan(cell, subjects, control=control))

    def _plan(self, cell: ClientCell, subjects: list[ClientSubject], *, control: bool) -> CellPlan:
        job = cell.job
        load: dict[str, object] = {"at_once": job.at_once, "pool": job.pool}
        if job.protocol != "h1":
            load["protocol"] = job.protocol
        if job.batch > 1:
            load["batch"] = job.batch
        notes = cell.notes if not control else ("the same client twice: any difference is the bench's own",)
        if (network := self._session.network) is not None and cell.over_a_network:
            load["net"] = network.asked
            notes = (*notes, network.said())
        return CellPlan(
            name=cell.name + (" control" if control else ""), scenario=cell.scenario, title=cell.title,
            section=cell.section, subjects=tuple(subjects), load=load, control=control,
            requests=job.count, rounds=cell.slices, alone=cell.alone, baseline=cell.baseline, floor_s=cell.floor_s,
            notes=notes,
        )  # fmt: skip


def twins(subjects: list[ClientSubject], baseline: str, names: list[str]) -> list[ClientSubject]:
    """The baseline, or the first that was measured, twice."""
    wanted = baseline if baseline in names else names[0]
    one = next(subject for subject in subjects if subject.name == wanted)
    return [one, Again(one)]


class Again(ClientSubject):
    """The same client under another name."""

    def __init__(self, other: ClientSubject) -> None:
        super().__init__(other.client, other.setting)

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
    """Those for clients that the options leave. Raises `NothingToDo`."""
    known = client_scenarios()
    if quick and not options.scenario:
        return [known[QUICK]]
    return [
        known[name] for name in select(options.scenario, known, "scenario", lambda name: marks(known[name]))
    ]
