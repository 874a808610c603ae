"""`towline.bench.compare`: measures your own application, for example an old and a new build, from a script or a
test.

    from towline import bench

    result = bench.compare({"new": bench.App("shop.main:app"), "old": bench.Command("./old-server --port
{port}")})
    print(result.text())
    assert result["old"].verdict is not bench.Verdict.SLOWER      # new compared with old

The method is that of the command line: new processes in every restart, alternating slices, all responses checked.
"""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from ..errors import UsageError
from .analysis import Analysis, Comparison, Estimate, ExperimentAnalysis, analyse
from .record import Record
from .runner.agent import Agent
from .runner.design import Cores, Design, WarmUp
from .runner.loop import ExperimentPlan
from .runner.plan import MAX_RESTARTS_FACTOR
from .runner.progress import Progress, for_terminal
from .runner.servers import Binding, ServerSubject, load_over
from .runner.session import Session
from .scenarios import Body, Expect, Request, Scenario
from .statistics.stopping import Rule
from .subjects import Server, servers
from .subjects.model import Ready
from .verdict import MARGIN


@dataclass(frozen=True)
class Command:
    """A server as a command line. It is not run by a shell, and must stay in the foreground."""

    argv: str | Sequence[str]
    """With `{port}` for its port, unless `port` is given; `{python}` is this interpreter."""
    port: int | None = None
    """A fixed port. Two subjects of one comparison need different ones."""
    ready: str = "/"
    """A path with a status below 500 when the server is ready."""
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    start_timeout_s: float = 20.0

    def server(self, name: str) -> Server:
        """The server as a definition of the bench."""
        argv = shlex.split(self.argv) if isinstance(self.argv, str) else list(self.argv)
        if not argv:
            raise UsageError(f"{name}: the command is empty")
        if self.port is None and not any("{port}" in word for word in (*argv, *self.env.values())):
            raise UsageError(f"{name}: no listen address: write {{port}} in the command, or give port=")
        return Server(
            name,
            tuple(argv),
            port=self.port,
            ready=Ready(self.ready),
            env=dict(self.env),
            cwd=str(self.cwd) if self.cwd else None,
            start_timeout_s=self.start_timeout_s,
            base=Path.cwd(),
        )


@dataclass(frozen=True)
class App:
    """An application by its import string, served by one worker of `server`."""

    target: str
    """`module:attribute`, in `folder`."""
    interface: Literal["asgi", "wsgi"] = "asgi"
    server: str = "towline"
    """A name of `towline bench servers --list`: towline, granian, uvicorn-httptools ..."""
    folder: Path | None = None
    """None: the current directory."""


Subject = Command | App | str
"""A string is an App if it is `module:attribute`, otherwise a Command."""


@dataclass(frozen=True)
class Comparisons:
    """The result of `compare`. Index it by a subject's name for the comparison of the baseline with it."""

    analysis: Analysis
    baseline: str

    @property
    def record(self) -> Record:
        """The raw record; `towline.bench.save` writes it."""
        return self.analysis.record

    @property
    def experiment(self) -> ExperimentAnalysis:
        return self.analysis.experiments[0]

    @property
    def metric(self) -> str:
        """The main metric: `per_s`, or `p50_us` at a fixed rate."""
        return self.experiment.experiment.main_metric

    @property
    def failures(self) -> dict[str, str]:
        """Subjects without figures, and the reasons."""
        failed = {one.name: one.failure for one in self.experiment.subjects if one.failure is not None}
        return failed | self.record.skipped

    def __getitem__(self, subject: str) -> Comparison:
        """The baseline compared with `subject`. Raises KeyError, with the reason if the subject failed."""
        return self.comparison(subject)

    def comparison(self, subject: str, metric: str | None = None) -> Comparison:
        """The ratio of any metric: `per_s`, `cpu_us`, or `p50_us` to `p99_9_us` at a fixed rate."""
        found = self.experiment.comparison(self.baseline, subject, metric or self.metric)
        if found is None:
            why = self.failures.get(subject) or self.failures.get(self.baseline) or "not compared"
            raise KeyError(f"{subject}: {why}")
        return found

    def figure(self, subject: str, metric: str | None = None) -> Estimate:
        """The subject's own figure with its interval. Raises KeyError."""
        one = next((one for one in self.experiment.subjects if one.name == subject), None)
        if one is None or (metric or self.metric) not in one.figures:
            raise KeyError(f"{subject}: {self.failures.get(subject, 'no such figure')}")
        return one.figures[metric or self.metric]

    def text(self) -> str:
        """The table of the command line."""
        from .report.terminal import text

        return text(self.analysis)

    def write(self, folder: Path) -> list[Path]:
        """Writes result.json.gz, report.html, report.md and the CSV files; returns their paths."""
        from .record import FILE, save
        from .report import render

        path = Path(folder) / FILE
        save(self.record, path)
        return [path, *render(self.analysis, Path(folder))]


