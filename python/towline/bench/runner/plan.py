"""The options of a run, defined once for the command line, the environment and the Python API."""

from __future__ import annotations

import fnmatch
import os
import random
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ... import _options as kind
from ..._options import Section, check_values, each, number, option, period
from ..._suggest import closest
from ...errors import ConfigError
from ..scenarios import PROTOCOLS
from ..statistics.stopping import Rule
from ..verdict import MARGIN
from . import drivers
from .design import Cores, Design, WarmUp

UNRECORDED = frozenset({"output", "servers", "scenarios", "peers_bin", *drivers.UNRECORDED})
MAX_RESTARTS_FACTOR = 4
QUICK_RESTARTS, QUICK_SECONDS = 4, 0.25
"""Restarts matter more than the load in each: with three, a difference of three times may stay undecided."""


def _path(value: str) -> Path:
    return Path(value).expanduser()


def _share(value: str) -> float:
    try:
        share = float(value[:-1]) / 100 if value.endswith("%") else float(value)
    except ValueError:
        raise ValueError(f"expected a share like 5% or 0.05, not {value!r}") from None
    if not 0 < share < 1:
        raise ValueError(f"expected more than 0 and less than 100 %, not {value!r}")
    return share


def _shares(value: str) -> tuple[float, ...]:
    return tuple(_share(word) for word in kind.words(value))


def _numbers(value: str) -> tuple[float, ...]:
    try:
        found = tuple(float(word) for word in kind.words(value))
    except ValueError:
        raise ValueError(f"expected numbers, not {value!r}") from None
    if not found or min(found) <= 0:
        raise ValueError(f"expected numbers above 0, not {value!r}")
    return found


def _number(value: str) -> float:
    found = _numbers(value)
    if len(found) != 1:
        raise ValueError(f"expected one number, not {value!r}")
    return found[0]


def _counts(value: str) -> tuple[int, ...]:
    return tuple(int(number) for number in _numbers(value))


def _cores(value: str) -> Cores:
    """`0/1`, `0-2/3`, `0,2/3`: the subjects' cores, then the driver's."""
    subject, found, driver = value.partition("/")
    try:
        sides = [
            tuple(core for part in side.split(",") for core in _range(part)) for side in (subject, driver)
        ]
    except ValueError:
        found = ""
        sides = []
    if not found:
        raise ValueError(f"expected SUBJECTS/DRIVER like 0/1 or 0-2/3, not {value!r}")
    if missing := {core for side in sides for core in side} - os.sched_getaffinity(0):
        raise ValueError(
            f"core {min(missing)} is not available; available are {_listed(os.sched_getaffinity(0))}"
        )
    return Cores(sides[0], sides[1])


def _range(part: str) -> range:
    first, _, last = part.partition("-")
    return range(int(first), int(last or first) + 1)


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in sorted(numbers))


def _pairs(value: str) -> tuple[tuple[str, Path], ...]:
    name, found, path = value.partition("=")
    if not found or not name or not path:
        raise ValueError(f"expected NAME=PATH, not {value!r}")
    return ((name, _path(path)),)


def _command(value: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(value))
    except ValueError as error:
        raise ValueError(f"{value!r} is not a command line: {error}") from None
    if not words:
        raise ValueError("expected a command")
    return words


def _database(value: str) -> str:
    from ..webhooks.accounts import checked_url

    return checked_url(value)


def names(help: str, **rest: Any) -> tuple[str, ...]:
    return option((), help, parse=kind.words, metavar="NAMES", **rest)


def path(help: str, **rest: Any) -> Path | None:
    more: dict[str, Any] = {"parse": _path, "metavar": "FILE"}
    return option(None, help, **more | rest)


# A table, whose layout the formatter keeps.
# fmt: off
@dataclass(frozen=True)
class SelectionOptions(Section, group="what", summary="which scenarios and subjects"):
    scenario: tuple[str, ...] = names(
        "only these scenarios; * and ? match, section:roadrunner names a published comparison, tag:matrix a tag",
        repeat=True, aliases=("-s",))
    subject: tuple[str, ...] = names(
        "only these subjects; * and ? match (default: all that are installed)", repeat=True, aliases=("-S",))
    interface: tuple[str, ...] = names("asgi, wsgi or both (default: asgi, and wsgi for hello and Hornbeam)")
    protocol: tuple[str, ...] = names("h1, h2, h3 (default: h1,h2; quick: h1); h3 is always over TLS")
    side_by_side: bool = option(
        False, "make each server over each protocol a subject of one experiment, all over TLS")
    scenarios: Path | None = path("your own scenarios (TOML, docs/scenarios.md)")
    curl: tuple[str, ...] = each(
        (), "make a scenario from a curl command line; several are used in turn", metavar="COMMAND")
    vegeta: Path | None = path("make a scenario from vegeta's targets")
    client_python: tuple[tuple[str, Path], ...] = option(
        (), "the interpreter, or environment, that runs a client", parse=_pairs, metavar="NAME=PATH", repeat=True)
    loop: str = option("asyncio", "event loop of asynchronous clients", choices=("asyncio", "uvloop"))


