"""`towline bench webhooks`: measures the selected rows and pairs, one row after the other."""

from __future__ import annotations

from collections.abc import Sequence

from ..runner.agent import Agent
from ..runner.plan import Options, select
from ..runner.session import Session
from ..scenarios import catalogue
from ..subjects import installed, servers
from .accounts import check_database
from .pairs import OURS, PAIRS, pairs
from .webhook_experiments import QUICK_LOADS, SCENARIO, webhook_experiments

DEFAULT_PAIRS = tuple(dict.fromkeys("+".join(pair) if pair != (OURS, OURS) else OURS for pair in PAIRS))


def run_webhooks(session: Session, options: Options, *, quick: bool = False) -> None:
    """`quick`: the first rows. Raises `ConfigError` for unknown rows or pairs, or a database that cannot be reached."""
    check_database(options.database)
    chosen_servers, cores = servers(options.servers), session.design.cores
    with Agent(cores.driver) as agent:
        plans = webhook_experiments(
            chosen_servers,
            agent,
            names=chosen_pairs(options.subject),
            loads=chosen_rows(options, quick=quick),
            peers_bin=options.peers_bin,
            driver_cores=cores.driver,
            seed=session.design.seed,
            database=options.database,
        )
        for plan in plans:
            session.measure(plan)


def chosen_rows(options: Options, *, quick: bool = False) -> list[str]:
    """By name (`800x40`), by `tag:quick`, or by concurrency (`--connections`)."""
    loads = {load.name: load for load in catalogue()[SCENARIO].loads}
    patterns = [pattern for pattern in options.scenario if pattern != SCENARIO]
    if quick and not patterns:
        patterns = ["tag:quick"]
    names = select(
        patterns, loads, "row of webhooks", lambda name: ("tag:quick",) if name in QUICK_LOADS else ()
    )
    crowds = {f"{number}": number for number in options.connections}
    for concurrency in crowds:
        select(
            [concurrency],
            [f"{load.concurrency}" for load in loads.values()],
            "row of webhooks with a crowd of",
        )
    return [name for name in names if not crowds or loads[name].concurrency in crowds.values()]


def chosen_pairs(patterns: Sequence[str]) -> list[str]:
    """Names of the form SERVER+CLIENT are kept; * and ? match the default pairs."""
    named = [pattern for pattern in patterns if "+" in pattern and not set(pattern) & set("*?")]
    others = [pattern for pattern in patterns if pattern not in named]
    found = select(others, DEFAULT_PAIRS, "pair") if others or not patterns else []
    return list(dict.fromkeys([*found, *named]))


def listing(options: Options) -> str:
    """Lists what would be measured, and what is not installed."""
    loads = {load.name: load for load in catalogue()[SCENARIO].loads}
    lines = ["rows of webhooks:"]
    lines += [
        f"  {name:<26} {loads[name].count:,} requests, {loads[name].concurrency:,} at a time"
        for name in chosen_rows(options)
    ]
    lines += ["", "pairs:"]
    for pair in pairs(servers(options.servers), chosen_pairs(options.subject)):
        missing = installed(pair.server, options.peers_bin)
        lines.append(f"  {pair.name:<26}" + (f" (skipped: {missing})" if missing else ""))
    return "\n".join([*lines, ""])
