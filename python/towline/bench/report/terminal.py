"""The result in a terminal: one table per experiment, verdicts first; with rich where it is installed."""

from __future__ import annotations

import math
import sys
from typing import TextIO

from ..analysis import Analysis
from ..verdict import Verdict
from . import formatting
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
    """Prints to `file` (standard output). `plain`: without rich; by default only if the output is not a terminal."""
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
        parts.append(_aligned([columns(experiment), *(row(experiment, one) for one in experiment.subjects)]))
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
    rate, cpu = one.figures.get("per_s"), one.figures.get("cpu_us")
    experiments = [
        one.name,
        formatting.rate(rate),
        formatting.spread(rate),
        formatting.microseconds(one.percentile_us(0.5)),
        formatting.microseconds(one.percentile_us(0.99)),
        formatting.microseconds(cpu.value if cpu else None),
        formatting.size(one.rss_peak_bytes),
    ]
    found = experiment.against(one.name)
    if found is None:
        return [*experiments, "", "", ""]
    if found.verdict is Verdict.REFUSED:
        return [*experiments, found.verdict.value, "", ""]
    return [
        *experiments,
        found.verdict.value,
        formatting.ratio(found.ratio),
        formatting.interval(found.low, found.high),
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


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(len(line[index]) for line in rows[:1] + _short(rows)) for index in range(len(rows[0]))]
    right = {1, 2, 3, 4, 5, 6, 8}
    lines = []
    for line in rows:
        fields = [
            value.rjust(width) if index in right else value.ljust(width)
            for index, (value, width) in enumerate(zip(line, widths, strict=True))
        ]
        lines.append("  " + "  ".join(fields).rstrip())
    return "\n".join(lines)


def _short(rows: list[list[str]]) -> list[list[str]]:
    """A long failure does not widen its column."""
    return [[*line[:-1], ""] if line[-1].startswith("failed:") else line for line in rows[1:]]


def _show_rich(analysis: Analysis, out: TextIO) -> bool:
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    console = Console(file=out, highlight=False, soft_wrap=False)
    for experiment in views(analysis):
        table = Table(
            title=Text(heading(experiment), style="bold"), title_justify="left", box=None, pad_edge=False
        )
        for index, title in enumerate(columns(experiment)):
            table.add_column(Text(title, style="dim"), justify="right" if 0 < index < 7 else "left")
        for one in experiment.subjects:
            found = experiment.against(one.name)
            style = COLOURS[found.verdict] if found else "red" if one.record.failure else "bold"
            fields = row(experiment, one)
            ours = "bold" if one.name == experiment.baseline else ""
            table.add_row(
                *(Text(value, style=ours) for value in fields[:7]),
                *(Text(value, style=style) for value in fields[7:]),
            )
        console.print(table)
        for line in remarks(experiment):
            console.print(Text(f"! {line}", style="yellow"))
        for line in experiment.experiment.notes:
            console.print(Text(f"- {line}", style="dim"))
        console.print()
    for line in closing(analysis):
        console.print(Text(line, style="dim"))
    return True
