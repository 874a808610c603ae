"""The experiments of a run on servers: capacity, latency at common rates, curves, the A/A control."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..analysis import analyse_experiment
from ..record import ExperimentRecord
from ..scenarios import PROTOCOLS, VERSIONS, Protocol, Scenario, catalogue
from ..scenarios import load as load_scenarios
from ..scenarios.imports import from_curl, from_vegeta
from ..subjects import Server, make_certificate, servers
from . import peak
from .agent import Agent
from .drivers import Drivers
from .loop import ExperimentPlan
from .plan import Options, select
from .servers import Binding, ServerSubject, load_over
from .session import Session

SUITES_ON_REQUEST = frozenset({"HttpArena", "web-frameworks"})
"""Sections that a run without `--scenario` leaves out: suites of others, which would double its time."""
NOT_UNASKED = frozenset({"native"})
"""Measured only on request: Towline's responder shows the limit of the generator."""
BOTH_INTERFACES = ("hello",)
BOTH_SECTIONS = ("Hornbeam",)
LATENCY_SHARES = (0.5, 0.75)
CURVE_SHARES = (0.5, 0.75, 0.9, 0.95)
CURVE_CONNECTIONS = (1, 8, 64, 512)
BY_DEFAULT: tuple[Protocol, ...] = ("h1", "h2")
"""Protocols of a run without `--protocol`."""
QUICK_CONNECTIONS = 8
"""Few, so that slices of the slowest server are short enough to alternate with those of the others."""


@dataclass(frozen=True)
class ServerVariant:
    """The interface of the application and the protocol that a scenario is measured with."""

    interface: str
    protocol: Protocol = "h1"

    def suffix(self, scenario: Scenario) -> str:
        """Part of an experiment's name; the defaults of a scenario are omitted."""
        protocol = f"_{self.protocol}" if self.protocol != scenario.protocols[0] else ""
        return ("_wsgi" if self.interface == "wsgi" else "") + protocol

    @property
    def words(self) -> str:
        """Part of an experiment's title."""
        found = [
            *(["WSGI"] if self.interface == "wsgi" else []),
            *([VERSIONS[self.protocol]] if self.protocol != "h1" else []),
        ]
        return f" ({', '.join(found)})" if found else ""


