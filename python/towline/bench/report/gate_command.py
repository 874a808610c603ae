"""`towline bench gate`: the exit status says whether a change may pass."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape as xml_escape
from xml.sax.saxutils import quoteattr

from ..record import Record
from . import formatting
from .compare import Change
from .gate import Checked, Gate, Outcome, across, check, within
from .history import mark
from .main import STATUS_USAGE, load_analysis, share
from .markdown import escape
from .markup import printable

STATUSES = """exit status:
  0  passed: nothing is slower by the threshold or more
  1  regression: slower by more than the threshold, also in the confirming job
  2  invalid command line or file
  3  undecided or refused: the intervals are too wide, a guard failed, or
     something is missing
  4  suspected: slower by more than the threshold; measure again in a fresh job
     and give that as --confirm
"""
MARKS = {
    Outcome.REGRESSION: "🔴",
    Outcome.SUSPECTED: "🟠",
    Outcome.REFUSED: "🚫",
    Outcome.UNDECIDED: "🟡",
    Outcome.NOT_CONFIRMED: "⚪",
    Outcome.PASS: "🟢",
}
"""The worst first."""
ENDINGS = {
    0: "Passed.",
    1: "Regression: slower beyond the threshold, in two independent jobs.",
    3: "No verdict: see the lines above.",
    4: "Suspected: run again in a fresh job to confirm (--confirm FILE).",
}


def main_gate(arguments: Sequence[str]) -> int:
    """Exit status: see STATUSES."""
    made = parser()
    given = made.parse_args(arguments)
    if (given.baseline is None) == (given.pair is None):
        made.error("give either --baseline FILE or --pair OLD NEW")
    paths = [path for path in (given.result, given.baseline, given.confirm) if path is not None]
    loaded = {path: load_analysis(path) for path in paths}
    records = {path: one.record for path, one in loaded.items() if one is not None}
    if len(records) < len(loaded):
        return STATUS_USAGE
    marks = [mark(records[path]) for path in paths]
    if len(set(marks)) < len(marks):
        made.error("the files must be of different runs: a run confirms nothing about itself")
    gate = _judge(given, records)
    status = gate.status(given.allow_undecided)
    sys.stdout.write(text(gate, status))
    try:
        _write(given, gate, status)
    except OSError as error:
        sys.stderr.write(f"towline bench gate: cannot write: {error}\n")
        return STATUS_USAGE
    return status


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="towline bench gate",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=STATUSES,
        description="Judges whether a result is slower than an earlier one: the whole interval\nmust lie beyond the "
        "threshold, in two independent jobs.\n\nexamples:\n  towline bench gate new --baseline old\n"
        "  towline bench gate result --pair before after",
    )
    made.add_argument("result", type=Path, metavar="RESULT", help="the new result")
    against = made.add_argument_group("compared with one of")
    against.add_argument(
        "--baseline", type=Path, metavar="FILE", help="an earlier result, of the same machine"
    )
    against.add_argument(
        "--pair",
        nargs=2,
        metavar=("OLD", "NEW"),
        help="two subjects of RESULT, measured together: narrower intervals, on any machine",
    )
    rules = made.add_argument_group("rules")
    rules.add_argument("--threshold", type=share, default=0.05, metavar="SHARE", help="5%% by default")
    rules.add_argument("--confirm", type=Path, metavar="FILE", help="the result of a second, fresh job")
    rules.add_argument(
        "--subject", action="append", metavar="NAME", help="judge only this subject (may be repeated)"
    )
    rules.add_argument(
        "--metric",
        action="append",
        metavar="NAME",
        help="per_s, p50_us, p99_us, cpu_us ...; by default the main metric of each experiment",
    )
    rules.add_argument("--allow-undecided", action="store_true", help="pass when the intervals are too wide")
    rules.add_argument("--any-machine", action="store_true", help="the baseline may be of another machine")
    output = made.add_argument_group("output")
    output.add_argument("--junit", type=Path, metavar="FILE", help="a test report")
    output.add_argument(
        "--summary", type=Path, metavar="FILE", help="Markdown is appended; $GITHUB_STEP_SUMMARY if set"
    )
    return made


def text(gate: Gate, status: int) -> str:
    """One line per figure, the worst first."""
    ordered = sorted(gate.checked, key=lambda one: list(MARKS).index(one.outcome))
    lines = [f"{one.outcome.value:<13}  {describe(one)}" for one in ordered]
    lines += [f"problem        {one}" for one in gate.problems]
    return "\n".join([*lines, f"threshold {gate.threshold * 100:.3g} %. {ENDINGS[status]}", ""])


def describe(one: Checked) -> str:
    """The figure as one line of text."""
    summary = _figure(one.change) if one.change.reason is None else one.change.reason
    if one.confirming:
        summary += f"; confirming job {_figure(one.confirming)}"
    return " ".join(f"{_where(one.change)}: {summary}".split())


def markdown(gate: Gate, status: int) -> str:
    """Markdown for the summary of a job."""
    lines = [f"### Towline bench gate: {ENDINGS[status]}", "", f"Threshold {gate.threshold * 100:.3g} %.", ""]
    lines += ["| | experiment | subject | of | ratio | interval |", "|---|---|---|---|--:|---|"]
    for one in gate.checked:
        change = one.change
        values = (
            change.experiment,
            change.subject,
            formatting.metric_name(change.metric),
            formatting.ratio(change.ratio),
            change.reason or formatting.interval(change.low, change.high),
        )
        lines.append(
            f"| {MARKS[one.outcome]} {one.outcome.value} | {' | '.join(escape(each) for each in values)} |"
        )
    lines += ["", *(f"- {escape(one)}" for one in gate.problems)]
    return "\n".join(lines) + "\n"


def junit(gate: Gate, *, allow_undecided: bool = False) -> str:
    """One test case per figure. What the exit status fails is a failure; with --allow-undecided, undecided is skipped."""
    cases = [_case(one, allow_undecided=allow_undecided) for one in gate.checked]
    cases += [
        f'<testcase classname="gate" name={quoteattr(printable(one))}><error message={quoteattr(printable(one))}/></testcase>'
        for one in gate.problems
    ]
    failures = sum("<failure" in one for one in cases)
    head = f'<testsuite name="towline bench gate" tests="{len(cases)}" failures="{failures}" errors="{len(gate.problems)}">'
    return "\n".join(['<?xml version="1.0" encoding="UTF-8"?>', head, *cases, "</testsuite>", ""])


def _case(one: Checked, *, allow_undecided: bool) -> str:
    name = printable(f"{one.change.subject} {formatting.metric_name(one.change.metric)}")
    experiment = printable(one.change.experiment)
    inside = ""
    skipped = allow_undecided and one.outcome is Outcome.UNDECIDED
    if one.outcome not in (Outcome.PASS, Outcome.NOT_CONFIRMED) and not skipped:
        inside = f"<failure message={quoteattr(one.outcome.value)}>{xml_escape(printable(describe(one)))}</failure>"
    elif skipped:
        inside = f"<skipped message={quoteattr(printable(describe(one)))}/>"
    return f"<testcase classname={quoteattr(experiment)} name={quoteattr(name)}>{inside}</testcase>"


def _judge(given: argparse.Namespace, records: dict[Path, Record]) -> Gate:
    def changes(path: Path) -> tuple[list[Change], list[str]]:
        if given.pair:
            return within(records[path], given.pair[0], given.pair[1], given.metric)
        return across(
            records[given.baseline],
            records[path],
            any_machine=given.any_machine,
            metrics=given.metric,
            subjects=given.subject,
        )

    found, problems = changes(given.result)
    if given.confirm is None:
        return check(found, given.threshold, None, problems)
    again, more = changes(given.confirm)
    return check(found, given.threshold, again, [*problems, *(f"confirming job: {one}" for one in more)])


def _write(given: argparse.Namespace, gate: Gate, status: int) -> None:
    if given.junit:
        given.junit.write_text(junit(gate, allow_undecided=given.allow_undecided), encoding="utf-8")
    summary = given.summary or os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(markdown(gate, status))


def _where(change: Change) -> str:
    return f"{change.experiment}: {change.subject}: {formatting.metric_name(change.metric)}"


def _figure(change: Change) -> str:
    values = f"{formatting.figure(change.metric, change.before)} to {formatting.figure(change.metric, change.after)}"
    return f"{formatting.ratio(change.ratio)} {formatting.interval(change.low, change.high)} ({values})"
