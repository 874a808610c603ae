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
from ..._options import option, options_of
from ..._suggest import closest
from ...errors import ConfigError
from ..scenarios import PROTOCOLS
from ..statistics.stopping import Rule
from ..verdict import MARGIN
from . import drivers
from .design import Cores, Design, WarmUp

WHAT, LOAD, DESIGN, OUTPUT = "what", "load", "design", "output"
GROUPS = {
    WHAT: "which scenarios and subjects",
    LOAD: "rates, connections, the network, the machines of the drivers",
    DESIGN: "restarts, slices, warming up, and when it is enough",
    OUTPUT: "where results go, and what is shown",
}
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


def _positive(name: str, value: Any) -> None:
    if value is not None:
        kind.above_zero(name, value)


@dataclass(frozen=True)
class Options:
    """One run. Times in seconds; None: the default of the command."""

    scenario: tuple[str, ...] = option(
        (),
        "only these; * and ? match, section:roadrunner names a published comparison, tag:matrix a tag",
        group=WHAT,
        parse=kind.words,
        metavar="NAMES",
        repeat=True,
        aliases=("-s",),
    )
    subject: tuple[str, ...] = option(
        (),
        "only these; * and ? match (default: all that are installed)",
        group=WHAT,
        parse=kind.words,
        metavar="NAMES",
        repeat=True,
        aliases=("-S",),
    )
    interface: tuple[str, ...] = option(
        (),
        "asgi, wsgi or both (default: asgi, and wsgi for hello and Hornbeam)",
        group=WHAT,
        parse=kind.words,
        metavar="NAMES",
    )
    protocol: tuple[str, ...] = option(
        (),
        "h1, h2, h3 (default: h1,h2; quick: h1); h3 is always over TLS",
        group=WHAT,
        parse=kind.words,
        metavar="NAMES",
    )
    side_by_side: bool = option(
        False,
        "each server over each protocol as a subject of one experiment, all over TLS",
        group=WHAT,
    )
    servers: Path | None = option(
        None,
        "more servers, or others under a known name (TOML, docs/subjects.md)",
        group=WHAT,
        parse=_path,
        metavar="FILE",
    )
    scenarios: Path | None = option(
        None, "scenarios of your own (TOML, docs/scenarios.md)", group=WHAT, parse=_path, metavar="FILE"
    )
    curl: tuple[str, ...] = option(
        (),
        "a scenario from a curl command line; several are used in turn",
        group=WHAT,
        parse=lambda value: (value,),
        metavar="COMMAND",
        repeat=True,
    )
    vegeta: Path | None = option(
        None, "a scenario from vegeta's targets", group=WHAT, parse=_path, metavar="FILE"
    )
    peers_bin: Path | None = option(
        None, "a folder searched first for programs", group=WHAT, parse=_path, metavar="FOLDER"
    )
    client_python: tuple[tuple[str, Path], ...] = option(
        (),
        "the interpreter, or environment, that runs a client",
        group=WHAT,
        parse=_pairs,
        metavar="NAME=PATH",
        repeat=True,
    )
    loop: str = option("asyncio", "of asynchronous clients", group=WHAT, choices=("asyncio", "uvloop"))
    tls: bool = option(False, "over TLS, with a certificate made for the run", group=LOAD)
    connections: tuple[int, ...] = option(
        (),
        "instead of the scenario's; concurrent requests of a client; several make a sweep",
        group=LOAD,
        parse=_counts,
        metavar="N[,N]",
        aliases=("-c",),
    )
    rate: tuple[float, ...] = option(
        (), "latency at these rates, the same for all", group=LOAD, parse=_numbers, metavar="PER_S[,PER_S]"
    )
    latency: tuple[float, ...] = option(
        (),
        "latency at these shares of the slowest subject's peak (default: 50%,75% for hello)",
        group=LOAD,
        parse=_shares,
        metavar="SHARES",
    )
    no_latency: bool = option(False, "capacity only", group=LOAD)
    curve: bool = option(
        False, "each at 50, 75, 90, 95 % of its own peak, and at 1 to 512 connections", group=LOAD
    )
    find_peak: bool = option(
        False, "search the highest rate that keeps p99 below 20 ms and errors below 0.1 %", group=LOAD
    )
    net: str | None = option(
        None, "an emulated network: rtt=20ms,jitter=2ms,rate=100mbit", group=LOAD, metavar="CONDITIONS"
    )
    driver: tuple[str, ...] = option(
        (),
        "the load comes from another machine: a command that runs an agent there, such as 'ssh HOST towline load --agent'; "
        "of clients: the responder runs there, 'ssh HOST python -m towline.bench.responder'",
        group=LOAD,
        parse=_command,
        metavar="COMMAND",
    )
    hosts: str | None = option(
        None,
        "the load comes from several machines: an agent on each, by ssh, as with towline load --hosts; HOST=N has N threads",
        group=LOAD,
        metavar="HOST,...",
    )
    ssh: str | None = option(
        None, "the client of --hosts and its options, such as 'ssh -F FILE'", group=LOAD, metavar="COMMAND"
    )
    agent_command: str | None = option(
        None,
        "runs an agent on a host of --hosts (default: towline-load or towline on its PATH)",
        group=LOAD,
        metavar="COMMAND",
    )
    address: str | None = option(
        None,
        "servers that are started listen at this IPv4 address, under which the machines of --driver or --hosts reach them; "
        "the responder of clients at that of its machine",
        group=LOAD,
        metavar="ADDRESS",
    )
    real_endpoint: bool = option(
        False, "all: use the real endpoint, which may cost money (default: the mock endpoint)", group=LOAD
    )
    base_url: str | None = option(
        None,
        "llm: an OpenAI-compatible endpoint (or OPENROUTER_BASE_URL, with OPENROUTER_API_KEY)",
        group=LOAD,
        metavar="URL",
    )
    scale: float = option(
        1.0,
        "llm: factor of the gaps between calls, and of the mock endpoint's pauses",
        group=LOAD,
        parse=_number,
        metavar="FACTOR",
        check=_positive,
    )
    refuse_share: float = option(
        0.0, "llm: share of the mock endpoint's responses with 429", group=LOAD, parse=_share, metavar="SHARE"
    )
    database: str = option(
        "sqlite",
        "webhooks: sqlite, or the URL of a PostgreSQL server (postgresql://...), without a password",
        group=LOAD,
        parse=_database,
        metavar="sqlite|URL",
    )
    runs: int | None = option(
        None,
        "restarts (8; quick: 4; llm: 1)",
        group=DESIGN,
        parse=kind.integer,
        metavar="N",
        variables=("RUNS",),
        check=kind.at_least(1),
    )
    duration: float | None = option(
        None,
        "load on each subject in each restart (2.5; quick: 0.25)",
        group=DESIGN,
        parse=kind.seconds,
        metavar="SECONDS",
        variables=("DURATION",),
        check=_positive,
    )
    precision: float | None = option(
        None, "continue until every interval is +-SHARE", group=DESIGN, parse=_share, metavar="SHARE"
    )
    looks: bool = option(
        False, "five planned looks on the way to --max-runs, each at alpha 0.0158", group=DESIGN
    )
    max_runs: int | None = option(
        None,
        "at most so many restarts (4 x --runs)",
        group=DESIGN,
        parse=kind.integer,
        metavar="N",
        check=kind.at_least(1),
    )
    warm_up: float | None = option(
        None,
        "at most so long until steady (6; quick: 0.6)",
        group=DESIGN,
        parse=kind.seconds,
        metavar="SECONDS",
        check=_positive,
    )
    exclusive: bool = option(False, "stop the other subjects (SIGSTOP) while one is measured", group=DESIGN)
    cores: Cores | None = option(
        None,
        "the subjects' and the driver's (default: the first, the last)",
        group=DESIGN,
        parse=_cores,
        metavar="0/1",
    )
    seed: int | None = option(
        None, "of every order and every schedule", group=DESIGN, parse=kind.integer, metavar="N"
    )
    no_control: bool = option(False, "without the A/A control", group=DESIGN)
    output: Path | None = option(
        None,
        "a folder for the results (default: towline-bench/TIME)",
        group=OUTPUT,
        parse=_path,
        metavar="FOLDER",
        aliases=("-o",),
    )
    baseline: str = option(
        "towline", "the subject that the others are compared with", group=OUTPUT, metavar="SUBJECT"
    )
    margin: float = option(
        MARGIN, "differences within it are irrelevant", group=OUTPUT, parse=_share, metavar="SHARE"
    )
    no_history: bool = option(False, "do not keep the figures in the history", group=OUTPUT)
    quiet: bool = option(False, "no progress", group=OUTPUT, aliases=("-q",))
    list: bool = option(False, "show what would be measured, and what is not installed", group=OUTPUT)

    def __post_init__(self) -> None:
        for name, (described, _) in options_of(type(self)).items():
            if described.check is not None and getattr(self, name) is not None:
                described.check(name.replace("_", "-"), getattr(self, name))
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
            one.name: _recorded(getattr(self, one.name))
            for one in fields(self)
            if getattr(self, one.name) != one.default and one.name not in UNRECORDED
        }


def _recorded(value: Any) -> Any:
    """An option's value as JSON, without a path of this machine."""
    if isinstance(value, tuple):
        return [_recorded(member) for member in value]
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
