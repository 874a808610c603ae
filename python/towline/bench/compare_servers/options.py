"""The options of `towline bench URL URL`, and the design that fits into the time given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ... import _options as kind
from ..._options import Section, check_values, each, number, option, options_of, period
from ...errors import ConfigError
from ..runner import drivers
from ..runner.design import Design, WarmUp
from ..runner.plan import (
    DesignOptions,
    DriverOptions,
    Options,
    OutputOptions,
    ProgramOptions,
    names,
    recorded,
)
from ..scenarios import PROTOCOLS

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


# A table, whose layout the formatter keeps.
# fmt: off
@dataclass(frozen=True)
class ServerOptions(Section, group="what", summary="the servers that are compared"):
    app: tuple[str, ...] = each(
        (), "an application, served by each --server; several applications need names", metavar="[NAME=]MODULE:APP")
    server: tuple[str, ...] = names(
        "servers of --app (default: towline, uvicorn, granian; for WSGI towline, gunicorn, granian; over HTTP/3 towline, "
        "hypercorn; with --git or several applications towline)", repeat=True)
    command: tuple[str, ...] = each(
        (),
        "a server as a command line, with {port} for its port, {host} for its address, and for HTTP/3 {cert} and {key} for "
        "PEM files made for the run; it stays in the foreground; no shell runs it",
        metavar="[NAME=]COMMAND")
    git: str | None = option(
        None, "compare two revisions, or one with the present files, for --app or --command",
        metavar="OLD..NEW")
    build: str | None = option(
        None, "with --git: a shell command that builds each work tree first", metavar="COMMAND")
    app_dir: Path = option(
        Path("."), "the folder of --app; with --git, within the work tree", parse=Path, metavar="FOLDER")
    interface: str | None = option(
        None, "interface of --app (default: determined from the application)", choices=("asgi", "wsgi"))
    ready: str = option("/", "a path with a status below 500 when a --command is ready", metavar="PATH")
    start_timeout: float = period(20.0, "time for a server to become ready")


@dataclass(frozen=True)
class RequestOptions(Section, group="request", summary="the requests, and the response that is expected"):
    requests: Path | None = option(
        None, "requests of a file, in turn: a HAR file, curl command lines, vegeta targets, or an OpenAPI description",
        parse=Path, metavar="FILE")
    path: str | None = option(None, "path of the request (default: /); a URL has its own", metavar="PATH")
    method: str | None = option(
        None, "method (default: GET, or POST with a body)", metavar="METHOD", aliases=("-m", "-X"))
    header: tuple[str, ...] = each((), "a header of each request", metavar="'NAME: VALUE'", aliases=("-H",))
    body: str | None = option(None, "the body of the request", metavar="TEXT")
    body_file: Path | None = option(None, "a file with the body", parse=Path, metavar="FILE")
    status: int | None = option(
        None, "the expected status (default: any of 2xx and 3xx)", parse=_status, metavar="STATUS")
    expect: str | None = option(
        None, "the expected body, compared with every response (default: any)", metavar="TEXT")


@dataclass(frozen=True)
class TrafficOptions(Section, group="load", summary="connections, rate, protocol"):
    connections: int = number(
        CONNECTIONS, "connections, each with one request at a time", aliases=("-c",), check=kind.between(1, 10_000))
    rate: float | None = option(
        None, "measure latency at this rate, the same for all (default: the highest rate)",
        parse=_number, metavar="PER_S", aliases=("-R",), check=kind.above_zero)
    protocol: str = option("h1", "HTTP/1.1, HTTP/2, or HTTP/3", choices=PROTOCOLS)
    streams: int = number(
        1, "concurrent requests on each connection of HTTP/2 or HTTP/3", check=kind.between(1, 1000))
    timeout: float = period(5.0, "time for a response; a later one is a failure")


@dataclass(frozen=True)
class CompareOptions(
    OutputOptions, DesignOptions, DriverOptions, TrafficOptions, RequestOptions, ProgramOptions, ServerOptions, Section
):
    """One comparison. Times in seconds."""

    urls: tuple[str, ...] = ()
    """Running servers: `http://127.0.0.1:8000/path`, or `NAME=URL`."""
    time: float = period(
        TIME_S,
        f"aim for a total time of SECONDS; at least {FEWEST_RESTARTS} restarts are run",
        group="design", aliases=("-t",))
    runs: int | None = number(
        None, f"restarts ({RESTARTS}, fewer in a short --time); fewer than {FEWEST_RESTARTS} give wide intervals",
        group="design", variables=("RUNS",))
    duration: float | None = period(
        None, "load on each server in each restart (default: what --time allows, at most 2.5)",
        group="design", variables=("DURATION",))
    warm_up: float | None = period(
        None, f"longest time to wait until a server is steady ({WARM_UP.cap_s:g})", group="design")
    baseline: str | None = option(
        None, "the server that the others are compared with (default: the first; with --git the new one)",
        group="output", metavar="NAME")
    # fmt: on

    def __post_init__(self) -> None:
        check_values(self)
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
                plain[name] = recorded(value)
        return plain


def restarts_within(time_s: float, starts: int) -> int:
    """The number of restarts, each with `starts` starts, that fit into about `time_s` in all."""
    fitting = int(time_s / (starts * (START_S + WARM_UP_S + SECONDS[0])))
    return min(max(fitting, FEWEST_RESTARTS), RESTARTS)


def seconds_within(time_s: float, starts: int) -> float:
    """Seconds of load after each of `starts` starts, for about `time_s` in all."""
    least, most = SECONDS
    return round(min(max(time_s / starts - START_S - WARM_UP_S, least), most), 2)


def estimated_s(design: Design, starts: int, start_s: float = START_S) -> float:
    """Estimated duration of a comparison with `starts` starts in each restart."""
    warm_up_s = min(WARM_UP_S, design.warm_up.cap_s)
    return design.rule.most * starts * (start_s + warm_up_s + design.seconds)
