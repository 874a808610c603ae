"""The raw results of a run; tables, charts and verdicts are derived from them.

A record holds no verdict: `analysis.analyse(record)` derives them, so that a better rule can be applied to an old
file.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .. import _native
from ._json_data import from_plain, to_plain

FORMAT = 2
"""Layout of the file; files of another layout are refused."""
_LETTERS = {
    "A": "Roadrunner",
    "B": "Hornbeam",
    "C": "httpcorexyz",
    "D": "Nous",
    "E": "HTTPotion",
    "F": "Towline",
}
"""Names of the comparisons, by the letters that older records have."""
FILE = "result.json.gz"
"""File name in the folder of a result."""

Question = Literal["capacity", "latency"]
"""Closed loop: the rate. Open loop: the latency at a rate that is the same for all."""


@dataclass(frozen=True)
class Latency:
    """Times of one window in microseconds. Percentiles without samples are 0."""

    count: int = 0
    mean_us: float = 0.0
    min_us: float = 0.0
    p50_us: float = 0.0
    p90_us: float = 0.0
    p95_us: float = 0.0
    p99_us: float = 0.0
    p99_9_us: float = 0.0
    max_us: float = 0.0


@dataclass(frozen=True)
class Slice:
    """One window of load on one subject. The driver is the generator, or the responder of a client."""

    subject: str
    restart: int
    round: int
    position: int
    """Position in the random order of its round."""
    began_unix_s: float
    measured_s: float
    """Without the discarded part."""
    answered: int
    """Complete and verified to the last byte."""
    failed: int = 0
    refused: int = 0
    """Refusals by a server at its limit, in scenarios that exceed it."""
    target_per_s: float | None = None
    response: Latency = field(default_factory=Latency)
    """From the intended start to the last byte."""
    service: Latency | None = None
    """From sending to the last byte."""
    first_byte: Latency | None = None
    achieved_share: float | None = None
    """In an open loop: share of the requests due that succeeded within the slice. A response after its end is late."""
    lag_p99_us: float | None = None
    """Lateness of the generator, in an open loop."""
    lag_p50_us: float | None = None
    connection_wait_p99_us: float | None = None
    subject_cpu_s: float = 0.0
    subject_busiest_share: float = 0.0
    """Share of one core: the subject's processes together, at most 1 for each core it may use."""
    subject_waited_s: float = 0.0
    """Time that the subject's threads waited for a core: for each other, or for other processes. With a client, those of
    the responder count as well."""
    stolen_s: float | None = None
    """Time that the hypervisor took from all cores together, in ticks of 10 ms. None: not recorded."""
    driver_cpu_s: float = 0.0
    driver_busiest_share: float = 0.0
    """CPU time of the driver's busiest thread, as a share of the time."""
    driver_waited_share: float = 0.0
    """Time that a thread of the driver waited for a core."""
    context_switches: int = 0
    body_bytes: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    """By class: connect, timeout, reset, protocol, status, content."""
    first_failure: str | None = None
    driver_limit: str | None = None
    """Why the driver, not the subject, was the limit."""
    histogram: str | None = None
    """Histogram of `response`, in nanoseconds: HdrHistogram V2, deflated, base64."""
    extra: dict[str, float] = field(default_factory=dict)
    """Figures of special scenarios (first token, buffered bytes ...), with units in the names."""

    @property
    def finished_s(self) -> float:
        """The time until all that was sent was done: with the last response, or in the background after it."""
        return self.extra.get(FORWARDED_AFTER, self.measured_s)

    @property
    def per_s(self) -> float:
        """Verified responses per second, until all was done."""
        return self.answered / self.finished_s if self.finished_s else 0.0


@dataclass(frozen=True)
class Start:
    """One start of one subject."""

    restart: int
    ready_after_s: float
    warm_up_s: float = 0.0
    steady: bool = True
    """False: no steady state within the limit of the warm-up."""
    rss_ready_bytes: int = 0
    rss_peak_bytes: int = 0
    rss_end_bytes: int = 0
    pressure_cpu_share: float = 0.0
    """/proc/pressure/cpu `some` during the restart's slices."""
    steal_share: float = 0.0
    warm_up_failed: int = 0
    """Requests that failed in the warm-up, and why the first of them did."""
    warm_up_failure: str | None = None


