"""`towline bench compare FIRST SECOND`: changes between two results."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ..verdict import MARGIN
from . import formatting
from .compare import CAUTION, Change, Difference, compare
from .main import STATUS_USAGE, load_analysis, share
from .markdown import MARKS, escape

NOTHING_COMPARED = 1
HEAD = ("subject", "of", "first", "second", "ratio", "interval", "second is")


def main_compare(arguments: Sequence[str]) -> int:
    """Exit status: 0 done, whatever was found (`gate` judges), 1 nothing was compared, 2 a file is not a result."""
    given = parser().parse_args(arguments)
    first, second = load_analysis(given.first), load_analysis(given.second)
    if first is None or second is None:
        return STATUS_USAGE
    found = compare(first.record, second.record, margin=given.margin, subjects=given.subject)
    sys.stdout.write(markdown(found) if given.markdown else text(found))
    return 0 if found.changes else NOTHING_COMPARED


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="towline bench compare",
        description="The figures of two results side by side: Welch's test over restarts, on log scale.",
        epilog=CAUTION,
    )
    made.add_argument("first", type=Path, metavar="FIRST")
    made.add_argument("second", type=Path, metavar="SECOND", help="the numerator of each ratio")
    made.add_argument(
        "--subject",
        type=_pair,
        action="append",
        default=[],
        metavar="NAME[=NAME]",
        help="compare only this subject; OLD=NEW if its name differs in the second result",
    )
    made.add_argument("--markdown", action="store_true", help="for a pull request")
    made.add_argument(
        "--margin",
        type=share,
        default=MARGIN,
        metavar="SHARE",
        help="ignore differences within this share (2%%)",
    )
    return made


def text(found: Difference) -> str:
    """Aligned text, by experiment."""
    lines = [f"warning: {one}" for one in found.warnings]
    by_cell: dict[str, list[Change]] = {}
    for one in found.changes:
        by_cell.setdefault(one.experiment, []).append(one)
    for experiment, changes in by_cell.items():
        rows = [HEAD, *(row(one) for one in changes)]
        widths = [max(len(each[index]) for each in rows) for index in range(len(HEAD))]
        lines += ["", experiment]
        lines += [
            "  " + "  ".join(value.ljust(width) for value, width in zip(each, widths, strict=True)).rstrip()
            for each in rows
        ]
        lines += reasons(changes)
    if not found.changes:
        lines += ["nothing was compared: --subject OLD=NEW compares subjects of different names"]
    lines += [*([""] if found.missing else []), *(f"not compared: {one}" for one in found.missing)]
    return "\n".join([*lines, "", CAUTION, ""]).lstrip("\n")


def reasons(changes: Sequence[Change]) -> list[str]:
    """Why figures have no verdict: a line for each reason, with the figures unless it applies to all of the subject."""
    metrics: dict[tuple[str, str], list[str]] = {}
    for one in changes:
        if one.reason:
            metrics.setdefault((one.subject, one.reason), []).append(formatting.metric_name(one.metric))
    lines = []
    for (subject, reason), names in metrics.items():
        whole = len(names) == sum(one.subject == subject for one in changes)
        lines.append(f"  ! {subject}: {'' if whole else ', '.join(names) + ': '}{reason}")
    return lines


def _pair(text: str) -> tuple[str, str]:
    first, equals, second = text.partition("=")
    if not first or (equals and not second):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME, nor OLD=NEW")
    return first, second or first


def markdown(found: Difference) -> str:
    """The comparison as Markdown."""
    lines = ["### Towline bench: two results", ""]
    lines += [f"> ⚠️ {escape(one)}" for one in found.warnings]
    lines += ["", f"| experiment | {' | '.join(HEAD)} |", "|---|---|---|--:|--:|--:|---|---|"]
    for one in found.changes:
        experiments = [escape(value) for value in (one.experiment, *row(one)[:-1])]
        lines.append(f"| {' | '.join(experiments)} | {MARKS[one.verdict]} {word(one)} |")
    lines += [
        "",
        *(f"- not compared: {escape(one)}" for one in found.missing),
        "",
        f"<sub>{escape(CAUTION)}</sub>",
    ]
    return "\n".join(lines) + "\n"


def row(one: Change) -> tuple[str, ...]:
    """The columns of HEAD."""
    return (
        one.subject,
        formatting.metric_name(one.metric),
        formatting.figure(one.metric, one.before),
        formatting.figure(one.metric, one.after),
        formatting.ratio(one.ratio),
        formatting.interval(one.low, one.high),
        word(one),
    )


def word(one: Change) -> str:
    """The verdict on the second."""
    return formatting.verdict_word(one.verdict, one.metric)
