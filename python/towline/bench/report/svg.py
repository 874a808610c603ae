"""Bar charts and forest plots: SVG tracks in percent of their width, sharp on any screen.

Names and figures are HTML around the tracks, so that text does not shrink with the drawing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..analysis import Comparison
from ..verdict import Verdict
from . import formatting
from .markup import Markup, el

HEIGHT = 22
VERDICT_CLASSES = {
    Verdict.FASTER: "faster",
    Verdict.SLOWER: "slower",
    Verdict.EQUIVALENT: "equivalent",
    Verdict.UNDECIDED: "undecided",
    Verdict.UNSTABLE: "undecided",
    Verdict.REFUSED: "refused",
}


@dataclass(frozen=True)
class Bar:
    """One row of a bar chart; `low` and `high` draw the interval."""

    name: str
    colour: int
    value: float
    label: str
    low: float | None = None
    high: float | None = None
    note: str = ""
    ours: bool = False


def bars(rows: Sequence[Bar]) -> Markup:
    """Horizontal bars from zero."""
    most = max((row.high if row.high and math.isfinite(row.high) else row.value for row in rows), default=0)
    top = max(most, *(row.value for row in rows)) * 1.02 or 1.0
    return el("div", [_bar(row, top) for row in rows], class_="rows bars")


def _bar(row: Bar, top: float) -> Markup:
    width = row.value / top * 100
    shapes = [
        el("rect", x=0, y=3, width=f"{max(width, 0.3):.2f}%", height=HEIGHT - 6, rx=3, class_="bar"),
    ]
    if row.low is not None and row.high is not None and math.isfinite(row.high):
        shapes += _whisker(row.low / top * 100, row.high / top * 100, HEIGHT / 2, "whisker")
    tooltip = f"{row.name}: {row.label}"
    return _row(row.name, _track(shapes, tooltip), row.label, row.note, f"c{row.colour}", row.ours)


def forest(comparisons: Sequence[Comparison], colours: dict[str, int], margin: float) -> Markup:
    """Ratios on a log axis, with the margin as a band around 1."""
    shown = [one for one in comparisons if math.isfinite(one.ratio) and one.ratio > 0]
    axis = Axis.around([bound for one in shown for bound in (one.low, one.ratio, one.high)], margin)
    rows = [_forest_row(one, axis, colours.get(one.baseline, 0), margin) for one in shown]
    return el("div", rows, _axis(axis), class_="rows forest")


def _forest_row(one: Comparison, axis: Axis, colour: int, margin: float) -> Markup:
    verdict = VERDICT_CLASSES[one.verdict]
    shapes = _band(axis, margin)
    if one.verdict is not Verdict.REFUSED:
        low, high = (axis.at(bound) for bound in (one.low, one.high))
        shapes += _whisker(low, high, HEIGHT / 2, f"reach {verdict}")
    shapes.append(
        el("circle", cx=f"{axis.at(one.ratio):.2f}%", cy=HEIGHT / 2, r=4.5, class_=f"dot {verdict}")
    )
    word = formatting.verdict_word(one.verdict, one.metric)
    label = [el("b", formatting.ratio(one.ratio).replace("x", "×")), " ", chip(one.verdict, word)]
    tooltip = formatting.sentence(one)
    bounds = formatting.interval(one.low, one.high) if one.verdict is not Verdict.REFUSED else ""
    return _row(one.baseline, _track(shapes, tooltip), label, bounds, f"c{colour}", False)


def chip(verdict: Verdict, text: str) -> Markup:
    """The verdict as a coloured label."""
    return el("span", text, class_=f"chip {VERDICT_CLASSES[verdict]}")


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis from `low` to `high` with round marks."""

    low: float
    high: float
    marks: tuple[float, ...]

    @staticmethod
    def around(values: Sequence[float], margin: float) -> Axis:
        """An axis for all values, 1, and the margin on both sides."""
        finite = [value for value in values if math.isfinite(value) and value > 0]
        finite += [1 + 1.6 * margin, 1 / (1 + 1.6 * margin)]
        low, high = min(finite), max(finite)
        room = (high / low) ** 0.06
        low, high = low / room, high * room
        return Axis(low, high, _marks(low, high))

    def at(self, value: float) -> float:
        """Percent of the width."""
        if value <= self.low or not math.isfinite(value):
            return 100.0 if value > self.low else 0.0
        return min(100.0, math.log(value / self.low) / math.log(self.high / self.low) * 100)


def _marks(low: float, high: float) -> tuple[float, ...]:
    """Three to seven round numbers, 1 always among them."""
    if high / low > 2.2:
        found = [
            one * 10.0**power
            for power in range(-6, 8)
            for one in ((1, 2, 5) if high / low < 60 else (1,))
            if low <= one * 10.0**power <= high
        ]
        return tuple(found)
    step = next(step for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if (high - low) / step <= 4)
    first = math.ceil((low - 1) / step)
    return tuple(1 + step * index for index in range(first, math.floor((high - 1) / step) + 1))


def _axis(axis: Axis) -> Markup:
    marks = [
        el(
            "span",
            f"{mark:.4g}×",
            style=f"left:{axis.at(mark):.2f}%",
            class_="one" if abs(mark - 1) < 1e-9 else None,
        )
        for mark in axis.marks
    ]
    return el(
        "div", el("div"), el("div", marks, class_="axis"), el("div"), class_="row axisrow", aria_hidden="true"
    )


def _band(axis: Axis, margin: float) -> list[Markup]:
    left, right = axis.at(1 / (1 + margin)), axis.at(1 + margin)
    one = axis.at(1.0)
    return [
        *(
            el("line", x1=f"{axis.at(mark):.2f}%", x2=f"{axis.at(mark):.2f}%", y1=0, y2=HEIGHT, class_="grid")
            for mark in axis.marks
        ),
        el("rect", x=f"{left:.2f}%", width=f"{right - left:.2f}%", y=0, height=HEIGHT, class_="band"),
        el("line", x1=f"{one:.2f}%", x2=f"{one:.2f}%", y1=0, y2=HEIGHT, class_="unity"),
    ]


def _whisker(low: float, high: float, y: float, class_: str) -> list[Markup]:
    lines = [(low, high, y, y), (low, low, y - 4, y + 4), (high, high, y - 4, y + 4)]
    return [
        el("line", x1=f"{x1:.2f}%", x2=f"{x2:.2f}%", y1=y1, y2=y2, class_=class_) for x1, x2, y1, y2 in lines
    ]


def _track(shapes: Sequence[Markup], tooltip: str) -> Markup:
    return el("svg", el("title", tooltip), *shapes, width="100%", height=HEIGHT, role="img", class_="track")


def _row(name: str, track: Markup, label: object, note: str, colour: str, ours: bool) -> Markup:
    class_ = f"row {colour}{' ours' if ours else ''}"
    return el(
        "div",
        el("div", el("i", class_="dye"), name, class_="name", title=name),
        track,
        el("div", label, el("small", note) if note else None, class_="value"),
        class_=class_,
    )
