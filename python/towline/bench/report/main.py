"""`towline bench report FILE`: tables, charts and verdicts from a record."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ...errors import UsageError
from .. import record as records
from ..analysis import Analysis, analyse
from ..verdict import MARGIN
from .files import FORMATS, render
from .history import History
from .terminal import show

STATUS_USAGE = 2


def main_report(arguments: Sequence[str]) -> int:
    """Exit status: 0 done, 2 the file is not a result or cannot be read or written."""
    given = parser().parse_args(arguments)
    loaded = load_analysis(given.file, given.baseline, given.margin)
    if loaded is None:
        return STATUS_USAGE
    formats = [one for one in FORMATS if getattr(given, one)]
    if given.terminal or not formats:
        show(loaded)
    if formats:
        try:
            history = None if given.no_history else History(given.history)
            written = render(loaded, given.output or records.located(given.file).parent, formats, history)
        except UsageError as error:
            sys.stderr.write(f"towline bench report: {error}\n")
            return STATUS_USAGE
        except OSError as error:
            sys.stderr.write(f"towline bench report: cannot write: {error}\n")
            return STATUS_USAGE
        sys.stdout.write("".join(f"{path}\n" for path in written))
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="towline bench report",
        description="Makes tables, charts and verdicts from a result file, without measuring.",
        epilog="With no format the table is printed. Files are report.html, report.md, subjects.csv, slices.csv, "
        "verdicts.json and a chart for each experiment, in the folder of the result, or in that of --output.",
    )
    made.add_argument("file", type=Path, metavar="FILE", help="a result of towline bench, or its folder")
    formats = made.add_argument_group("formats")
    formats.add_argument("--terminal", action="store_true", help="print the table")
    formats.add_argument("--html", action="store_true", help="one self-contained page with charts")
    formats.add_argument("--markdown", action="store_true", help="for a pull request")
    formats.add_argument(
        "--csv", action="store_true", help="a row per subject and experiment, and a row per slice"
    )
    formats.add_argument("--json", action="store_true", help="figures, comparisons and verdicts as data")
    formats.add_argument("--svg", action="store_true", help="a chart for each experiment, as an SVG file")
    formats.add_argument(
        "--png", action="store_true", help="a chart for each experiment, as a PNG file (needs towline[bench])"
    )
    formats.add_argument("-o", "--output", type=Path, metavar="FOLDER", help="where the files go")
    history = formats.add_mutually_exclusive_group()
    history.add_argument(
        "--history", type=Path, metavar="FILE", help="file of earlier runs, instead of the user's own"
    )
    history.add_argument("--no-history", action="store_true", help="draw no earlier runs")
    add_rules(made)
    return made


def add_rules(made: argparse.ArgumentParser) -> None:
    """Options of all commands that derive verdicts."""
    rules = made.add_argument_group("verdicts")
    rules.add_argument(
        "--baseline",
        metavar="SUBJECT",
        help="compare the others with this subject (default: the baseline of the run)",
    )
    rules.add_argument(
        "--margin",
        type=share,
        default=MARGIN,
        metavar="SHARE",
        help="ignore differences within this share: 0.02 or 2%% (the default)",
    )


def share(text: str) -> float:
    """`5%` or `0.05`."""
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no share; 5% or 0.05 is") from None
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 0 and 100 %")
    return value


def load_analysis(path: Path, baseline: str | None = None, margin: float = MARGIN) -> Analysis | None:
    """None, after an error message, if the file cannot be used."""
    try:
        return analyse(records.load(path), baseline, margin)
    except records.NotARecord as error:
        sys.stderr.write(f"towline bench: {error}\n")
    except OSError as error:
        sys.stderr.write(f"towline bench: cannot read {path}: {error.strerror or error}\n")
    return None