class ServerExperiments:
    """Measures the chosen scenarios on the chosen servers."""

    def __init__(
        self,
        session: Session,
        options: Options,
        agent: Agent,
        folder: Path,
        *,
        quick: bool = False,
        notes: tuple[str, ...] = (),
    ) -> None:
        """`folder`: for a certificate; it outlives the run. `notes`: of every experiment."""
        self._drivers, self._notes = Drivers.of(options), notes
        self._session, self._options, self._agent, self._folder = session, options, agent, folder
        self._quick = quick
        self._tls: tuple[Path, Path] | None = None
        self.servers = chosen_servers(options)

    def run(self) -> None:
        control = not self._options.no_control
        for scenario in chosen_scenarios(self._options, quick=self._quick):
            if self._drivers.hosts and scenario.barrier:
                self._session.progress.message(
                    f"{scenario.name} is not measured: its barrier is within one thread, --hosts has several"
                )
                continue
            if self._options.side_by_side:
                self._side_by_side(scenario)
                continue
            for variant in self._variants(scenario):
                record = self._scenario(scenario, variant)
                if control and record is not None and self._control(scenario, variant, record):
                    control = False

    # --- one scenario -----------------------------------------------------------------------------------

    def _scenario(self, scenario: Scenario, variant: ServerVariant) -> ExperimentRecord | None:
        """The experiment of its capacity; None if there is none."""
        connections = self._connections(scenario)
        first: ExperimentRecord | None = None
        for number in connections:
            plan = self._plan(scenario, variant, number, sweep=len(connections) > 1)
            if plan.subjects:
                record = self._session.measure(plan)
                first = first or record
        if first is None:
            return None
        if self._options.find_peak:
            if (why := peak.cannot(scenario)) is not None:
                self._session.progress.message(f"{scenario.name}: no search for its peak: {why}")
            else:
                self._session.measure(self._peak_plan(scenario, variant))
        if not (self._quick or self._options.no_latency or scenario.barrier or scenario.page):
            self._latency(scenario, variant, first)
        return first

    def _connections(self, scenario: Scenario) -> Sequence[int | None]:
        if self._options.connections:
            return self._options.connections
        if self._quick and scenario.connections > QUICK_CONNECTIONS:
            return (QUICK_CONNECTIONS,)
        return (None, *(CURVE_CONNECTIONS if self._options.curve else scenario.more_connections))

    def _plan(
        self, scenario: Scenario, variant: ServerVariant, connections: int | None, *, sweep: bool = False
    ) -> ExperimentPlan:
        binding = self._binding(scenario, variant, connections)
        subjects, notes = self._subjects(scenario, variant, binding)
        number = connections or scenario.connections_over(variant.protocol)
        load: dict[str, object] = {"connections": number}
        load |= load_over(scenario, variant.protocol)
        if scenario.page is not None:
            load["page"] = scenario.page
        if sweep and connections is not None:
            load["curve"] = "connections"
        if binding.tls:
            load["tls"] = True
        if binding.network is not None:
            load["net"] = binding.network.requested
            notes.append(binding.network.description())
        suffix = variant.suffix(scenario) + (f"_c{connections}" if connections is not None else "")
        title = scenario.title + variant.words
        return ExperimentPlan(
            name=scenario.name + suffix,
            scenario=scenario.name,
            title=title,
            section=scenario.section,
            subjects=tuple(subjects),
            load=load,
            page=scenario.page,
            notes=(*scenario.notes, *self._notes, *notes),
            baseline=subjects[0].name if subjects else None,
        )

    def _subjects(
        self, scenario: Scenario, variant: ServerVariant, binding: Binding
    ) -> tuple[list[ServerSubject], list[str]]:
        """Servers that support it, and why others are not in the experiment."""
        found, notes = [], []
        for server in self.servers.values():
            needed = scenario.limits.plain() if scenario.limits.needed else {}
            if server.interfaces or variant.interface == "asgi":
                why = server.cannot(
                    scenario.name,
                    (variant.interface,),
                    (variant.protocol,),
                    needed,
                    tls=binding.tls is not None,
                )
                if why is None:
                    found.append(ServerSubject(server, binding))
                elif variant.interface not in why:
                    notes.append(f"{server.name} {why}")
        return found, notes

    def _binding(self, scenario: Scenario, variant: ServerVariant, connections: int | None = None) -> Binding:
        tls = self._certificate() if scenario.tls or self._options.tls or variant.protocol == "h3" else None
        return Binding(
            scenario,
            self._agent,
            connections,
            variant.interface,
            tls,
            self._options.peers_bin,
            self._session.network,
            variant.protocol,
            self._drivers,
        )

    def _certificate(self) -> tuple[Path, Path]:
        if self._tls is None:
            self._tls = make_certificate(self._folder).tls
        return self._tls

    def _variants(self, scenario: Scenario) -> Iterator[ServerVariant]:
        only_one = self._quick or len(scenario.protocols) == 1
        wanted = self._options.protocol or (scenario.protocols[:1] if only_one else BY_DEFAULT)
        for protocol in scenario.protocols:
            if protocol in wanted:
                yield from (
                    ServerVariant(interface, protocol) for interface in self._interfaces(scenario, protocol)
                )

    def _interfaces(self, scenario: Scenario, protocol: Protocol) -> Sequence[str]:
        wanted = self._options.interface
        if not wanted:
            both = scenario.name in BOTH_INTERFACES or scenario.section in BOTH_SECTIONS
            wanted = ("asgi", "wsgi") if both and protocol == "h1" and not self._quick else ("asgi",)
        found = [interface for interface in wanted if interface in scenario.interfaces]
        return found or list(scenario.interfaces[:1])

    # --- protocols ---------------------------------------------------------------------------------------------

    def _side_by_side(self, scenario: Scenario) -> None:
        """One experiment whose subjects are the servers over each protocol, all with TLS."""
        variants = list(self._variants(scenario))
        variants = [one for one in variants if one.interface == variants[0].interface]
        # The first protocol that was named is the baseline.
        variants.sort(key=lambda one: (self._options.protocol or PROTOCOLS).index(one.protocol))
        subjects: list[ServerSubject] = []
        notes: list[str] = []
        for variant in variants:
            binding = replace(
                self._binding(scenario, variant, self._connections(scenario)[0]), tls=self._certificate()
            )
            able, why = self._subjects(scenario, variant, binding)
            subjects += [
                ServerSubject(one.server, binding, name=f"{one.name} {variant.protocol}") for one in able
            ]
            notes += why
        if len(subjects) < 2:
            self._session.progress.message(f"{scenario.name}: fewer than two protocols to compare")
            return
        plan = self._plan(scenario, variants[0], self._connections(scenario)[0])
        load = {key: value for key, value in plan.load.items() if key not in ("protocol", "pipeline", "tls")}
        baseline = f"{self._session.design.baseline} {variants[0].protocol}"
        names = [one.name for one in subjects]
        self._session.measure(
            replace(
                plan,
                name=f"{scenario.name} by protocol",
                title=f"{scenario.title} ({', '.join(VERSIONS[one.protocol] for one in variants)})",
                subjects=tuple(subjects),
                load={**load, "tls": True},
                baseline=baseline if baseline in names else names[0],
                notes=(*scenario.notes, *self._notes, *dict.fromkeys(notes)),
            )
        )

    # --- experiments that depend on the capacity -----------------------------------------------------------------

    def _control(self, scenario: Scenario, variant: ServerVariant, measured: ExperimentRecord) -> bool:
        """Measures the same server twice; returns whether it did."""
        names = [one.name for one in measured.subjects if one.failure is None]
        if not names:
            return False
        baseline = self._session.design.baseline
        name = baseline if baseline in names else names[0]
        connections = self._connections(scenario)[0]
        binding = self._binding(scenario, variant, connections)
        server = self.servers[name]
        self._session.measure(control_of(self._plan(scenario, variant, connections), server, binding))
        return True

    def _latency(self, scenario: Scenario, variant: ServerVariant, measured: ExperimentRecord) -> None:
        options = self._options
        peaks = peaks_of(measured, self._session.design.baseline)
        if not peaks:
            return
        shares = options.latency or (LATENCY_SHARES if scenario.quick and not options.rate else ())
        rates = [(rate, None) for rate in options.rate]
        slowest = min(peaks.values())
        for rate, share in [*rates, *((two_digits(slowest * share), share) for share in shares)]:
            self._session.measure(self._at_rate(scenario, variant, rate, share))
        if options.curve:
            for name, peak in peaks.items():
                for share in CURVE_SHARES:
                    self._session.measure(self._at_rate(scenario, variant, peak * share, share, only=name))

    def _at_rate(
        self,
        scenario: Scenario,
        variant: ServerVariant,
        rate: float,
        share: float | None,
        only: str | None = None,
    ) -> ExperimentPlan:
        """The latency of all at one rate; of `only` one at a share of its own peak."""
        plan = self._plan(scenario, variant, None)
        subjects = tuple(one for one in plan.subjects if only is None or one.name == only)
        label = f"{share:.0%}" if share is not None else f"{rate:g}/s"
        load = {**plan.load, "rate_per_s": rate}
        if share is not None:
            load["share_of_peak"] = share
        if only is not None:
            load["curve"] = "rate"
        reference = "its own peak" if only is not None else "the slowest one's peak"
        title = f"{plan.title}, {label} of {reference}" if share is not None else f"{plan.title} at {label}"
        return replace(
            plan,
            name=f"{plan.name}@{label}" + (f" {only}" if only else ""),
            title=title,
            subjects=subjects,
            question="latency",
            load=load,
            rate_per_s=rate,
        )

    def _peak_plan(self, scenario: Scenario, variant: ServerVariant) -> ExperimentPlan:
        plan = self._plan(scenario, variant, None)
        return replace(
            plan,
            name=f"{plan.name} peak",
            title=f"{plan.title}, highest rate within its goal",
            load={**plan.load, "search": "peak"},
            search=True,
            rounds=1,
        )