@dataclass(frozen=True)
class ProgramOptions(Section, group="what"):
    servers: Path | None = path("more servers, or others under a known name (TOML, docs/subjects.md)")
    peers_bin: Path | None = path("search this folder first for programs", metavar="FOLDER")


@dataclass(frozen=True)
class DriverOptions(Section, group="load"):
    driver: tuple[str, ...] = option(
        (),
        "send the load from another machine: a command that runs an agent there, such as 'ssh HOST towline load --agent'; "
        "for clients: a command that runs the responder, 'ssh HOST python -m towline.bench.responder'",
        parse=_command, metavar="COMMAND")
    hosts: str | None = option(
        None,
        "send the load from several machines, with an agent on each, by ssh, as with towline load --hosts; HOST=N uses N threads",
        metavar="HOST,...")
    ssh: str | None = option(
        None, "the ssh client of --hosts with its options, such as 'ssh -F FILE'", metavar="COMMAND")
    agent_command: str | None = option(
        None, "the command that runs an agent on a host of --hosts (default: towline-load or towline on its PATH)",
        metavar="COMMAND")
    address: str | None = option(
        None,
        "bind the servers to this IPv4 address, so that --driver and --hosts machines can reach them; "
        "for clients: the address of the responder's machine",
        metavar="ADDRESS")


@dataclass(frozen=True)
class LoadOptions(Section, group="load", summary="rates, connections, the network, the machines of the drivers"):
    tls: bool = option(False, "use TLS, with a certificate made for the run")
    connections: tuple[int, ...] = option(
        (), "connections instead of the scenario's; for clients: concurrent requests; several numbers make a sweep",
        parse=_counts, metavar="N[,N]", aliases=("-c",))
    rate: tuple[float, ...] = option(
        (), "measure latency at these rates, the same for all", parse=_numbers, metavar="PER_S[,PER_S]")
    latency: tuple[float, ...] = option(
        (), "measure latency at these shares of the slowest subject's peak (default: 50%,75% for hello)",
        parse=_shares, metavar="SHARES")
    no_latency: bool = option(False, "measure capacity only")
    curve: bool = option(
        False, "measure each subject at 50, 75, 90, 95 % of its own peak, and at 1 to 512 connections")
    find_peak: bool = option(
        False, "search the highest rate that keeps p99 below 20 ms and errors below 0.1 %")
    net: str | None = option(None, "emulate a network: rtt=20ms,jitter=2ms,rate=100mbit", metavar="CONDITIONS")
    real_endpoint: bool = option(
        False, "all: use the real endpoint, which may cost money (default: the mock endpoint)")
    base_url: str | None = option(
        None, "llm: an OpenAI-compatible endpoint (or OPENROUTER_BASE_URL, with OPENROUTER_API_KEY)",
        metavar="URL")
    scale: float = option(
        1.0, "llm: factor of the gaps between calls, and of the mock endpoint's pauses",
        parse=_number, metavar="FACTOR", check=kind.above_zero)
    refuse_share: float = option(
        0.0, "llm: share of the mock endpoint's responses with 429", parse=_share, metavar="SHARE")
    database: str = option(
        "sqlite", "webhooks: sqlite, or the URL of a PostgreSQL server (postgresql://...), without a password",
        parse=_database, metavar="sqlite|URL")


@dataclass(frozen=True)
class DesignOptions(Section, group="design", summary="restarts, slices, warm-up, and when to stop"):
    precision: float | None = option(
        None, "continue until every interval is within +-SHARE", parse=_share, metavar="SHARE")
    looks: bool = option(False, "look at the results five times on the way to --max-runs, each time at the level 0.0158")
    max_runs: int | None = number(None, "largest number of restarts (4 x --runs)")
    exclusive: bool = option(False, "stop the other subjects (SIGSTOP) while one is measured")
    cores: Cores | None = option(
        None, "cores of the subjects and of the driver (default: the first, the last)", parse=_cores, metavar="0/1")
    seed: int | None = number(None, "seed of every order and every schedule", least=None)
    no_control: bool = option(False, "run without the A/A control")


