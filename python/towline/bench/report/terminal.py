"""The result in a terminal: one table per experiment, verdicts first; with rich where it is installed."""

from __future__ import annotations

import math
import sys
from typing import TextIO

from ..analysis import Analysis
from ..verdict import Verdict
from . import call_figures, formatting
from .view import ExperimentView, SubjectView, tally, views

COLOURS = {
    Verdict.FASTER: "green",
    Verdict.SLOWER: "red",
    Verdict.EQUIVALENT: "cyan",
    Verdict.UNDECIDED: "yellow",
    Verdict.UNSTABLE: "yellow",
    Verdict.REFUSED: "magenta",
}


def show(analysis: Analysis, file: TextIO | None = None, *, plain: bool | None = None) -> None:
    """Prints to `file` (standard output). `plain`: without colours and as wide as needed; by default only if the output is
    not a terminal. On a terminal nothing is cut: a table that is too wide for it has two lines for each subject."""
    out = file or sys.stdout
    if plain is None:
        plain = not out.isatty()
    if plain or not _show_rich(analysis, out):
        out.write(text(analysis))


def text(analysis: Analysis) -> str:
    """Aligned text without colours."""
    parts = []
    for experiment in views(analysis):
        parts.append(heading(experiment))
        parts += _plain(experiment)
        parts += [f"  ! {line}" for line in remarks(experiment)]
        parts += [f"  - {line}" for line in experiment.experiment.notes]
        parts.append("")
    return "\n".join([*parts, *closing(analysis), ""])


def heading(experiment: ExperimentView) -> str:
    """`hello (A, capacity): 50 connections`."""
    one = experiment.experiment
    kind = "A/A control" if one.control else f"{one.section}, {one.question}"
    return f"{one.name} ({kind}): {formatting.load(one.load)}".rstrip(": ")


def columns(experiment: ExperimentView) -> list[str]:
    against = f"{experiment.baseline} is" if experiment.baseline else "verdict"
    what = formatting.metric_name(experiment.headline[0]) if experiment.headline else ""
    return [
        "subject",
        "requests/s",
        "",
        "p50",
        "p99",
        "CPU/request",
        "memory",
        against,
        f"{what} ratio".strip(),
        "interval",
    ]


def row(experiment: ExperimentView, one: SubjectView) -> list[str]:
    if one.record.failure:
        return [one.name, "-", "", "-", "-", "-", "-", "", "", f"failed: {one.record.failure}"]
    values = [one.name, *figures(one)]
    found = experiment.against(one.name)
    if found is None:
        return [*values, "", "", ""]
    if found.verdict is Verdict.REFUSED:
        return [*values, found.verdict.value, "", ""]
    return [
        *values,
        found.verdict.value,
        formatting.ratio(found.ratio),
        formatting.interval(found.low, found.high),
    ]


def figures(one: SubjectView) -> list[str]:
    """The cells of `columns` from requests/s to memory."""
    rate, cpu = one.figures.get("per_s"), one.figures.get("cpu_us")
    return [
        formatting.rate(rate),
        formatting.spread(rate),
        formatting.microseconds(one.percentile_us(0.5)),
        formatting.microseconds(one.percentile_us(0.99)),
        formatting.microseconds(cpu.value if cpu else None),
        formatting.size(one.rss_peak_bytes),
    ]


def remarks(experiment: ExperimentView) -> list[str]:
    """Guards, restarts needed, lints: each once; verdicts are in the table."""
    lines = [one.reason for one in experiment.analysis.comparisons if one.reason]
    open_ = [
        one
        for metric in experiment.headline[:1]
        for one in experiment.comparisons(metric)
        if one.verdict is Verdict.UNDECIDED
    ]
    if open_ and not experiment.experiment.control:
        # The largest number decides all of them.
        hardest = max(open_, key=lambda one: one.restarts_needed or math.inf)
        lines.append(f"{len(open_)} undecided: {formatting.more_restarts(hardest)}")
    return list(dict.fromkeys([*lines, *experiment.analysis.lints, *experiment.notes]))


def closing(analysis: Analysis) -> list[str]:
    """The count of verdicts, the skipped subjects, and the duration."""
    record = analysis.record
    counted = tally(views(analysis))
    lines = []
    if counted:
        summary = ", ".join(f"{counted[one]} {one.value}" for one in Verdict if counted[one])
        lines.append(f"verdicts: {summary}")
    if record.skipped:
        lines.append("skipped: " + ", ".join(f"{name} ({why})" for name, why in record.skipped.items()))
    if record.interrupted:
        lines.append("interrupted: only what was measured until then is included")
    lines.append(
        f"{formatting.moment(record.began_unix_s)}, {formatting.duration(record.ended_unix_s - record.began_unix_s)}, "
        f"seed {record.seed}; intervals of ratios are {formatting.confidence(analysis.alpha)} for all of an experiment together"
    )
    return lines


FIGURES = 7
"""Columns before the verdict: the subject and its figures."""
RIGHT = frozenset({1, 2, 3, 4, 5, 6, 8})
"""Columns that are aligned to the right."""
GAP, INDENT = "  ", "  "


