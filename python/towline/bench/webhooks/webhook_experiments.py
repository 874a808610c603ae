"""The rows of HTTPotion as experiments: total requests, and concurrency."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from ...errors import ConfigError
from ..runner.agent import Agent
from ..runner.loop import ExperimentPlan
from ..scenarios import Load, catalogue, session_config
from ..subjects import Server
from .accounts import SQLITE
from .pairs import pairs
from .subject import WebhookSubject

SCENARIO = "webhooks"
QUICK_LOADS = ("800x40", "800x80")
ROUNDS = 3
"""Rounds per restart; each sends the whole row once to each pair."""


def webhook_experiments(
    servers: Mapping[str, Server],
    agent: Agent,
    *,
    names: Iterable[str] | None = None,
    loads: Iterable[str] | None = None,
    quick: bool = False,
    rounds: int = ROUNDS,
    peers_bin: Path | None = None,
    driver_cores: tuple[int, ...] | None = None,
    seed: int = 1,
    database: str = SQLITE,
) -> list[ExperimentPlan]:
    """One experiment per row. Raises `ConfigError` for an unknown pair or row."""
    scenario = catalogue()[SCENARIO]
    known = {load.name: load for load in scenario.loads}
    wanted = list(loads) if loads is not None else list(QUICK_LOADS if quick else known)
    if unknown := [name for name in wanted if name not in known]:
        raise ConfigError(f"{unknown[0]!r} is no row of webhooks; there are {', '.join(known)}")
    chosen = pairs(servers, names)

    def subject_of(load: Load) -> tuple[WebhookSubject, ...]:
        config = partial(session_config, scenario, connections=load.concurrency, seed=seed)
        return tuple(
            WebhookSubject(
                pair, agent, config, peers_bin=peers_bin, driver_cores=driver_cores, database=database
            )
            for pair in chosen
        )

    return [
        ExperimentPlan(
            name=f"{SCENARIO} {name}",
            scenario=SCENARIO,
            title=f"{scenario.title}: {known[name].count:,} requests, {known[name].concurrency:,} at a time",
            section=scenario.section,
            subjects=subject_of(known[name]),
            requests=known[name].count,
            rounds=rounds,
            load={"requests": known[name].count, "connections": known[name].concurrency},
            notes=scenario.notes,
        )
        for name in wanted
    ]
