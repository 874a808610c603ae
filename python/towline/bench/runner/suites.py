"""The suites of `quick` and `all`; given names select among all of them, each in the suites that have it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..llm.llm_experiments import EXPERIMENTS
from ..llm.run import CHATS
from ..webhooks.run import chosen_pairs, chosen_rows
from . import client_experiments, server_experiments
from .plan import NothingToDo, Options, select

Chooser = Callable[[Options], object]


@dataclass(frozen=True)
class Suite:
    """Selection functions of a suite; each raises `NothingToDo` for an unknown name."""

    scenarios: Chooser
    subjects: Chooser


SUITES = {
    "servers": Suite(server_experiments.chosen_scenarios, server_experiments.chosen_servers),
    "clients": Suite(client_experiments.chosen_scenarios, client_experiments.chosen_clients),
    "webhooks": Suite(chosen_rows, lambda options: chosen_pairs(options.subject)),
    "llm": Suite(
        lambda options: select(options.scenario, EXPERIMENTS, "scenario"),
        lambda options: select(options.subject, CHATS, "client"),
    ),
}


def options_by_suite(options: Options, names: Sequence[str] = tuple(SUITES)) -> dict[str, Options]:
    """The options of each suite that has something to do. Raises `NothingToDo` for a name that none of them has."""
    found = dict.fromkeys(names, options)
    for what in ("scenario", "subject"):
        patterns: tuple[str, ...] = getattr(options, what)
        if not patterns:
            continue
        known = {name: tuple(one for one in patterns if _knows(name, what, options, one)) for name in names}
        for pattern in patterns:
            if not any(pattern in mine for mine in known.values()):
                raise NothingToDo(f"no {what} {pattern!r} in any of {', '.join(names)}")
        found = {name: _only(one, what, known[name]) for name, one in found.items() if known[name]}
    found = {name: one for name, one in found.items() if _has_scenarios(name, one)}
    if not found:
        raise NothingToDo("no suite has both the requested scenarios and subjects")
    return found


def _knows(part: str, what: str, options: Options, pattern: str) -> bool:
    chooser = SUITES[part].scenarios if what == "scenario" else SUITES[part].subjects
    try:
        chooser(replace(_only(options, what, (pattern,)), connections=()))
    except NothingToDo:
        return False
    return True


def _only(options: Options, what: str, patterns: tuple[str, ...]) -> Options:
    return replace(options, scenario=patterns) if what == "scenario" else replace(options, subject=patterns)


def _has_scenarios(part: str, options: Options) -> bool:
    """The webhooks suite does not have a row for every number of `--connections`."""
    try:
        SUITES[part].scenarios(options)
    except NothingToDo:
        return False
    return True
