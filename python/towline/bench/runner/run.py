"""A whole run, from its options to its record: `towline bench quick`, `servers`, `clients` and so on."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ...errors import ConfigError
from ..clients.subjects import CLIENTS
from ..llm.llm_experiments import EXPERIMENTS
from ..llm.main import run_llm
from ..llm.run import CHATS
from ..record import Record
from ..subjects import installed
from ..webhooks.run import listing as webhooks_listing
from ..webhooks.run import run_webhooks
from . import client_experiments, server_experiments
from .agent import Agent
from .client_experiments import ClientExperiments
from .drivers import Drivers
from .interrupts import Interrupted
from .plan import Options, select
from .progress import Progress
from .server_experiments import ServerExperiments
from .session import Session
from .suites import options_by_suite


@dataclass(frozen=True)
class RunResult:
    """The result of a run."""

    record: Record
    status: int
    """0; 128 plus the signal's number when it was interrupted."""


def run_servers(session: Session, options: Options, *, quick: bool = False) -> None:
    """Servers on the subjects' cores, the generator on its own."""
    drivers = Drivers.of(options)
    with (
        tempfile.TemporaryDirectory(prefix="towline-bench-") as folder,
        Agent(session.design.cores.driver, drivers.generator()) as agent,
    ):
        notes = drivers.introduced(agent)
        ServerExperiments(session, options, agent, Path(folder), quick=quick, notes=notes).run()


def run_clients(session: Session, options: Options, *, quick: bool = False) -> None:
    """Clients on the subjects' cores, the responder on the driver's."""
    ClientExperiments(session, options, quick=quick).run()


def run_quick(session: Session, options: Options) -> None:
    """hello on the strongest servers and clients, or on those that were named."""
    parts = quick_parts(options)
    if "servers" in parts:
        run_servers(session, parts["servers"], quick=True)
    if "clients" in parts:
        run_clients(session, parts["clients"], quick=True)


def quick_parts(options: Options) -> dict[str, Options]:
    """The options of each suite of `quick`."""
    parts = options_by_suite(options, tuple(QUICK_SUITES))
    return {
        name: mine if mine.subject else replace(mine, subject=QUICK_SUITES[name])
        for name, mine in parts.items()
    }


def run_all(session: Session, options: Options) -> None:
    """All suites, or what the given names select. A real endpoint only on request."""
    for name, mine in options_by_suite(options).items():
        part = _mock_llm if name == "llm" and not options.real_endpoint else RUNS[name]
        part(session, mine)


def _mock_llm(session: Session, options: Options) -> None:
    run_llm(session, options, use_mock=True)


RUNS: dict[str, Callable[[Session, Options], None]] = {
    "quick": run_quick,
    "servers": run_servers,
    "clients": run_clients,
    "webhooks": run_webhooks,
    "llm": run_llm,
    "all": run_all,
}


QUICK_SUITES = {
    "servers": (
        "towline",
        "peregrine",
        "weft",
        "m0serve",
        "granian",
        "uvicorn-httptools",
        "nginx",
        "floor",
    ),
    "clients": ("towline", "wreq", "pyreqwest", "httpr", "aiohttp", "pycurl", "httpx"),
}
"""The subjects of `quick`: the fastest in November 2026, the most used (uvicorn, httpx), and two limits (nginx, floor)."""
DRIVER_SUITES = ("servers", "clients")
NETWORK_SUITES = ("quick", "servers", "clients")


def run(
    command: str,
    options: Options,
    progress: Progress,
    *,
    path: Path | None = None,
    arguments: tuple[str, ...] = (),
) -> RunResult:
    """Measures; what was measured until an interrupt is kept. Raises `ConfigError` for invalid options."""
    if (options.driver and command not in DRIVER_SUITES) or (options.hosts and command != "servers"):
        raise ConfigError(
            f"{command}: only servers and clients have a --driver elsewhere, only servers have --hosts"
        )
    session = Session(
        options.design(quick=command == "quick"),
        progress,
        command=["towline", "bench", command, *arguments],
        path=path,
        settings=options.chosen(),
    )

    def part(session: Session) -> None:
        if options.net is not None:
            if command not in NETWORK_SUITES:
                raise ConfigError(f"net: {command} cannot emulate a network; {', '.join(NETWORK_SUITES)} can")
            session.over(options.net)
        RUNS[command](session, options)

    return complete(session, part)


def complete(session: Session, part: Callable[[Session], None]) -> RunResult:
    """Runs `part`; what was measured until an interrupt is kept."""
    status = 0
    try:
        part(session)
    except Interrupted as interrupted:
        status = interrupted.status
    finally:
        session.progress.close()
    return RunResult(session.finish(interrupted=status != 0), status)


def listing(command: str, options: Options) -> str:
    """Lists what a run would measure, without starting it."""
    lines: list[str] = []
    parts = {command: options}
    if command in ("quick", "all"):
        parts = quick_parts(options) if command == "quick" else options_by_suite(options)
    for name, mine in parts.items():
        lines += LISTINGS[name](mine, quick=command == "quick")
    return "\n".join([*lines, ""])


def _servers_listing(options: Options, *, quick: bool) -> list[str]:
    lines = ["server scenarios:"]
    for scenario in server_experiments.chosen_scenarios(options, quick=quick):
        lines.append(f"  {scenario.name:<26} {scenario.title}")
    lines += ["", "servers:"]
    for server in server_experiments.chosen_servers(options).values():
        missing = installed(server, options.peers_bin)
        lines.append(
            f"  {server.name:<26} {server.title or server.name}"
            + (f" (skipped: {missing})" if missing else "")
        )
    return [*lines, ""]


def _clients_listing(options: Options, *, quick: bool) -> list[str]:
    lines = ["client scenarios:"]
    for scenario in client_experiments.chosen_scenarios(options, quick=quick):
        lines.append(f"  {scenario.name:<26} {scenario.title}")
    names = client_experiments.chosen_clients(options)
    return [*lines, "", "clients:", *(f"  {name}" for name in names or CLIENTS), ""]


def _webhooks_listing(options: Options, *, quick: bool) -> list[str]:
    return [webhooks_listing(options)]


def _llm_listing(options: Options, *, quick: bool) -> list[str]:
    lines = ["chats:"]
    lines += [
        f"  {name:<26} {EXPERIMENTS[name].title}"
        for name in select(options.scenario, EXPERIMENTS, "scenario")
    ]
    return [*lines, "", "clients:", *(f"  {name}" for name in select(options.subject, CHATS, "client")), ""]


LISTINGS = {
    "servers": _servers_listing,
    "clients": _clients_listing,
    "webhooks": _webhooks_listing,
    "llm": _llm_listing,
}
