"""Two tables for other programs: one row per experiment and subject, and one per slice."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable

from ..analysis import Analysis, Estimate
from ..record import Record
from . import call_figures
from .view import ExperimentView, SubjectView, views

SUBJECT_COLUMNS = (
    "experiment",
    "scenario",
    "section",
    "question",
    "control",
    "subject",
    "failure",
    "answered",
    "failed",
    "refused",
    "per_s",
    "per_s_low",
    "per_s_high",
    "at_least",
    "p50_us",
    "p90_us",
    "p99_us",
    "p99_9_us",
    "cpu_us",
    "cpu_us_low",
    "cpu_us_high",
    "rss_peak_bytes",
    "rss_end_bytes",
    "switches_per_request",
    "compared_with",
    "metric",
    "ratio",
    "ratio_low",
    "ratio_high",
    "p",
    "verdict",
    "reason",
    *call_figures.TIMES,
    *call_figures.TOKENS,
)
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
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Texts with this beginning would run as formulas in a spreadsheet; they get an apostrophe in front."""


def subjects_csv(analysis: Analysis) -> str:
    """One row per experiment and subject; the ratio is the baseline's figure divided by this subject's."""
    rows = [_row(experiment, one) for experiment in views(analysis) for one in experiment.subjects]
    return _table(SUBJECT_COLUMNS, rows)


def slices_csv(record: Record) -> str:
    """One row per slice, in the order in which they were measured."""
    rows = []
    for experiment in record.experiments:
        for one in sorted(experiment.slices, key=lambda each: each.began_unix_s):
            rows.append(
                [experiment.name, *(getattr(one, name) for name in SLICE_COLUMNS[1:11]), one.per_s]
                + [one.response.p50_us, one.response.p99_us, one.response.p99_9_us]
                + [getattr(one, name) for name in SLICE_COLUMNS[15:]]
            )
    return _table(SLICE_COLUMNS, rows)


def _row(shown: ExperimentView, one: SubjectView) -> list[object]:
    experiment = shown.experiment
    found = shown.against(one.name)
    rate, cpu = one.figures.get("per_s"), one.figures.get("cpu_us")
    return [
        experiment.name,
        experiment.scenario,
        experiment.section,
        experiment.question,
        experiment.control,
        one.name,
        one.record.failure,
        one.answered,
        one.failed,
        one.refused,
        *_estimate(rate),
        rate.at_least if rate else None,
        *(one.percentile_us(share) for share in (0.5, 0.9, 0.99, 0.999)),
        *_estimate(cpu),
        one.rss_peak_bytes,
        one.rss_end_bytes,
        one.switches_per_request,
        *(
            [
                found.subject,
                found.metric,
                found.ratio,
                found.low,
                found.high,
                found.p,
                found.verdict.value,
                found.reason,
            ]
            if found
            else [None] * 8
        ),
        *(
            call_figures.value(shown, one.name, figure)
            for figure in (*call_figures.TIMES, *call_figures.TOKENS)
        ),
    ]


def _estimate(one: Estimate | None) -> tuple[object, ...]:
    return (one.value, one.low, one.high) if one else (None, None, None)


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
