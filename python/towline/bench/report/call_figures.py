"""Figures of experiments whose calls are timed one by one, as those of `towline bench llm` are: n, errors, times, first token,
time per token, goodput."""

from __future__ import annotations

from statistics import median

from ..record import Slice
from . import formatting
from .view import ExperimentView, SubjectView

TIMES = ("total_p50_ms", "total_p95_ms", "total_mean_ms", "total_min_ms", "total_max_ms")
TOKENS = ("ttft_p50_ms", "ttft_p95_ms", "tpot_p50_ms", "tpot_p95_ms", "goodput_share", "goodput_per_s")
NAMES = {
    **dict(zip(TIMES, ("p50", "p95", "mean", "min", "max"), strict=True)),
    "ttft_p50_ms": "TTFT p50",
    "ttft_p95_ms": "TTFT p95",
    "tpot_p50_ms": "TPOT p50",
    "tpot_p95_ms": "TPOT p95",
    "goodput_share": "goodput",
    "goodput_per_s": "goodput/s",
}
COUNTS = ("n", "errors", "refused")


def is_about_calls(shown: ExperimentView) -> bool:
    return any(TIMES[0] in one.extra for one in shown.experiment.slices)


def value(shown: ExperimentView, name: str, figure: str) -> float | None:
    """A figure of a subject: the median over restarts, of `min` and `max` the extreme. None if it has none."""
    slices = [one for one in shown.experiment.slices if one.subject == name and figure in one.extra]
    values = [one.extra[figure] for one in slices]
    if not values:
        return None
    if figure == "total_min_ms":
        return min(values)
    return max(values) if figure == "total_max_ms" else median(values)


def tables(shown: ExperimentView) -> list[list[list[str]]]:
    """Two tables with a row for each subject: counts and times of calls, then what is about tokens. A subject that failed
    has its reason in place of its figures."""
    figures = [one for one in TOKENS if any(_has(each, one) for each in shown.experiment.slices)]
    first = [["subject", *COUNTS, *(NAMES[one] for one in TIMES)]]
    second = [["subject", *(NAMES[one] for one in figures), "CPU/request"]]
    for one in shown.subjects:
        if one.record.failure:
            first.append([one.name, f"failed: {one.record.failure}"])
            continue
        counts = [f"{count:,}" for count in (one.answered, one.failed, one.refused)]
        first.append([one.name, *counts, *(cell(shown, one, each) for each in TIMES)])
        cpu = one.figures.get("cpu_us")
        cost = formatting.microseconds(cpu.value if cpu else None)
        second.append([one.name, *(cell(shown, one, each) for each in figures), cost])
    return [first, second]


def cell(shown: ExperimentView, one: SubjectView, figure: str) -> str:
    found = value(shown, one.name, figure)
    if found is None:
        return "-"
    return f"{found * 100:.0f} %" if figure.endswith("_share") else formatting.figure(figure, found)


def _has(one: Slice, figure: str) -> bool:
    return figure in one.extra