def _plain(experiment: ExperimentView) -> list[str]:
    if call_figures.is_about_calls(experiment):
        return [
            f"{INDENT}{line}".rstrip() for table in call_figures.tables(experiment) for line in _grid(table)
        ]
    rows = [columns(experiment), *(row(experiment, one) for one in experiment.subjects)]
    widths = _widths(rows)
    return [(INDENT + GAP.join(_padded(line, widths))).rstrip() for line in rows]


def _grid(rows: list[list[str]]) -> list[str]:
    """Columns aligned to the right, but the first; a row with a reason instead of figures is as long as that."""
    full = [line for line in rows if len(line) == len(rows[0])]
    widths = [max(map(len, column)) for column in zip(*full, strict=True)]
    widths[0] = max(len(line[0]) for line in rows)
    return [
        GAP.join(
            value.ljust(width) if index == 0 or len(line) < len(rows[0]) else value.rjust(width)
            for index, (value, width) in enumerate(zip(line, widths, strict=False))
        ).rstrip()
        for line in rows
    ]


def _widths(rows: list[list[str]]) -> list[int]:
    # A long failure does not widen its column.
    measured = [[*line[:-1], ""] if line[-1].startswith("failed:") else line for line in rows]
    return [max(map(len, column)) for column in zip(*measured, strict=True)]


def _padded(fields: list[str], widths: list[int]) -> list[str]:
    return [
        value.rjust(width) if index in RIGHT else value.ljust(width)
        for index, (value, width) in enumerate(zip(fields, widths, strict=False))
    ]


def lines(experiment: ExperimentView, width: int) -> list[list[tuple[str, str]]]:
    """The table in lines that fit `width` if they can: texts with their styles."""
    if call_figures.is_about_calls(experiment):
        grids = [_grid(table) for table in call_figures.tables(experiment)]
        return [[(line, "dim" if index == 0 else "")] for grid in grids for index, line in enumerate(grid)]
    rows = [columns(experiment), *(row(experiment, one) for one in experiment.subjects)]
    widths = _widths(rows)
    if sum(widths) + len(GAP) * (len(widths) - 1) <= width:
        found = [[(GAP.join(_padded(rows[0], widths)), "dim")]]
        for one, fields in zip(experiment.subjects, rows[1:], strict=True):
            padded, (style, ours) = _padded(fields, widths), _styles(experiment, one)
            if one.record.failure:
                found.append([(padded[0] + GAP, ours), (fields[-1], style)])
                continue
            figures, verdict = GAP.join(padded[:FIGURES]), GAP.join(padded[FIGURES:]).rstrip()
            found.append([(figures + GAP, ours), (verdict, style)])
        return found
    return _stacked(experiment, rows, widths, width)


def _stacked(
    experiment: ExperimentView, rows: list[list[str]], widths: list[int], width: int
) -> list[list[tuple[str, str]]]:
    """Two lines for each subject: rate and times, then cost and verdict. A name that leaves too little room has its own."""
    shown = 5
    name_width, rest = widths[0], sum(widths[1:shown]) + len(GAP) * (shown - 1)
    own_line = name_width + rest > width
    if own_line:
        widths = [len(INDENT), *widths[1:]]
    head = ["" if own_line else rows[0][0], *rows[0][1:shown]]
    second = ", ".join(value for value in rows[0][shown:] if value)
    if len(second) + 2 * len(INDENT) > width:
        second = ", ".join((*rows[0][shown:FIGURES], "verdict"))
    found = [[(GAP.join(_padded(head, widths)).rstrip(), "dim")], [(f"{INDENT}{INDENT}{second}", "dim")]]
    for one, fields in zip(experiment.subjects, rows[1:], strict=True):
        style, ours = _styles(experiment, one)
        if own_line:
            found.append([(fields[0], ours)])
        if one.record.failure:
            found.append([(INDENT if own_line else f"{fields[0]}{GAP}", ours), (fields[-1], style)])
            continue
        first = ["" if own_line else fields[0], *fields[1:shown]]
        found.append([(GAP.join(_padded(first, widths)).rstrip(), ours)])
        known = [value for value in fields[shown:FIGURES] if value != "-"]
        cost = f"{INDENT}{INDENT}{', '.join(known)}"
        verdict = GAP.join(value for value in fields[FIGURES:] if value)
        found.append([(cost, "dim"), (f"{GAP}{verdict}" if verdict else "", style)])
    return found


def _styles(experiment: ExperimentView, one: SubjectView) -> tuple[str, str]:
    """Styles of the verdict and of the figures."""
    found = experiment.against(one.name)
    style = COLOURS[found.verdict] if found else "red" if one.record.failure else "bold"
    return style, "bold" if one.name == experiment.baseline else ""


def _show_rich(analysis: Analysis, out: TextIO) -> bool:
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        return False
    console = Console(file=out, highlight=False)
    for experiment in views(analysis):
        console.print(Text(heading(experiment), style="bold"))
        for line in lines(experiment, console.width):
            console.print(Text.assemble(*line), soft_wrap=True)
        for remark in remarks(experiment):
            console.print(Text(f"! {remark}", style="yellow"))
        for note in experiment.experiment.notes:
            console.print(Text(f"- {note}", style="dim"))
        console.print()
    for end in closing(analysis):
        console.print(Text(end, style="dim"))
    return True
