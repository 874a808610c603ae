"""The part of the page that shows one experiment."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence

from ..analysis import Comparison, Estimate
from ..record import SubjectRecord
from ..scenarios import catalogue
from . import charts, formatting
from .markup import Markup, el, join
from .svg import Bar, bars, forest
from .terminal import remarks
from .verdict_counts import tiles
from .view import ExperimentView, SubjectView

Charts = dict[str, dict[str, object]]
"""By the id of the element that a script fills."""

SHARES = ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"), (0.999, "p99.9"), (0.9999, "p99.99"), (1.0, "worst"))
KNOWN = frozenset(formatting.METRICS)
OPEN_REMARKS = 3


def experiment_section(
    shown: ExperimentView,
    index: int,
    colours: Mapping[str, int],
    margin: float,
    into: Charts,
    history: Mapping[str, object],
    *,
    folded: bool = False,
) -> Markup:
    """The section; data of its charts is added to `into`. `folded`: only its title and verdicts until it is opened."""
    experiment = shown.experiment
    palette = dict(colours)
    blocks = [
        _rates(shown, palette),
        _ratios(shown, palette, margin),
        _latency(shown, index, palette, into),
        _cost(shown, palette),
        _slices(shown, index, palette, into),
        _history(index, history, palette, into),
    ]
    title = [
        el("span", experiment.section, class_="badge", title="section of docs/scenarios.md"),
        experiment.name,
    ]
    kind = "at full load" if experiment.question == "capacity" else "at a given rate"
    inside = [
        el(
            "p",
            el("b", experiment.title),
            " · ",
            kind,
            " · ",
            formatting.load(experiment.load),
            class_="lead",
        ),
        _failures(shown),
        el("div", [block for block in blocks if block], class_="grid"),
        _remarks(shown),
        _table(shown),
        _published(shown),
        _commands(experiment.subjects),
    ]
    if folded:
        content = el(
            "details", el("summary", el("h2", title), tiles([shown], controls=True)), inside, class_="fold"
        )
    else:
        content = join([el("h2", title), inside])
    return el("section", content, class_="card experiment", id=f"experiment-{index}")


def lead_chart(shown: Sequence[ExperimentView], colours: Mapping[str, int]) -> Markup | None:
    """The main chart of the first experiment, for the first screen of a page with several."""
    if len(shown) < 2:
        return None
    first = shown[0]
    chart = _rates(first, colours)
    if chart is None:
        return None
    title = el("h2", el("a", first.experiment.name, href="#experiment-0"))
    lead = el("p", first.experiment.title, " · ", formatting.load(first.experiment.load), class_="lead")
    return el("section", title, lead, chart, class_="card first")


def _block(title: str, caption: str, *content: object, wide: bool = False) -> Markup:
    return el("figure", el("h3", title), el("figcaption", caption), content, class_="wide" if wide else None)


def _rates(shown: ExperimentView, colours: Mapping[str, int]) -> Markup | None:
    if shown.experiment.question == "latency":
        return _times(shown, colours)
    rows = [
        _bar(
            one,
            colours,
            figure,
            formatting.rate(figure).replace("at least", "≥"),
            formatting.spread(figure),
            shown,
        )
        for one in shown.subjects
        if (figure := one.figures.get("per_s"))
    ]
    if not rows:
        return None
    caption = "Verified responses per second; the whisker is the 95 % interval over restarts."
    floor = shown.experiment.floor_s
    if floor:
        caption += f" The load takes at least {formatting.figure('floor_s', floor)}."
    return _block("Requests a second", caption, bars(rows))


def _times(shown: ExperimentView, colours: Mapping[str, int]) -> Markup | None:
    found = []
    for share, name in ((0.5, "p50"), (0.99, "p99")):
        rows = [
            Bar(one.name, colours[one.name], value, _micro(value), ours=one.name == shown.baseline)
            for one in shown.subjects
            if (value := one.percentile_us(share))
        ]
        if rows:
            found += [el("h4", name), bars(rows)]
    return (
        _block("Response time", "From the intended start to the last byte, at the same rate for all.", found)
        if found
        else None
    )


def _bar(
    one: SubjectView,
    colours: Mapping[str, int],
    figure: Estimate,
    label: str,
    note: str,
    shown: ExperimentView,
) -> Bar:
    return Bar(
        one.name,
        colours[one.name],
        figure.value,
        label,
        figure.low,
        figure.high,
        note,
        one.name == shown.baseline,
    )


def _ratios(shown: ExperimentView, colours: dict[str, int], margin: float) -> Markup | None:
    parts: list[object] = []
    for metric in (*shown.headline, "cpu_us"):
        found = shown.comparisons(metric)
        if found:
            title = f"{formatting.metric_name(metric)} ({formatting.better_end(metric)})"
            parts += [el("h4", title), forest(found, colours, margin)]
    caption = f"{shown.baseline}'s figure to each peer's, paired slice by slice. The band is the margin of {margin * 100:.3g} %."
    return _block("Ratios and verdicts", caption, parts) if parts else None


def _latency(shown: ExperimentView, index: int, colours: dict[str, int], into: Charts) -> Markup | None:
    curves = charts.latency(shown, colours)
    if not curves:
        return None
    into[f"latency-{index}"] = {"kind": "latency", "series": curves}
    caption = "All slices merged; a curve ends where fewer than ten samples lie beyond."
    if shown.experiment.question == "capacity":
        caption = (
            "Under full load, so mostly a queue's length: compare tails at a fixed rate instead. " + caption
        )
    most = max(one.histogram.total for one in shown.subjects if one.histogram)
    shares = [each for each in SHARES if each[0] == 1 or most * (1 - each[0]) >= charts.SAMPLES_BEYOND]
    percentiles = [
        el(
            "tr",
            el("th", el("i", class_="dye"), one.name, scope="row", class_=f"c{colours[one.name]}"),
            [el("td", _at(one, share)) for share, _ in shares],
        )
        for one in shown.subjects
        if one.histogram
    ]
    head = el("tr", el("th", "", scope="col"), [el("th", name, scope="col") for _, name in shares])
    table = el("div", el("table", el("thead", head), el("tbody", percentiles)), class_="scroll", tabindex=0)
    return _block("Latency by percentile", caption, _canvas(f"latency-{index}"), table)


def _at(one: SubjectView, share: float) -> str:
    """Empty where fewer than ten samples lie beyond."""
    total = one.histogram.total if one.histogram else 0
    if share < 1 and total * (1 - share) < charts.SAMPLES_BEYOND:
        return "-"
    return _micro(one.percentile_us(share))


def _cost(shown: ExperimentView, colours: Mapping[str, int]) -> Markup | None:
    cpu = [
        _bar(one, colours, figure, _micro(figure.value), formatting.spread(figure), shown)
        for one in shown.subjects
        if (figure := one.figures.get("cpu_us"))
    ]
    memory = [
        Bar(
            one.name,
            colours[one.name],
            one.rss_peak_bytes,
            formatting.size(one.rss_peak_bytes),
            note=_at_the_end(one),
            ours=one.name == shown.baseline,
        )
        for one in shown.subjects
        if one.rss_peak_bytes
    ]
    parts: list[object] = []
    if cpu:
        parts += [el("h4", "CPU time per request"), bars(cpu)]
    if memory:
        parts += [el("h4", "Memory, peak"), bars(memory)]
    return (
        _block("What it cost", "All processes of the subject together; median over starts for memory.", parts)
        if parts
        else None
    )


def _at_the_end(one: SubjectView) -> str:
    """Shown if it differs from the peak by more than a twentieth."""
    end, peak = one.rss_end_bytes, one.rss_peak_bytes
    return f"{formatting.size(end)} at the end" if end and peak and end < 0.95 * peak else ""


def _slices(shown: ExperimentView, index: int, colours: dict[str, int], into: Charts) -> Markup | None:
    curves = charts.slices(shown, colours)
    if not curves:
        return None
    into[f"slices-{index}"] = {"kind": "slices", "series": curves, "starts": charts.starts(shown)}
    caption = (
        "Each slice as a share of its subject's own mean. Colours that move together are the machine's drift, which the "
        "pairing takes out; a colour that moves alone is that subject. Dashed lines are restarts."
    )
    return _block("Slices over time", caption, _canvas(f"slices-{index}"), wide=True)


def _history(
    index: int, history: Mapping[str, object], colours: dict[str, int], into: Charts
) -> Markup | None:
    series = history.get("series")
    if not isinstance(series, Sequence) or not series:
        return None
    known = [{**one, "colour": colours[one["name"]]} for one in series if one["name"] in colours]
    into[f"history-{index}"] = {**history, "kind": "history", "series": known}
    caption = "Earlier runs on machines like this one, with their intervals. Runs are not paired: read trends, not small steps."
    return _block("History", caption, _canvas(f"history-{index}"), wide=True)


def _canvas(name: str) -> Markup:
    return el("div", el("noscript", "This chart needs JavaScript."), class_="chart", id=name)


def _remarks(shown: ExperimentView) -> Markup | None:
    """Remarks that weaken the figures, open while they are few."""
    lines = [*remarks(shown), *shown.experiment.notes]
    if not lines:
        return None
    items = el("ul", [el("li", line) for line in lines], class_="remarks")
    return el(
        "details",
        el("summary", f"Reservations and notes: {len(lines)}"),
        items,
        open=len(lines) <= OPEN_REMARKS,
    )


def _failures(shown: ExperimentView) -> list[Markup]:
    found = []
    for one in shown.subjects:
        if one.record.failure:
            log = (
                el("details", el("summary", "the end of its output"), el("pre", one.record.log))
                if one.record.log
                else None
            )
            found.append(
                el("div", el("b", one.name), f" has no figures: {one.record.failure}", log, class_="alert")
            )
    return found


def _table(shown: ExperimentView) -> Markup:
    head = [
        "subject",
        "requests/s",
        "95 % interval",
        "answered",
        "failed",
        "refused",
        "CPU/request",
        "switches/request",
        "memory peak",
        "at the end",
    ]
    extra = sorted({name for one in shown.subjects for name in one.figures} - KNOWN)
    rows = [
        [
            one.name,
            formatting.rate(rate),
            _bounds(rate),
            f"{one.answered:,}",
            _failed(one),
            f"{one.refused:,}",
            _micro(cpu.value if (cpu := one.figures.get("cpu_us")) else None),
            formatting.number(one.switches_per_request or 0),
            formatting.size(one.rss_peak_bytes),
            formatting.size(one.rss_end_bytes),
            *(
                formatting.figure(name, one.figures[name].value) if name in one.figures else "-"
                for name in extra
            ),
        ]
        for one in shown.subjects
        for rate in [one.figures.get("per_s")]
    ]
    return _fold(
        "All figures", _grid([*head, *(formatting.metric_name(name) for name in extra)], rows), _tests(shown)
    )


def _failed(one: SubjectView) -> str:
    if not one.failed:
        return "0"
    classes = ", ".join(f"{name} {count}" for name, count in sorted(one.errors.items()))
    return f"{one.failed:,} ({classes})" if classes else f"{one.failed:,}"


def _bounds(figure: Estimate | None) -> str:
    if figure is None or not math.isfinite(figure.high):
        return "-"
    return f"{formatting.number(figure.low)} to {formatting.number(figure.high)}"


def _tests(shown: ExperimentView) -> Markup | None:
    found: Sequence[Comparison] = shown.analysis.comparisons
    if not found:
        return None
    head = [
        "compared with",
        "of",
        "ratio",
        "interval",
        "p (Holm)",
        "verdict",
        "restarts",
        "would decide",
    ]
    rows = [
        [
            one.baseline,
            formatting.metric_name(one.metric),
            formatting.ratio(one.ratio),
            formatting.interval(one.low, one.high),
            "< 0.0001" if one.p < 1e-4 else f"{one.p:.4f}",
            formatting.verdict_word(one.verdict, one.metric),
            str(one.restarts),
            str(one.restarts_needed or "-"),
        ]
        for one in found
    ]
    return _grid(head, rows)


def _published(shown: ExperimentView) -> Markup | None:
    scenario = catalogue().get(shown.experiment.scenario)
    if scenario is None or not scenario.published:
        return None
    rows = [
        [
            name,
            f"{value:,.4g}" if value < 1000 else f"{value:,.0f}",
            one.unit,
            one.protocol,
            one.machine or "-",
        ]
        for one in scenario.published
        for name, value in one.figures
    ]
    caption = el(
        "p",
        f"Published by others ({scenario.source}), on their machines and by their method: context, not a result of this run.",
    )
    return _fold(
        "Published figures", caption, _grid(["subject", "figure", "unit", "protocol", "machine"], rows)
    )


def _commands(subjects: Sequence[SubjectRecord]) -> Markup:
    parts: list[Markup | None] = []
    for one in subjects:
        versions = ", ".join(f"{name} {version}" for name, version in one.versions.items())
        options = ", ".join(f"{name}={value}" for name, value in one.options.items())
        parts.append(el("h4", one.name))
        parts.append(el("pre", shlex.join(one.command)) if one.command else None)
        parts.append(el("p", versions, f". Not its defaults: {options}" if options else "", class_="lead"))
    return _fold("Command lines and versions", parts)


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    body = [el("tr", el("th", row[0], scope="row"), [el("td", value) for value in row[1:]]) for row in rows]
    table = el(
        "table", el("thead", el("tr", [el("th", name, scope="col") for name in head])), el("tbody", body)
    )
    return el("div", table, class_="scroll", tabindex=0)


def _fold(title: str, *content: object) -> Markup:
    return el("details", el("summary", title), content)


def _micro(value: float | None) -> str:
    return formatting.microseconds(value).replace(" us", " µs")