def compare(
    subjects: Mapping[str, Subject],
    path: str = "/",
    *,
    method: str = "GET",
    headers: Mapping[str, str] | Sequence[tuple[str, str]] = (),
    body: bytes | str | None = None,
    json_body: object = None,
    status: int = 200,
    expect: bytes | str | None = None,
    connections: int = 50,
    pipeline: int = 1,
    http2: bool = False,
    streams: int = 1,
    rate: float | None = None,
    runs: int = 8,
    duration: float = 2.5,
    precision: float | None = None,
    margin: float = MARGIN,
    baseline: str | None = None,
    warm_up: float = 6.0,
    exclusive: bool = False,
    cores: tuple[Sequence[int], Sequence[int]] | None = None,
    seed: int = 1,
    timeout: float = 5.0,
    progress: bool = False,
) -> Comparisons:
    """Measures HTTP servers with one request and compares them.

    subjects: by name; the first is the baseline unless `baseline` names another.
    path, method, headers, body, json_body: the request; Host and Content-Length are added.
    status, expect: the expected response; `expect` is compared to the last byte. A different response is a failure, and a
        subject whose first response is wrong has no figures.
    connections, pipeline: the closed loop: each connection sends its next request after the response.
    http2, streams: HTTP/2 without TLS, by prior knowledge, with this many concurrent streams on each connection.
    rate: an open loop with this many requests per second for all subjects: the metrics are latencies, from the intended
        start.
    runs: restarts (8; fewer than 4 give wide intervals). duration: seconds of load on each subject in each restart.
    precision: continue, up to 4 x runs, until every interval is +-precision (0.01: 1 %).
    margin: differences within it are `equivalent`.
    warm_up: maximum seconds of warm-up. exclusive: stop the other subjects while one is measured.
    cores: (the subjects', the generator's); by default the first and the last.
    seed: of the order of slices and of the schedule. timeout: of a response, in seconds.
    progress: show it on standard error.

    Subjects that fail are in `failures`; the others are measured. Raises `UsageError` for invalid arguments, and
    KeyboardInterrupt after everything has been stopped.
    """
    names = list(subjects)
    if not names:
        raise UsageError("compare: give at least one subject, {name: Command(...) or App(...)}")
    first = baseline if baseline is not None else names[0]
    if first not in subjects:
        raise UsageError(f"compare: the baseline {first!r} is none of {', '.join(names)}")
    if body is not None and json_body is not None:
        raise UsageError("compare: body and json_body: one will do")
    if (pipeline > 1 and http2) or (streams > 1 and not http2):
        raise UsageError("compare: HTTP/2 has streams, HTTP/1.1 has a pipeline")
    scenario = _scenario(
        path, method, headers, body, json_body, status, expect, connections, pipeline, timeout
    )
    if http2:
        scenario = replace(scenario, protocols=("h2",), pipeline=1, streams=streams)
    design = Design(
        rule=Rule("precision", runs, MAX_RESTARTS_FACTOR * runs, precision, margin)
        if precision is not None
        else Rule("fixed", runs, runs, margin=margin),
        seconds=duration,
        warm_up=WarmUp(cap_s=warm_up),
        exclusive=exclusive,
        seed=seed,
        baseline=first,
        cores=Cores(tuple(cores[0]), tuple(cores[1])) if cores is not None else Cores.divided(),
    )
    return measure(subjects, scenario, design, rate=rate, progress=for_terminal(quiet=not progress))


