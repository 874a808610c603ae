"""History of measurements: the estimates of each run in one SQLite file in the user's data folder.

```text
runs ──< estimates        run: when, machine, versions; estimate: experiment, subject, metric, value, interval
```

Any number of processes may write concurrently: each append is one transaction, which waits for the others.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..analysis import Analysis
from ..record import CHOSEN, Record
from .machines import fingerprint

WAIT_S = 30.0
"""Timeout for the transactions of other processes."""
MIGRATIONS = (
    """
    CREATE TABLE runs (
        id INTEGER PRIMARY KEY, mark TEXT NOT NULL UNIQUE, began_unix_s REAL NOT NULL, duration_s REAL NOT NULL,
        tool TEXT NOT NULL, machine_id TEXT NOT NULL, machine TEXT NOT NULL, versions TEXT NOT NULL,
        command TEXT NOT NULL, seed INTEGER NOT NULL, interrupted INTEGER NOT NULL
    );
    CREATE TABLE estimates (
        run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, cell TEXT NOT NULL, load TEXT NOT NULL,
        subject TEXT NOT NULL, versions TEXT NOT NULL, metric TEXT NOT NULL, value REAL NOT NULL, low REAL, high REAL,
        unit TEXT NOT NULL, at_least INTEGER NOT NULL, PRIMARY KEY (run, cell, subject, metric)
    ) WITHOUT ROWID;
    CREATE INDEX estimates_by_cell ON estimates (cell, subject, metric);
    """,
    """
    ALTER TABLE estimates RENAME COLUMN cell TO experiment;
    """,
)
"""One step per version; `PRAGMA user_version` is the number of steps taken. A released step is never changed."""


class HistoryError(Exception):
    """The file cannot be used; the message has the reason and what to do."""


@dataclass(frozen=True)
class Run:
    """One line of the list."""

    id: int
    began_unix_s: float
    duration_s: float
    tool: str
    machine_id: str
    experiments: int
    subjects: int
    interrupted: bool


@dataclass(frozen=True)
class Point:
    """One estimate of one run; `low` and `high` are None when there was a single restart."""

    run: int
    began_unix_s: float
    experiment: str
    subject: str
    metric: str
    value: float
    low: float | None
    high: float | None
    unit: str


def default_path() -> Path:
    """`$TOWLINE_BENCH_HISTORY`, or towline/bench-history.sqlite3 in the user's data folder."""
    if given := os.environ.get("TOWLINE_BENCH_HISTORY"):
        return Path(given)
    folder = os.environ.get("XDG_DATA_HOME", "")
    base = Path(folder) if Path(folder).is_absolute() else Path.home() / ".local/share"
    return base / "towline" / "bench-history.sqlite3"