@dataclass(frozen=True)
class OutputOptions(Section, group="output", summary="where results go, and what is shown"):
    output: Path | None = path(
        "folder of the results (default: towline-bench/TIME)", metavar="FOLDER", aliases=("-o",))
    margin: float = option(MARGIN, "ignore differences within this share", parse=_share, metavar="SHARE")
    no_history: bool = option(False, "keep the figures out of the history")
    quiet: bool = option(False, "show no progress", aliases=("-q",))


@dataclass(frozen=True)
class Options(OutputOptions, DesignOptions, DriverOptions, LoadOptions, ProgramOptions, SelectionOptions, Section):
    """One run. Times in seconds; None: the default of the command."""

    runs: int | None = number(None, "restarts (8; quick: 4; llm: 1)", group="design", variables=("RUNS",))
    duration: float | None = period(
        None, "load on each subject in each restart (2.5; quick: 0.25)", group="design", variables=("DURATION",))
    warm_up: float | None = period(
        None, "longest time to wait until a subject is steady (6; quick: 0.6)", group="design")
    baseline: str = option(
        "towline", "the subject that the others are compared with", group="output", metavar="SUBJECT")
    list: bool = option(False, "show what would be measured, and what is not installed", group="output")
    # fmt: on

    def __post_init__(self) -> None:
        check_values(self)
        if unknown := set(self.interface) - {"asgi", "wsgi"}:
            raise ConfigError(f"interface: there are asgi and wsgi, not {min(unknown)!r}")
        if unknown := set(self.protocol) - set(PROTOCOLS):
            raise ConfigError(f"protocol: there are {' and '.join(PROTOCOLS)}, not {min(unknown)!r}")
        if self.precision is not None and self.looks:
            raise ConfigError("precision and looks: two rules for ending; give one")
        if self.no_latency and (self.rate or self.latency):
            raise ConfigError("no-latency: there is a rate or a latency given")
        drivers.check(self, starts_servers=True)
        if self.net is not None and (self.driver or self.hosts):
            raise ConfigError("net: the emulated network is on this machine, the drivers are not")
        if self.find_peak and self.driver:
            raise ConfigError("find-peak: --driver sends slices of load only; give its machine as --hosts")

    def design(self, *, quick: bool = False) -> Design:
        """The design of the run."""
        runs = self.runs or (QUICK_RESTARTS if quick else 8)
        most = self.max_runs or MAX_RESTARTS_FACTOR * runs
        half = self.precision or 0.01
        if self.looks:
            rule = Rule("looks", runs, max(runs, most), half, self.margin)
        elif self.precision is not None:
            rule = Rule("precision", runs, max(runs, most), half, self.margin)
        else:
            rule = Rule("fixed", runs, runs, half, self.margin)
        warm_up = WarmUp(8, 0.025, self.warm_up or 0.6) if quick else WarmUp(cap_s=self.warm_up or 6.0)
        return Design(
            rule=rule,
            seconds=self.duration or (QUICK_SECONDS if quick else 2.5),
            warm_up=warm_up,
            exclusive=self.exclusive,
            seed=self.seed if self.seed is not None else random.randrange(1 << 30),
            cores=self.cores or Cores.divided(),
            baseline=self.baseline,
        )

    def chosen(self) -> dict[str, Any]:
        """Options that differ from the defaults, for the record."""
        return {
            one.name: recorded(getattr(self, one.name))
            for one in fields(self)
            if getattr(self, one.name) != one.default and one.name not in UNRECORDED
        }


def recorded(value: Any) -> Any:
    """An option's value as JSON, without a path of this machine."""
    if isinstance(value, tuple):
        return [recorded(member) for member in value]
    if isinstance(value, Cores):
        return asdict(value)
    return value.name if isinstance(value, Path) else value


class NothingToDo(ConfigError):
    """The given names leave nothing to measure; the message lists the valid ones."""


def select(
    patterns: Sequence[str],
    names: Iterable[str],
    what: str,
    marks: Callable[[str], Iterable[str]] = lambda _: (),
) -> list[str]:
    """The names that match a pattern, in the order of `names`; all without patterns. `marks`: `tag:x` and the
    like.

    Raises `NothingToDo` for a pattern that matches none.
    """
    known = list(names)
    for pattern in patterns:
        if not any(_matches(pattern, name, marks) for name in known):
            close = closest(pattern, known)
            hint = f"; did you mean {close}?" if close else f"; there is {', '.join(known)}"
            raise NothingToDo(f"no {what} {pattern!r}{hint}")
    if not patterns:
        return known
    return [name for name in known if any(_matches(pattern, name, marks) for pattern in patterns)]


def _matches(pattern: str, name: str, marks: Callable[[str], Iterable[str]]) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or pattern in marks(name)
