"""Progress of a run: with rich on a terminal, lines of text elsewhere, nothing for library callers."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

from ..record import ExperimentRecord, Slice

PAINT_S = 0.2


class Progress:
    """Receives the events of the loop, and shows nothing. Never raises."""

    def experiment(self, title: str, restarts: int, subjects: list[str]) -> None:
        """An experiment begins, with at most this many restarts."""

    def restart(self, number: int) -> None:
        pass

    def doing(self, subject: str, what: str) -> None:
        """starts, is checked, warms up ..."""

    def slice(self, one: Slice) -> None:
        pass

    def message(self, line: str) -> None:
        """A message for the user: a subject that failed, an early end."""

    def ended(self, experiment: ExperimentRecord) -> None:
        pass

    def close(self) -> None:
        """Restores the terminal at the end."""


class LineProgress(Progress):
    """One line per experiment and message; for logs and pipes."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._began = 0.0

    def experiment(self, title: str, restarts: int, subjects: list[str]) -> None:
        self._began = time.monotonic()
        self._write(f"{title}: {', '.join(subjects)}")

    def message(self, line: str) -> None:
        self._write(f"  {line}")

    def ended(self, experiment: ExperimentRecord) -> None:
        starts = max((len(one.starts) for one in experiment.subjects), default=0)
        took = time.monotonic() - self._began
        self._write(
            f"  {len(experiment.slices)} slices in {starts} restart{'s' * (starts != 1)}, {took:.0f} s"
        )

    def _write(self, line: str) -> None:
        self._out.write(line + "\n")
        self._out.flush()


class LiveProgress(Progress):
    """One line that is updated, with rich."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        self._console = Console(stderr=True)
        self._progress = RichProgress(
            SpinnerColumn(),
            TextColumn("[bold]{task.description}"),
            BarColumn(24),
            TextColumn("{task.fields[now]}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            # A refresh thread would run during measurements: the line is painted between slices.
            auto_refresh=False,
        )
        self._painted = 0.0
        self._task: Any = None
        self._title = ""
        self._expected = self._restarts = 1
        self._progress.start()

    def experiment(self, title: str, restarts: int, subjects: list[str]) -> None:
        self.close_task()
        self._title, self._restarts = title, restarts
        self._task = self._progress.add_task(title, total=restarts, now="")

    def restart(self, number: int) -> None:
        self._progress.update(
            self._task, completed=number, description=f"{self._title} {number + 1}/{self._restarts}"
        )

    def doing(self, subject: str, what: str) -> None:
        self._progress.update(self._task, now=f"{subject} {what}")
        self._paint()

    def slice(self, one: Slice) -> None:
        self._progress.update(self._task, now=f"{one.subject} {one.per_s:,.0f}/s")
        self._paint()

    def _paint(self) -> None:
        if (now := time.monotonic()) - self._painted >= PAINT_S:
            self._painted = now
            self._progress.refresh()

    def message(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False)

    def ended(self, experiment: ExperimentRecord) -> None:
        self.close_task()

    def close_task(self) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None

    def close(self) -> None:
        self._progress.stop()


def for_terminal(*, quiet: bool = False) -> Progress:
    """The best that standard error supports."""
    if quiet:
        return Progress()
    if sys.stderr.isatty():
        try:
            return LiveProgress()
        except ImportError:
            pass  # rich comes with towline[bench]
    return LineProgress()