def control_of(plan: ExperimentPlan, server: Server, binding: Binding) -> ExperimentPlan:
    """The A/A control for `plan`: any difference is an error of the bench."""
    twins = (ServerSubject(server, binding), ServerSubject(server, binding, name=f"{server.name} again"))
    return replace(
        plan,
        name=f"{plan.name} control",
        subjects=twins,
        control=True,
        baseline=server.name,
        notes=("the same server twice: any difference is the bench's own",),
    )


def chosen_servers(options: Options) -> dict[str, Server]:
    """The definitions selected by the options. Raises `NothingToDo`."""
    known = servers(options.servers)
    names = select(options.subject, known, "server")
    return {name: known[name] for name in names if options.subject or name not in NOT_UNASKED}


def chosen_scenarios(options: Options, *, quick: bool = False) -> list[Scenario]:
    """The server scenarios selected by the options. Raises `NothingToDo`."""
    known = {name: one for name, one in catalogue().items() if one.kind == "server"}
    own = own_scenarios(options)
    known |= own
    if own and not options.scenario:
        return list(own.values())
    if quick and not options.scenario:
        return [one for one in known.values() if one.quick]
    if not options.scenario:
        return [one for one in known.values() if one.section not in SUITES_ON_REQUEST]
    return [
        known[name] for name in select(options.scenario, known, "scenario", lambda name: marks(known[name]))
    ]


def own_scenarios(options: Options) -> dict[str, Scenario]:
    """Scenarios from files and command lines of the user. Raises `ScenarioError`."""
    own = load_scenarios(options.scenarios) if options.scenarios is not None else {}
    if options.curl:
        own["curl"] = from_curl(options.curl).scenario
    if options.vegeta is not None:
        own["vegeta"] = from_vegeta(options.vegeta).scenario
    return own


def marks(scenario: Scenario) -> Iterator[str]:
    """Marks by which a scenario can be selected."""
    yield f"section:{scenario.section.lower()}"
    if scenario.section in SUITES_ON_REQUEST:
        yield scenario.section.lower()
    yield from (f"tag:{tag}" for tag in scenario.tags)


def peaks_of(experiment: ExperimentRecord, baseline: str) -> dict[str, float]:
    """Measured responses per second of each subject that has them."""
    figures = {
        one.name: one.figures.get("per_s")
        for one in analyse_experiment(experiment, baseline).subjects
        if one.failure is None
    }
    return {name: figure.value for name, figure in figures.items() if figure is not None}


def two_digits(rate: float) -> float:
    """Rounded down, so that the next run may have an experiment of the same name."""
    unit = 10.0 ** (math.floor(math.log10(rate)) - 1)
    return math.floor(rate / unit) * unit