class History:
    """The database at `path`, created on the first write."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or default_path()

    def append(self, analysis: Analysis) -> int:
        """Adds a run; returns its number. A known run keeps its number; its estimates are replaced."""
        record = analysis.record
        with self._open() as database:
            database.execute(
                "INSERT OR IGNORE INTO runs (mark, began_unix_s, duration_s, tool, machine_id, machine, versions, "
                "command, seed, interrupted) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    mark(record),
                    record.began_unix_s,
                    record.ended_unix_s - record.began_unix_s,
                    record.tool,
                    fingerprint(record.machine),
                    _json(record.machine),
                    _json(record.versions),
                    _json(record.command),
                    record.seed,
                    record.interrupted,
                ),
            )
            run: int = database.execute("SELECT id FROM runs WHERE mark = ?", (mark(record),)).fetchone()[0]
            database.execute("DELETE FROM estimates WHERE run = ?", (run,))
            database.executemany(
                "INSERT INTO estimates VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", list(_rows(run, analysis))
            )
        return run

    def runs(self, most: int = 50) -> list[Run]:
        """The runs, the latest first."""
        with self._open() as database:
            rows = database.execute(
                "SELECT id, began_unix_s, duration_s, tool, machine_id, COUNT(DISTINCT experiment), "
                "COUNT(DISTINCT subject), interrupted FROM runs LEFT JOIN estimates ON run = id "
                "GROUP BY id ORDER BY began_unix_s DESC, id DESC LIMIT ?",
                (most,),
            ).fetchall()
        return [Run(*(*row[:7], bool(row[7]))) for row in rows]

    def points(self, run: int) -> list[Point]:
        """All estimates of one run. Raises HistoryError when there is no such run."""
        with self._open() as database:
            if not database.execute("SELECT 1 FROM runs WHERE id = ?", (run,)).fetchone():
                raise HistoryError(
                    f"there is no run {run}; `towline bench history list` shows those there are"
                )
            return _points(database, "run = ?", (run,))

    def series(
        self, experiment: str, load: Mapping[str, object], machine: Mapping[str, object], metric: str
    ) -> dict[str, list[Point]]:
        """By subject, oldest first: the same experiment with the same load on machines like this one."""
        found: dict[str, list[Point]] = {}
        with self._open() as database:
            where = "experiment = ? AND load = ? AND metric = ? AND machine_id = ?"
            for point in _points(database, where, (experiment, _load(load), metric, fingerprint(machine))):
                found.setdefault(point.subject, []).append(point)
        return found

    def prune(self, *, keep: int | None = None, before_unix_s: float | None = None) -> int:
        """Removes all but the latest `keep` runs, and those before a time; returns how many were removed."""
        with self._open() as database:
            removed = 0
            if keep is not None:
                latest = "SELECT id FROM runs ORDER BY began_unix_s DESC, id DESC LIMIT ?"
                removed += database.execute(f"DELETE FROM runs WHERE id NOT IN ({latest})", (keep,)).rowcount
            if before_unix_s is not None:
                removed += database.execute(
                    "DELETE FROM runs WHERE began_unix_s < ?", (before_unix_s,)
                ).rowcount
        return removed

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """One transaction, which waits for those of other processes."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            database = sqlite3.connect(self.path, timeout=WAIT_S, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise HistoryError(f"cannot open the history {self.path}: {error}") from None
        try:
            database.execute("PRAGMA foreign_keys = ON")
            database.execute("BEGIN IMMEDIATE")
            self._migrate(database)
            yield database
            database.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            raise HistoryError(f"{self.path}: {error}; move the file away to begin anew") from None
        finally:
            database.close()

    def _migrate(self, database: sqlite3.Connection) -> None:
        version: int = database.execute("PRAGMA user_version").fetchone()[0]
        if version > len(MIGRATIONS):
            raise HistoryError(
                f"{self.path} was written by a later towline (layout {version}; this one knows "
                f"{len(MIGRATIONS)}): upgrade, or give another file"
            )
        for step in MIGRATIONS[version:]:
            for statement in step.split(";"):  # executescript would end the transaction
                database.execute(statement)
        database.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def mark(record: Record) -> str:
    """A key that identifies a run, whatever its file is called."""
    return f"{record.began_unix_s!r} {record.seed} {fingerprint(record.machine)}"


def charts(history: History, analysis: Analysis) -> dict[str, dict[str, object]]:
    """Curves for the page, by experiment; an experiment that was measured once on such a machine has none."""
    found: dict[str, dict[str, object]] = {}
    for experiment in analysis.experiments:
        one = experiment.experiment
        series = history.series(one.name, one.load, analysis.record.machine, one.main_metric)
        lines = [
            {
                "name": name,
                "x": [point.began_unix_s for point in points],
                "y": [point.value for point in points],
                "low": [point.value if point.low is None else point.low for point in points],
                "high": [point.value if point.high is None else point.high for point in points],
            }
            for name, points in series.items()
        ]
        if len({point.run for points in series.values() for point in points}) > 1:
            found[one.name] = {"series": lines, "unit": "us" if one.main_metric == "p50_us" else "/s"}
    return found


def _rows(run: int, analysis: Analysis) -> Iterator[tuple[object, ...]]:
    for experiment in analysis.experiments:
        if experiment.experiment.control:
            continue
        records = {one.name: one for one in experiment.experiment.subjects}
        for subject in experiment.subjects:
            for metric, one in subject.figures.items():
                bounds = [value if math.isfinite(value) else None for value in (one.low, one.high)]
                yield (
                    run,
                    experiment.experiment.name,
                    _load(experiment.experiment.load),
                    subject.name,
                    _json(records[subject.name].versions),
                    metric,
                    one.value,
                    *bounds,
                    one.unit,
                    one.at_least,
                )


def _points(database: sqlite3.Connection, where: str, values: Sequence[object]) -> list[Point]:
    rows = database.execute(
        "SELECT run, began_unix_s, experiment, subject, metric, value, low, high, unit FROM estimates "
        f"JOIN runs ON id = run WHERE {where} ORDER BY began_unix_s, run, experiment, subject, metric",
        tuple(values),
    )
    return [Point(*row) for row in rows]


def _load(load: Mapping[str, object]) -> str:
    return _json({key: value for key, value in load.items() if key not in CHOSEN})


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
