"""Markdown for a pull request: a table of verdicts, followed by the folded figures."""

from __future__ import annotations

import re

from ..analysis import Analysis, Comparison
from ..verdict import Verdict
from . import call_figures, formatting
from .terminal import figures, remarks
from .view import ExperimentView, SubjectView, tally, views

MARKS = {
    Verdict.FASTER: "🟢",
    Verdict.SLOWER: "🔴",
    Verdict.EQUIVALENT: "⚪",
    Verdict.UNDECIDED: "🟡",
    Verdict.UNSTABLE: "🟡",
    Verdict.REFUSED: "🚫",
}


MAX_CHARACTERS = 60_000
"""GitHub refuses comments of more than 65,536 characters."""


def markdown(analysis: Analysis) -> str:
    """GitHub's dialect, short enough for a comment: all verdicts, and experiments as far as there is room."""
    shown = views(analysis)
    head = ["### Towline bench", "", _summary(shown), ""]
    for kind in dict.fromkeys(one.kind for one in shown if _compared(one)):
        head += [*_matrix([one for one in shown if _compared(one) and one.kind == kind]), ""]
    foot = []
    if analysis.record.skipped:
        skipped = ", ".join(
            f"{escape(name)} ({escape(why)})" for name, why in analysis.record.skipped.items()
        )
        foot += [f"Skipped: {skipped}", ""]
    foot += _about(analysis)
    room = MAX_CHARACTERS - sum(len(line) + 1 for line in (*head, *foot))
    experiments: list[str] = []
    left_out: list[str] = []
    for experiment in shown:
        lines = _experiment(experiment)
        needed = sum(len(line) + 1 for line in lines)
        if needed > room or left_out:
            left_out.append(experiment.experiment.name)
            continue
        room -= needed
        experiments += lines
    if left_out:
        experiments += [
            f"The figures of {len(left_out)} more experiments are in the page (report.html), for lack of space.",
            "",
        ]
    return "\n".join([*head, *experiments, *foot]) + "\n"


def _about(analysis: Analysis) -> list[str]:
    record = analysis.record
    machine = [str(record.machine[key]) for key in ("cpu", "kernel") if record.machine.get(key)]
    lines = [
        f"<sub>{formatting.moment(record.began_unix_s)}, "
        f"{formatting.duration(record.ended_unix_s - record.began_unix_s)}, "
        f"seed {record.seed}, {escape(record.tool)}{''.join(f', {escape(one)}' for one in machine)}. Intervals are "
        f"{formatting.confidence(analysis.alpha)}, over restarts.</sub>"
    ]
    if record.interrupted:
        lines += ["", "**Interrupted:** only what was measured until then is included."]
    return lines


def _compared(one: ExperimentView) -> bool:
    return bool(one.headline) and not one.experiment.control


def _matrix(shown: list[ExperimentView]) -> list[str]:
    """One row per experiment, one column per peer: the ratio and the verdict's mark."""
    peers = list(dict.fromkeys(peer for one in shown for peer in one.peers))
    lines = [
        f"| {escape(shown[0].baseline or '')} compared with | {' | '.join(escape(peer) for peer in peers)} |"
    ]
    lines.append(f"|---|{'---|' * len(peers)}")
    for one in shown:
        for metric in one.headline:
            name = escape(one.experiment.name) + (
                f", {escape(formatting.metric_name(metric))}" if metric != "per_s" else ""
            )
            found = {each.baseline: each for each in one.comparisons(metric)}
            lines.append(f"| {name} | {' | '.join(_mark(found.get(peer)) for peer in peers)} |")
    return lines


def _mark(one: Comparison | None) -> str:
    if one is None:
        return ""
    return MARKS[one.verdict] + ("" if one.verdict is Verdict.REFUSED else f" {formatting.ratio(one.ratio)}")


def escape(text: str) -> str:
    """Escapes markup, HTML and mentions, so that names cannot end a table cell."""
    safe = re.sub(r"([\\`*_{}\[\]#|~$!])", r"\\\1", " ".join(text.split()))
    safe = safe.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"@(?=\w)", "@\u2060", safe)


def _summary(shown: list[ExperimentView]) -> str:
    counted = tally(shown)
    if not counted:
        return "No comparison was made."
    return " · ".join(f"{MARKS[one]} {counted[one]} {one.value}" for one in Verdict if counted[one])


def _experiment(experiment: ExperimentView) -> list[str]:
    """Folded, except for its name and its counts."""
    one = experiment.experiment
    counted = tally([experiment], controls=True)
    counts = ", ".join(f"{MARKS[each]} {counted[each]} {each.value}" for each in Verdict if counted[each])
    # After a tag the line is HTML: a backslash would be visible.
    title = re.sub(r"[^\w .,/:()-]", lambda found: f"&#{ord(found[0])};", " ".join(one.name.split()))
    title += " (A/A control)" if one.control else ""
    lines = [f"<details><summary><b>{title}</b>{f': {counts}' if counts else ''}</summary>", ""]
    lines += [escape(formatting.load(one.load)), ""]
    found = [each for metric in experiment.headline for each in experiment.comparisons(metric)]
    if found:
        lines += [
            f"| {escape(experiment.baseline or '')} compared with | verdict | ratio | interval |",
            "|---|---|--:|---|",
        ]
        lines += [_verdict(each) for each in found]
        lines.append("")
    if call_figures.is_about_calls(experiment):
        lines += [line for table in call_figures.tables(experiment) for line in [*_calls(table), ""]]
    else:
        lines += [
            "| subject | requests/s | | p50 | p99 | CPU/request | memory |",
            "|---|--:|--:|--:|--:|--:|--:|",
        ]
        lines += [*map(_figures, experiment.subjects), ""]
    lines += [f"- ⚠️ {escape(line)}" for line in remarks(experiment)]
    lines += [f"- {escape(line)}" for line in one.notes]
    return [*lines, "", "</details>", ""]


def _calls(table: list[list[str]]) -> list[str]:
    head, *rows = table
    wide = [[*row, *[""] * (len(head) - len(row))] for row in rows]
    rule = f"|---|{'--:|' * (len(head) - 1)}"
    return [f"| {' | '.join(head)} |", rule, *(f"| {' | '.join(map(escape, row))} |" for row in wide)]


def _verdict(one: Comparison) -> str:
    name = escape(one.baseline)
    if one.metric != "per_s":
        name += f", {escape(formatting.metric_name(one.metric))}"
    word = f"{MARKS[one.verdict]} {formatting.verdict_word(one.verdict, one.metric)}"
    if one.verdict is Verdict.REFUSED:
        return f"| {name} | {word} | | {escape(one.reason or '')} |"
    bounds = formatting.interval(one.low, one.high).replace("[", "\\[").replace("]", "\\]")
    return f"| {name} | {word} | {formatting.ratio(one.ratio)} | {bounds} |"


def _figures(one: SubjectView) -> str:
    if one.record.failure:
        return f"| {escape(one.name)} | failed: {escape(one.record.failure)} | | | | | |"
    return f"| {escape(one.name)} | {' | '.join(figures(one))} |"
