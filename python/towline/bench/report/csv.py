"""Two tables for other programs: one row per experiment and subject, and one per slice."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from ..analysis import Analysis, Comparison, Estimate
from ..record import ExperimentRecord, Record
from . import call_figures
from .view import ExperimentView, SubjectView, views


@dataclass(frozen=True)
class _Row:
    """One subject of one experiment; a figure that it does not have is None."""

    shown: ExperimentView
    one: SubjectView

    @property
    def experiment(self) -> ExperimentRecord:
        return self.shown.experiment

    @cached_property
    def found(self) -> Comparison | None:
        return self.shown.against(self.one.name)

    def estimate(self, metric: str) -> Estimate | None:
        return self.one.figures.get(metric)


def _calls(figure: str) -> Callable[[_Row], object]:
    return lambda row: call_figures.value(row.shown, row.one.name, figure)


SUBJECT_COLUMNS: dict[str, Callable[[_Row], object]] = {
    "experiment": lambda row: row.experiment.name,
    "scenario": lambda row: row.experiment.scenario,
    "section": lambda row: row.experiment.section,
    "question": lambda row: row.experiment.question,
    "control": lambda row: row.experiment.control,
    "subject": lambda row: row.one.name,
    "failure": lambda row: row.one.record.failure,
    "answered": lambda row: row.one.answered,
    "failed": lambda row: row.one.failed,
    "refused": lambda row: row.one.refused,
    "per_s": lambda row: (rate := row.estimate("per_s")) and rate.value,
    "per_s_low": lambda row: (rate := row.estimate("per_s")) and rate.low,
    "per_s_high": lambda row: (rate := row.estimate("per_s")) and rate.high,
    "at_least": lambda row: (rate := row.estimate("per_s")) and rate.at_least,
    "p50_us": lambda row: row.one.percentile_us(0.5),
    "p90_us": lambda row: row.one.percentile_us(0.9),
    "p99_us": lambda row: row.one.percentile_us(0.99),
    "p99_9_us": lambda row: row.one.percentile_us(0.999),
    "cpu_us": lambda row: (cpu := row.estimate("cpu_us")) and cpu.value,
    "cpu_us_low": lambda row: (cpu := row.estimate("cpu_us")) and cpu.low,
    "cpu_us_high": lambda row: (cpu := row.estimate("cpu_us")) and cpu.high,
    "rss_peak_bytes": lambda row: row.one.rss_peak_bytes,
    "rss_end_bytes": lambda row: row.one.rss_end_bytes,
    "switches_per_request": lambda row: row.one.switches_per_request,
    "compared_with": lambda row: row.found and row.found.subject,
    "metric": lambda row: row.found and row.found.metric,
    "ratio": lambda row: row.found and row.found.ratio,
    "ratio_low": lambda row: row.found and row.found.low,
    "ratio_high": lambda row: row.found and row.found.high,
    "p": lambda row: row.found and row.found.p,
    "verdict": lambda row: row.found and row.found.verdict.value,
    "reason": lambda row: row.found and row.found.reason,
    **{figure: _calls(figure) for figure in (*call_figures.TIMES, *call_figures.TOKENS)},
}
"""The last ones are those of experiments whose calls are timed one by one (`towline bench llm`)."""
SLICE_COLUMNS = (
    "experiment",
    "subject",
    "restart",
    "round",
    "position",
    "began_unix_s",
    "measured_s",
    "answered",
    "failed",
    "refused",
    "target_per_s",
    "per_s",
    "p50_us",
    "p99_us",
    "p99_9_us",
    "lag_p99_us",
    "subject_cpu_s",
    "subject_busiest_share",
    "driver_cpu_s",
    "driver_busiest_share",
    "context_switches",
    "body_bytes",
)
RESPONSE = frozenset({"p50_us", "p99_us", "p99_9_us"})
"""Columns of slices that are figures of the response times."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Texts with this beginning would run as formulas in a spreadsheet; they get an apostrophe in front."""


def subjects_csv(analysis: Analysis) -> str:
    """One row per experiment and subject; the ratio is the baseline's figure divided by this subject's."""
    rows = [_Row(shown, one) for shown in views(analysis) for one in shown.subjects]
    return _table(SUBJECT_COLUMNS, ([cell(row) for cell in SUBJECT_COLUMNS.values()] for row in rows))


def slices_csv(record: Record) -> str:
    """One row per slice, in the order in which they were measured."""
    rows = (
        [
            experiment.name,
            *(getattr(one.response if name in RESPONSE else one, name) for name in SLICE_COLUMNS[1:]),
        ]
        for experiment in record.experiments
        for one in sorted(experiment.slices, key=lambda each: each.began_unix_s)
    )
    return _table(SLICE_COLUMNS, rows)


def _table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_plain(value) for value in row] for row in rows)
    return text.getvalue()


def _plain(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.10g}" if math.isfinite(value) else ""
    text = str(value)
    return f"'{text}" if text.startswith(FORMULA) and not isinstance(value, int) else text
