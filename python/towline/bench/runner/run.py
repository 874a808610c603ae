"""A whole run, from what was asked for to its record: `towline bench quick`, `servers`, `clients` and so on."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...errors import ConfigError
from ..clients.subjects import CLIENTS
from ..llm.llm_experiments import CELLS
from ..llm.main import run_real
from ..llm.run import CHATS
from ..record import Record
from ..subjects import installed
from ..webhooks.run import listing as relay_listing
from ..webhooks.run import run_relay
from . import client_experiments, server_experiments
from .agent import Agent
from .client_experiments import ClientCells
from .interrupts import Interrupted
from .plan import Options, select
from .progress import Watch
from .server_experiments import ServerCells
from .session import Session
from .suites import PARTS, options_by_part


@dataclass(frozen=True)
class Done:
    """What a run leaves."""

    record: Record
    status: int
    """0; 128 and the signal's number when it was interrupted."""


def run_servers(session: Session, options: Options, *, quick: bool = False) -> None:
    """Servers on the subjects' cores, the generator on its own."""
    with (
        tempfile.TemporaryDirectory(prefix="towline-bench-") as folder,
        Agent(session.design.cores.driver) as agent,
    ):
        ServerCells(session, options, agent, Path(folder), quick=quick).run()


def run_clients(session: Session, options: Options, *, quick: bool = False) -> None:
    """Clients on the subjects' cores, the upstream on the driver's."""
    ClientCells(session, options, quick=quick).run()


def run_quick(session: Session, options: Options) -> None:
    """hello on the servers and clients that are installed."""
    parts = options_by_part(options, QUICK_PARTS)
    if "servers" in parts:
        run_servers(session, parts["servers"], quick=True)
    if "clients" in parts:
        run_clients(session, parts["clients"], quick=True)


def run_all(session: Session, options: Options) -> None:
    """Everything there is; names that are given choose among all of it. A real endpoint only when asked for."""
    for name, mine in options_by_part(options).items():
        part = _imitated if name == "real" and not options.real else RUNS[name]
        part(session, mine)


def _imitated(session: Session, options: Options) -> None:
    run_real(session, options, imitate=True)


RUNS: dict[str, Callable[[Session, Options], None]] = {
    "quick": run_quick,
    "servers": run_servers,
    "clients": run_clients,
    "relay": run_relay,
    "real": run_real,
    "all": run_all,
}


QUICK_PARTS = ("servers", "clients")
OVER_A_NETWORK = ("quick", "servers", "clients")


def run(
    command: str, options: Options, watch: Watch, *, path: Path | None = None, arguments: tuple[str, ...] = (),
) -> Done:  # fmt: skip
    """Measures; what was measured until an `Interrupted` is kept. Raises `ConfigError` for what makes no sense."""
    session = Session(
        options.design(quick=command == "quick"), watch, command=["towline", "bench", command, *arguments], path=path,
        settings=options.chosen(),
    )  # fmt: skip
    status = 0
    try:
        if options.net is not None:
            if command not in OVER_A_NETWORK:
                raise ConfigError(f"net: {command} has no network of ours; {', '.join(OVER_A_NETWORK)} have")
            session.over(options.net)
        RUNS[command](session, options)
    except Interrupted as interrupted:
        status = interrupted.status
    finally:
        watch.close()
    return Done(session.finish(interrupted=status != 0), status)


def listing(command: str, options: Options) -> str:
    """What a run would measure, without starting anything that is measured."""
    lines: list[str] = []
    parts = QUICK_PARTS if command == "quick" else tuple(PARTS) if command == "all" else ()
    for name, mine in (options_by_part(options, parts) if parts else {command: options}).items():
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
            + (f" (left out: {missing})" if missing else "")
        )
    return [*lines, ""]


def _clients_listing(options: Options, *, quick: bool) -> list[str]:
    lines = ["client scenarios:"]
    for scenario in client_experiments.chosen_scenarios(options, quick=quick):
        lines.append(f"  {scenario.name:<26} {scenario.title}")
    names = client_experiments.chosen_clients(options)
    return [*lines, "", "clients:", *(f"  {name}" for name in names or CLIENTS), ""]


def _relay_listing(options: Options, *, quick: bool) -> list[str]:
    return [relay_listing(options)]


def _real_listing(options: Options, *, quick: bool) -> list[str]:
    lines = ["chats:"]
    lines += [f"  {name:<26} {CELLS[name].title}" for name in select(options.scenario, CELLS, "scenario")]
    return [*lines, "", "clients:", *(f"  {name}" for name in select(options.subject, CHATS, "client")), ""]


LISTINGS = {
    "servers": _servers_listing,
    "clients": _clients_listing,
    "relay": _relay_listing,
    "real": _real_listing,
}