@dataclass(frozen=True)
class SubjectRecord:
    """One subject in one experiment."""

    name: str
    kind: Literal["server", "client", "pair"]
    command: list[str] = field(default_factory=list)
    """As run, with PORT for the port."""
    versions: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    """Options that differ from the subject's defaults."""
    starts: list[Start] = field(default_factory=list)
    failure: str | None = None
    """Why it has no figures, in one line."""
    log: str | None = None
    """The end of its output, if it failed."""


@dataclass(frozen=True)
class ExperimentRecord:
    """One scenario with one load on several subjects."""

    name: str
    """Unique in the record: the scenario's name, with what distinguishes its load."""
    scenario: str
    title: str
    section: str
    """The published comparison of the scenario, or `own`."""
    question: Question
    load: dict[str, Any]
    """Configured connections, rate, pipelining, duration of slices."""
    subjects: list[SubjectRecord]
    slices: list[Slice]
    control: bool = False
    """An A/A control: the same subject twice."""
    floor_s: float | None = None
    """Minimum duration, by the arithmetic of the scenario."""
    notes: list[str] = field(default_factory=list)
    baseline: str | None = None
    """The baseline of this experiment if the requested one is not in it."""

    @property
    def main_metric(self) -> str:
        """Requests/s, or the median latency at a fixed rate."""
        return "per_s" if self.question == "capacity" else "p50_us"

    @property
    def is_of_pages(self) -> bool:
        """Whether each slice is a page."""
        return bool(self.load.get("page"))


@dataclass(frozen=True)
class Record:
    """One run of the bench."""

    tool: str
    began_unix_s: float
    ended_unix_s: float
    machine: dict[str, Any]
    versions: dict[str, str]
    command: list[str]
    seed: int
    settings: dict[str, Any]
    experiments: list[ExperimentRecord]
    skipped: dict[str, str] = field(default_factory=dict)
    """Subjects that are not installed here, and why."""
    net: dict[str, Any] | None = None
    """The emulated network, as requested and as measured."""
    interrupted: bool = False
    """Ended early; it contains what was measured until then."""
    format: int = FORMAT


PAGE = "page_ms"
"""Entry of `Slice.extra`: the slice is a page; the value is its load time."""
FORWARDED_AFTER = "forwarded_after_s"
"""Entry of `Slice.extra`: the time until the slice's last webhook was forwarded, which may be after the last response."""
CHOSEN = frozenset({"slice_s", "rounds"})
"""Entries of an experiment's load that the bench chose from the speed of the subjects."""


class NotARecord(ValueError):
    """The file is not a record of this layout; the message has the reason."""


def save(record: Record, path: Path) -> None:
    """Writes JSON, gzipped when the name ends in `.gz`; atomically."""
    data = (json.dumps(to_plain(record), indent=1) + "\n").encode()
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    write(path, data)


def write(path: Path, data: bytes) -> None:
    """Writes a file of a result, and its folder. The file is whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with open(_native.open_output(part), "wb") as file:
        file.write(data)
    part.replace(path)


def located(path: Path | str) -> Path:
    """The file of a result, given itself or its folder."""
    path = Path(path)
    return path / FILE if path.is_dir() else path


def load(path: Path | str) -> Record:
    """Reads what `save` wrote; for a folder, its `result.json.gz`. Raises `NotARecord`, or OSError."""
    path = located(path)
    data = path.read_bytes()
    try:
        plain = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        layout = plain["format"]
    except (ValueError, KeyError, TypeError, gzip.BadGzipFile, EOFError) as error:
        raise NotARecord(f"{path} is not a result of towline bench ({error})") from None
    if layout != FORMAT:
        raise NotARecord(f"{path} has layout {layout}; this version reads {FORMAT}")
    for experiment in plain.get("experiments", ()):
        experiment["section"] = _LETTERS.get(experiment["section"], experiment["section"])
    try:
        return from_plain(Record, plain)
    except (TypeError, KeyError, ValueError) as error:
        raise NotARecord(f"{path} is damaged: {error}") from None