def measure(
    subjects: Mapping[str, Subject],
    scenario: Scenario,
    design: Design,
    *,
    rate: float | None = None,
    progress: Progress,
    title: str | None = None,
) -> Comparisons:
    """Compare with a scenario in the form of the catalogue and a complete design."""
    session = Session(design, progress, command=["towline.bench.compare"])
    with Agent(design.cores.driver) as agent, tempfile.TemporaryDirectory():
        protocol = scenario.protocols[0]
        binding = Binding(scenario, agent, protocol=protocol)
        load: dict[str, object] = {"connections": scenario.connections, **load_over(scenario, protocol)}
        plan = ExperimentPlan(
            name=scenario.name,
            scenario=scenario.name,
            title=title or scenario.title,
            section=scenario.section,
            subjects=tuple(_subject(name, one, binding) for name, one in subjects.items()),
            load=load,
            question="capacity" if rate is None else "latency",
            rate_per_s=rate,
            baseline=design.baseline,
        )
        try:
            session.measure(plan)
        finally:
            progress.close()
    record = session.finish()
    if not record.experiments:
        why = "; ".join(f"{name}: {reason}" for name, reason in record.skipped.items())
        raise UsageError(f"compare: nothing could be measured: {why}")
    return Comparisons(analyse(record, design.baseline, design.rule.margin), design.baseline)


def _subject(name: str, given: Subject, binding: Binding) -> ServerSubject:
    if isinstance(given, str):
        is_app = ":" in given and " " not in given and "/" not in given
        given = App(given) if is_app else Command(given)
    if isinstance(given, Command):
        return ServerSubject(replace(given.server(name), protocols=(binding.protocol,)), binding)
    known = servers()
    if given.server not in known:
        raise UsageError(f"{name}: no server {given.server!r}; there is {', '.join(known)}")
    own = replace(binding, interface=given.interface)
    return ServerSubject(
        known[given.server], own, name=name, app=given.target, app_folder=given.folder or Path.cwd()
    )


def _scenario(
    path: str,
    method: str,
    headers: Mapping[str, str] | Sequence[tuple[str, str]],
    body: bytes | str | None,
    json_body: object,
    status: int,
    expect: bytes | str | None,
    connections: int,
    pipeline: int,
    timeout: float,
) -> Scenario:
    if not path.startswith("/"):
        raise UsageError(f"compare: path must start with /, not {path!r}")
    fields = list(headers.items() if isinstance(headers, Mapping) else headers)
    sent = _bytes(json.dumps(json_body) if json_body is not None else body)
    names = {name.lower() for name, _ in fields}
    if json_body is not None and "content-type" not in names:
        fields.append(("Content-Type", "application/json"))
    if "host" not in names:
        fields.insert(0, ("Host", "localhost"))
    if sent is not None and "content-length" not in names:
        fields.append(("Content-Length", str(len(sent))))
    wanted = _bytes(expect)
    request = Request(
        target=path,
        method=method.upper(),
        fields=tuple(fields),
        body=Body(sent) if sent is not None else None,
        expect=Expect(status=status, body=Body(wanted) if wanted is not None else None),
    )
    return Scenario(
        name=f"{method.upper()} {path}",
        section="own",
        title=f"{method.upper()} {path}",
        source="towline.bench.compare",
        requests=(request,),
        connections=connections,
        pipeline=pipeline,
        timeout_s=timeout,
    )


def _bytes(given: bytes | str | None) -> bytes | None:
    return given.encode() if isinstance(given, str) else given
