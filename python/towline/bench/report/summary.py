"""The top of the page: the verdicts by scenario and peer."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis import Analysis, Comparison
from ..verdict import Verdict
from . import formatting
from .markup import Markup, el, join
from .svg import VERDICT_CLASSES, chip
from .view import ExperimentView, tally

LEGEND = (
    (Verdict.FASTER, "the interval lies on one side of 1, after Holm's correction, and a second test agrees"),
    (Verdict.EQUIVALENT, "the whole interval lies within the margin: no difference that matters"),
    (Verdict.UNDECIDED, "the interval is too wide; more restarts would decide"),
    (Verdict.UNSTABLE, "two tests of the same slices disagree"),
    (Verdict.REFUSED, "a guard found the figures unreliable"),
)
METHOD = (
    "Every response is verified to the last byte before it counts. All subjects of an experiment live at the same time, pinned to the "
    "same cores, and are measured in short slices in random order, over several fresh starts. A ratio is the mean of the log "
    "ratios of neighbouring slices without the lowest and the highest quarter, or that of totals where a subject stands still now "
    "and then; the interval is Student's t over restarts. Percentiles come from merged histograms and are "
    "never averaged."
)


PEERS_ON_A_PHONE = 2
"""Columns of the matrix that fit a phone; with more there is a hint."""


def headline(shown: Sequence[ExperimentView]) -> str:
    """The page's title: the most frequent result."""
    baseline = next((one.baseline for one in shown if one.baseline and not one.experiment.control), None)
    counted = tally(list(shown))
    if baseline is None or not counted:
        return "What was measured"
    most = max((Verdict.FASTER, Verdict.SLOWER, Verdict.EQUIVALENT), key=lambda one: counted[one])
    if not counted[most]:
        return f"{baseline} compared with its peers: nothing was decided"
    word = "equivalent to its peers" if most is Verdict.EQUIVALENT else f"{most.value} than its peers"
    return f"{baseline} is {word} in {counted[most]} of {sum(counted.values())} comparisons"


def summary(analysis: Analysis, shown: Sequence[ExperimentView]) -> Markup:
    """Ratios and verdicts by scenario and peer, the controls, and the method."""
    compared = [
        (index, one) for index, one in enumerate(shown) if one.baseline and not one.experiment.control
    ]
    parts: list[object] = [el("h2", "Verdicts")]
    if compared:
        owner = f"Each ratio is {compared[0][1].baseline}'s figure to the peer's, paired slice by slice. "
        parts.append(el("p", owner, "For requests/s above 1 is better, for times below 1.", class_="lead"))
    for kind in dict.fromkeys(one.kind for _, one in compared):
        parts.append(_matrix([(index, one) for index, one in compared if one.kind == kind]))
    parts += [_controls(shown), _legend(analysis)]
    if analysis.record.skipped:
        items = [el("li", el("b", name), f": {why}") for name, why in analysis.record.skipped.items()]
        parts.append(el("details", el("summary", f"Not measured here: {len(items)}"), el("ul", items)))
    return el("section", parts, class_="card", id="verdicts")


def _matrix(shown: Sequence[tuple[int, ExperimentView]]) -> Markup:
    peers = list(dict.fromkeys(peer for _, one in shown for peer in one.peers))
    head = el("tr", el("th", "scenario"), [el("th", peer, title=peer, scope="col") for peer in peers])
    rows = []
    for index, one in shown:
        for metric in one.headline:
            name = [one.experiment.name, el("small", formatting.metric_name(metric))]
            link = el("th", el("a", name, href=f"#experiment-{index}"), scope="row")
            rows.append(el("tr", link, [el("td", _pill(one, peer, metric)) for peer in peers]))
    table = el("table", el("thead", head), el("tbody", rows), class_="matrix")
    hint = el("p", f"{len(peers)} peers: swipe sideways for the others.", class_="hint")
    return join(
        [hint if len(peers) > PEERS_ON_A_PHONE else None, el("div", table, class_="scroll", tabindex=0)]
    )


def _pill(shown: ExperimentView, peer: str, metric: str) -> Markup:
    found = shown.analysis.comparison(shown.baseline or "", peer, metric)
    if found is None:
        record = next((one.record for one in shown.subjects if one.name == peer), None)
        failed = record.failure if record is not None else None
        return el("span", "failed" if failed else "·", class_="none", title=failed)
    ratio = "–" if found.verdict is Verdict.REFUSED else formatting.ratio(found.ratio).replace("x", "×")
    word = el("small", formatting.verdict_word(found.verdict, metric))
    class_ = f"pill {VERDICT_CLASSES[found.verdict]}"
    return el("span", el("b", ratio), word, class_=class_, title=formatting.sentence(found))


def _controls(shown: Sequence[ExperimentView]) -> list[Markup]:
    return [
        el("p", el("b", "Control. "), _control(found), class_=f"control {VERDICT_CLASSES[found.verdict]}")
        for one in shown
        if one.experiment.control
        for peer in one.peers
        if (found := one.against(peer))
    ]


def _control(found: Comparison) -> Markup:
    figure = f"{formatting.ratio(found.ratio).replace('x', '×')} {formatting.interval(found.low, found.high)}"
    if found.verdict in (Verdict.FASTER, Verdict.SLOWER):
        end = (
            "They are one program: a difference of this size is this machine's noise or chance; believe no "
            "verdict here that is not well beyond it."
        )
    elif found.verdict is Verdict.REFUSED:
        end = found.reason or ""
    else:
        end = "They are one program, and no difference was claimed, as it should be."
    word = chip(found.verdict, found.verdict.value)
    return join(["The same subject measured twice had the verdict ", word, f" at {figure}. {end}"])


def _legend(analysis: Analysis) -> Markup:
    rows: list[tuple[object, str]] = [(chip(verdict, verdict.value), meaning) for verdict, meaning in LEGEND]
    level = formatting.confidence(analysis.alpha)
    rows.append(
        (
            "intervals",
            f"of ratios: {level} for all of an experiment together (Holm); of single figures, 95 % each",
        )
    )
    rows.append(("margin", f"differences within {analysis.margin * 100:.3g} % count as none"))
    entries = [el("div", el("dt", term), el("dd", meaning)) for term, meaning in rows]
    return el(
        "details",
        el("summary", "Method"),
        el("dl", entries, class_="legend"),
        el("p", METHOD),
    )
