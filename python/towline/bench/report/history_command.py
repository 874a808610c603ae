"""`towline bench history`: earlier measurements on this machine."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from . import formatting
from .history import History, HistoryError, default_path
from .main import STATUS_USAGE, load_analysis


def main_history(arguments: Sequence[str]) -> int:
    """Exit status: 0 done, 2 an invalid command line, file or database."""
    given = parser().parse_args(arguments)
    try:
        status: int = given.run(History(given.database), given)
    except HistoryError as error:
        sys.stderr.write(f"towline bench history: {error}\n")
        return STATUS_USAGE
    return status


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="towline bench history", description="The estimates of earlier runs, kept in one SQLite file."
    )
    made.add_argument(
        "--database", type=Path, metavar="FILE", help=f"instead of $TOWLINE_BENCH_HISTORY or {_home()}"
    )
    made.set_defaults(run=_list, most=20)
    commands = made.add_subparsers(title="commands", metavar="COMMAND")
    one = commands.add_parser("list", help="the latest runs (this is the default)")
    one.add_argument(
        "-n", dest="most", type=int, default=20, metavar="N", help="number of entries to show (default: 20)"
    )
    one.set_defaults(run=_list)
    one = commands.add_parser("show", help="the estimates of one run")
    one.add_argument("number", type=int, metavar="RUN")
    one.set_defaults(run=_show)
    one = commands.add_parser("add", help="add results that were measured elsewhere, or were not kept")
    one.add_argument("files", type=Path, nargs="+", metavar="FILE")
    one.set_defaults(run=_add)
    one = commands.add_parser("prune", help="remove old runs")
    one.add_argument("--keep", type=_count, metavar="N", help="keep the latest N, remove the others")
    one.add_argument("--older-than", type=_count, metavar="DAYS", help="remove entries older than DAYS days")
    one.set_defaults(run=_prune)
    return made


def _home() -> str:
    path, home = str(default_path()), str(Path.home())
    return path.replace(home, "~", 1) if path.startswith(home) else path


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _list(history: History, given: argparse.Namespace) -> int:
    runs = history.runs(given.most)
    if not runs:
        sys.stdout.write("no run yet; `towline bench` keeps each one it makes\n")
        return 0
    sys.stdout.write(f"{'run':>5}  {'began':<20}  {'took':>12}  experiments  subjects  machine\n")
    for run in runs:
        ended = "  (interrupted)" if run.interrupted else ""
        sys.stdout.write(
            f"{run.id:>5}  {formatting.moment(run.began_unix_s):<20}  {formatting.duration(run.duration_s):>12}  "
            f"{run.experiments:>5}  {run.subjects:>8}  {run.machine_id}{ended}\n"
        )
    return 0


def _show(history: History, given: argparse.Namespace) -> int:
    points = history.points(given.number)
    experiment = ""
    for point in points:
        if point.experiment != experiment:
            experiment = point.experiment
            sys.stdout.write(f"{experiment}\n")
        bounds = ""
        if point.low is not None and point.high is not None:
            bounds = f"  [{formatting.figure(point.metric, point.low)}, {formatting.figure(point.metric, point.high)}]"
        figure = formatting.figure(point.metric, point.value)
        sys.stdout.write(
            f"  {point.subject:<24}  {formatting.metric_name(point.metric):<16}  {figure:>12}{bounds}\n"
        )
    return 0


def _add(history: History, given: argparse.Namespace) -> int:
    for path in given.files:
        analysis = load_analysis(path)
        if analysis is None:
            return STATUS_USAGE
        sys.stdout.write(f"run {history.append(analysis)}: {path}\n")
    return 0


def _prune(history: History, given: argparse.Namespace) -> int:
    if given.keep is None and given.older_than is None:
        raise HistoryError("prune: give --keep N or --older-than DAYS")
    before = None if given.older_than is None else time.time() - given.older_than * 86_400
    removed = history.prune(keep=given.keep, before_unix_s=before)
    sys.stdout.write(f"{removed} run{'' if removed == 1 else 's'} removed\n")
    return 0
