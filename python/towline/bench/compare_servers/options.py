"""The options of `towline bench URL URL`, and the design that fits into the time given."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ... import _options as kind
from ..._options import option, options_of
from ...errors import ConfigError
from ..runner import drivers
from ..runner.design import Cores, Design, WarmUp
from ..runner.plan import DESIGN, LOAD, OUTPUT, WHAT, Options
from ..scenarios import PROTOCOLS

REQUEST = "request"
GROUPS = {
    WHAT: "the servers that are compared",
    REQUEST: "the requests, and the response that is expected",
    LOAD: "connections, rate, protocol",
    DESIGN: "time, restarts, warming up, and when it is enough",
    OUTPUT: "where results go, and what is shown",
}
CONNECTIONS = 16
"""Enough to keep a worker busy, and few enough for short slices on slow servers."""
RESTARTS, FEWEST_RESTARTS = 8, 4
"""Restarts of a comparison, and of one in a short time."""
TIME_S = 120.0
START_S = 0.6
"""Estimated time for the start, the check of responses and the stop of one subject."""
WARM_UP = WarmUp(windows=12, window_s=0.05, cap_s=1.5)
WARM_UP_S = 1.0
"""Estimated duration of a warm-up."""
UNRECORDED = frozenset(
    {
        "output",
        "servers",
        "peers_bin",
        "app_dir",
        "command",
        *drivers.UNRECORDED,
        "header",
        "body",
        "expect",
    }
)
SECONDS = (0.4, 2.5)
"""Bounds of the load on each subject in each restart."""


def _shared(name: str) -> Any:
    """The option of this name of the other commands."""
    field = Options.__dataclass_fields__[name]
    return dataclasses.field(default=field.default, metadata=field.metadata)


def _whole(value: str) -> tuple[str, ...]:
    return (value,)


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"expected a number, not {value!r}") from None


def _status(value: str) -> int:
    found = kind.integer(value)
    if not 200 <= found <= 599:
        raise ValueError(f"expected a status from 200 to 599, not {value!r}")
    return found


@dataclass(frozen=True)
class CompareOptions:
    """One comparison. Times in seconds."""

    urls: tuple[str, ...] = ()
    """Running servers: `http://127.0.0.1:8000/path`, or `NAME=URL`."""
    app: tuple[str, ...] = option(
        (),
        "an application, served by each --server; several applications need names",
        group=WHAT,
        parse=_whole,
        metavar="[NAME=]MODULE:APP",
        repeat=True,
    )
    server: tuple[str, ...] = option(
        (),
        "of --app (default: towline, uvicorn, granian; for WSGI towline, gunicorn, granian; over HTTP/3 towline, "
        "hypercorn; with --git or several applications towline)",
        group=WHAT,
        parse=kind.words,
        metavar="NAMES",
        repeat=True,
    )
    command: tuple[str, ...] = option(
        (),
        "a server as a command line, with {port} for its port, {host} for its address, and for HTTP/3 {cert} and {key} for "
        "PEM files made for the run; it stays in the foreground, and is not run by a shell",
        group=WHAT,
        parse=_whole,
        metavar="[NAME=]COMMAND",
        repeat=True,
    )
    git: str | None = option(
        None,
        "two revisions, or one and the present files, each in a work tree of its own, for --app or --command",
        group=WHAT,
        metavar="OLD..NEW",
    )
    build: str | None = option(
        None, "with --git: a shell command that builds each work tree first", group=WHAT, metavar="COMMAND"
    )
    app_dir: Path = option(
        Path("."),
        "the folder of --app, with --git within the work tree",
        group=WHAT,
        parse=Path,
        metavar="FOLDER",
    )
    interface: str | None = option(
        None,
        "of --app (default: determined from the application)",
        group=WHAT,
        choices=("asgi", "wsgi"),
    )
    ready: str = option(
        "/",
        "a path with a status below 500 when a --command is ready",
        group=WHAT,
        metavar="PATH",
    )
    start_timeout: float = option(
        20.0,
        "time for a server to become ready",
        group=WHAT,
        parse=kind.seconds,
        metavar="SECONDS",
        check=kind.above_zero,
    )
    servers: Path | None = _shared("servers")
    peers_bin: Path | None = _shared("peers_bin")

    requests: Path | None = option(
        None,
        "requests of a file, in turn: a HAR file, curl command lines, vegeta targets, or an OpenAPI description",
        group=REQUEST,
        parse=Path,
        metavar="FILE",
    )
    path: str | None = option(
        None, "of the request (default: /); a URL has its own", group=REQUEST, metavar="PATH"
    )
    method: str | None = option(
        None, "GET, or POST with a body", group=REQUEST, metavar="METHOD", aliases=("-m", "-X")
    )
    header: tuple[str, ...] = option(
        (),
        "a header of each request",
        group=REQUEST,
        parse=_whole,
        metavar="'NAME: VALUE'",
        repeat=True,
        aliases=("-H",),
    )
    body: str | None = option(None, "the body of the request", group=REQUEST, metavar="TEXT")
    body_file: Path | None = option(None, "the body from a file", group=REQUEST, parse=Path, metavar="FILE")
    status: int | None = option(
        None,
        "the expected status (default: any of 2xx and 3xx)",
        group=REQUEST,
        parse=_status,
        metavar="STATUS",
    )
    expect: str | None = option(
        None, "the expected body, compared in every response (default: any)", group=REQUEST, metavar="TEXT"
    )

    connections: int = option(
        CONNECTIONS,
        "connections, each with one request at a time",
        group=LOAD,
        parse=kind.integer,
        metavar="N",
        aliases=("-c",),
        check=kind.between(1, 10_000),
    )
    rate: float | None = option(
        None,
        "latency at this rate, the same for all (default: the highest rate)",
        group=LOAD,
        parse=_number,
        metavar="PER_S",
        aliases=("-R",),
        check=kind.above_zero,
    )
    protocol: str = option("h1", "HTTP/1.1, HTTP/2, or HTTP/3", group=LOAD, choices=PROTOCOLS)
    streams: int = option(
        1,
        "concurrent requests on each connection of HTTP/2 or HTTP/3",
        group=LOAD,
        parse=kind.integer,
        metavar="N",
        check=kind.between(1, 1000),
    )
    timeout: float = option(
        5.0,
        "of a response; a later one is a failure",
        group=LOAD,
        parse=kind.seconds,
        metavar="SECONDS",
        check=kind.above_zero,
    )

    driver: tuple[str, ...] = _shared("driver")
    hosts: str | None = _shared("hosts")
    ssh: str | None = _shared("ssh")
    agent_command: str | None = _shared("agent_command")
    address: str | None = _shared("address")

    time: float = option(
        TIME_S,
        f"about so long in all, but at least {FEWEST_RESTARTS} restarts; --duration takes precedence",
        group=DESIGN,
        parse=kind.seconds,
        metavar="SECONDS",
        aliases=("-t",),
        check=kind.above_zero,
    )
    runs: int | None = option(
        None,
        f"restarts ({RESTARTS}, fewer in a short --time); fewer than {FEWEST_RESTARTS} give wide intervals",
        group=DESIGN,
        parse=kind.integer,
        metavar="N",
        variables=("RUNS",),
        check=kind.at_least(1),
    )
    duration: float | None = option(
        None,
        "load on each server in each restart (default: what --time allows, at most 2.5)",
        group=DESIGN,
        parse=kind.seconds,
        metavar="SECONDS",
        variables=("DURATION",),
        check=kind.above_zero,
    )
    precision: float | None = _shared("precision")
    looks: bool = _shared("looks")
    max_runs: int | None = _shared("max_runs")
    warm_up: float | None = option(
        None,
        f"at most so long until steady ({WARM_UP.cap_s:g})",
        group=DESIGN,
        parse=kind.seconds,
        metavar="SECONDS",
        check=kind.above_zero,
    )
    exclusive: bool = _shared("exclusive")
    cores: Cores | None = _shared("cores")
    seed: int | None = _shared("seed")
    no_control: bool = _shared("no_control")

    output: Path | None = _shared("output")
    baseline: str | None = option(
        None,
        "the server that the others are compared with (default: the first; with --git the new one)",
        group=OUTPUT,
        metavar="NAME",
    )
    margin: float = _shared("margin")
    no_history: bool = _shared("no_history")
    quiet: bool = _shared("quiet")

    def __post_init__(self) -> None:
        for name, (described, _) in options_of(type(self)).items():
            if described.check is not None and getattr(self, name) is not None:
                described.check(name.replace("_", "-"), getattr(self, name))
        for given, needs, what in (
            (self.server, self.app, "server: names servers for an application; give --app MODULE:APP"),
            (self.interface, self.app, "interface: is that of an application; give --app MODULE:APP"),
            (self.build, self.git, "build: builds the work trees of revisions; give --git OLD..NEW"),
        ):
            if given and not needs:
                raise ConfigError(what)
        if self.git is not None and (self.urls or bool(self.app) == bool(self.command)):
            raise ConfigError("git: needs one --app or one --command, which is started in both work trees")
        if self.git is not None and max(map(len, (self.app, self.command, self.server))) > 1:
            raise ConfigError("git: one application, on one server, is compared with its other revision")
        drivers.check(self, starts_servers=bool(self.app or self.command or self.git))
        if self.requests is not None:
            for name in ("path", "method", "body", "body_file", "status", "expect"):
                if getattr(self, name):
                    raise ConfigError(f"{name.replace('_', '-')}: the requests are those of --requests")
        if self.body is not None and self.body_file is not None:
            raise ConfigError("body and body-file: one will do")
        if self.path is not None and not self.path.startswith("/"):
            raise ConfigError(f"path: must start with /, not {self.path!r}")
        if self.streams > 1 and self.protocol == "h1":
            raise ConfigError("streams: belong to HTTP/2 and HTTP/3; give --protocol h2 or h3")
        if self.exclusive and self.urls:
            raise ConfigError("exclusive: a server that was not started here cannot be stopped (SIGSTOP)")

    def design(self, subjects: int, baseline: str) -> Design:
        """The design for this number of subjects."""
        restarts = self.runs or restarts_within(self.time, self.started(subjects))
        design = Options(
            runs=restarts,
            precision=self.precision,
            looks=self.looks,
            max_runs=self.max_runs,
            exclusive=self.exclusive,
            cores=self.cores,
            seed=self.seed,
            margin=self.margin,
            baseline=baseline,
        ).design()
        return replace(
            design,
            seconds=self.duration or seconds_within(self.time, restarts * self.started(subjects)),
            warm_up=replace(WARM_UP, cap_s=self.warm_up or WARM_UP.cap_s),
        )

    def started(self, subjects: int) -> int:
        """Subjects started in each restart, the two of the control included."""
        return subjects + (0 if self.no_control else 2)

    def chosen(self) -> dict[str, Any]:
        """Options that differ from the defaults, for the record; without paths of this machine, headers and bodies."""
        plain: dict[str, Any] = {}
        for name, (_, default) in options_of(type(self)).items():
            value = getattr(self, name)
            if value != default and name not in UNRECORDED:
                plain[name] = (
                    dataclasses.asdict(value)
                    if isinstance(value, Cores)
                    else value.name
                    if isinstance(value, Path)
                    else list(value)
                    if isinstance(value, tuple)
                    else value
                )
        return plain


def restarts_within(time_s: float, starts: int) -> int:
    """The restarts, with so many starts in each, that about `time_s` in all allows."""
    fitting = int(time_s / (starts * (START_S + WARM_UP_S + SECONDS[0])))
    return min(max(fitting, FEWEST_RESTARTS), RESTARTS)


def seconds_within(time_s: float, starts: int) -> float:
    """Seconds of load after each of so many starts, for about `time_s` in all."""
    least, most = SECONDS
    return round(min(max(time_s / starts - START_S - WARM_UP_S, least), most), 2)


def estimated_s(design: Design, starts: int, start_s: float = START_S) -> float:
    """Estimated duration of a comparison with so many starts in each restart."""
    warm_up_s = min(WARM_UP_S, design.warm_up.cap_s)
    return design.rule.most * starts * (start_s + warm_up_s + design.seconds)
