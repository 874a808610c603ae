"""Charts as files, one for each experiment: SVG, and PNG where resvg-py is installed (`towline[bench]`)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from html import escape

from ...errors import UsageError
from ..analysis import Analysis, Estimate
from . import formatting
from .html import colours_of
from .markup import printable
from .view import ExperimentView, SubjectView, views

WIDTH, MARGIN = 800, 24
ROW, BAR, HEAD, FOOT = 34, 18, 74, 34
NAME, VALUE = 190, 150
"""Widths beside the bars."""
PNG_SCALE = 2.0
COLOURS = (
    *("#2563eb", "#d97706", "#0d9488", "#c026d3", "#65a30d"),
    *("#dc2626", "#7c3aed", "#0891b2", "#a16207", "#64748b"),
)
"""Colours of the subjects, as on the page."""
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', Arial, sans-serif"


def svg_files(analysis: Analysis) -> dict[str, str]:
    """The charts by file name. Controls, and experiments without figures, have none."""
    shown = [one for one in views(analysis) if not one.experiment.control]
    colours = colours_of(shown)
    found: dict[str, str] = {}
    for one in shown:
        chart = svg(one, colours)
        if chart is not None:
            found[f"{_file_name(one.experiment.name, found)}.svg"] = chart
    return found


def png_files(analysis: Analysis) -> dict[str, bytes]:
    """The charts as PNG, of twice the size in pixels. Raises UsageError without resvg-py."""
    try:
        from resvg_py import svg_to_bytes
    except ImportError:
        raise UsageError("PNG files need resvg-py: pip install 'towline[bench]'; SVG files do not") from None
    return {
        name.removesuffix("svg") + "png": bytes(svg_to_bytes(svg_string=chart, zoom=PNG_SCALE))
        for name, chart in svg_files(analysis).items()
    }


def svg(shown: ExperimentView, colours: Mapping[str, int]) -> str | None:
    """Horizontal bars from zero with 95 % intervals: requests/s, or the median response time at a fixed rate."""
    metric = shown.experiment.main_metric
    rows = [(one, figure) for one in shown.subjects if (figure := one.figures.get(metric))]
    if not rows:
        return None
    height = HEAD + ROW * len(rows) + FOOT
    top = (
        max(max(figure.value, figure.high if math.isfinite(figure.high) else 0.0) for _, figure in rows)
        or 1.0
    )
    what = formatting.metric_name(metric)
    better = "more is better" if metric == "per_s" else "less is better"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="{FONT}" font-size="14" role="img">',
        f"<title>{_text(shown.experiment.name)}: {_text(what)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _label(MARGIN, 30, f"{shown.experiment.name}: {shown.experiment.title}", size=17, weight=700),
        _label(
            MARGIN,
            52,
            f"{what} ({better}) · {formatting.load(shown.experiment.load)}",
            size=13,
            fill="#5a6472",
        ),
    ]
    for index, (one, figure) in enumerate(rows):
        parts += _row(
            one, figure, metric, HEAD + ROW * index, top, COLOURS[colours.get(one.name, 0)], shown.baseline
        )
    parts.append(
        _label(MARGIN, height - 12, "towline bench; whiskers are 95 % intervals", size=11, fill="#667080")
    )
    return "\n".join([*parts, "</svg>", ""])


def _row(
    one: SubjectView, figure: Estimate, metric: str, y: float, top: float, colour: str, baseline: str | None
) -> list[str]:
    left = MARGIN + NAME
    scale = (WIDTH - MARGIN - VALUE - left) / (top * 1.02)
    middle = y + ROW / 2
    shown = (
        formatting.rate(figure).replace("at least", "≥")
        if metric == "per_s"
        else formatting.microseconds(figure.value)
    )
    parts = [
        _label(MARGIN, middle + 5, one.name, weight=700 if one.name == baseline else 400, most=NAME - 8),
        f'<rect x="{left}" y="{middle - BAR / 2:g}" width="{max(1.0, figure.value * scale):.1f}" height="{BAR}" rx="3" '
        f'fill="{colour}" fill-opacity="{1 if one.name == baseline else 0.7}"/>',
    ]
    if math.isfinite(figure.low) and math.isfinite(figure.high):
        low, high = left + max(0.0, figure.low) * scale, left + figure.high * scale
        parts.append(
            f'<path d="M{low:.1f} {middle - 4:g}v8M{high:.1f} {middle - 4:g}v8M{low:.1f} {middle:g}H{high:.1f}" '
            f'stroke="#14181f" stroke-width="1.4" fill="none"/>'
        )
    value = " ".join(filter(None, (shown, formatting.spread(figure))))
    parts.append(_label(WIDTH - MARGIN, middle + 5, value, anchor="end", size=13))
    return parts


def _label(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 14,
    weight: int = 400,
    fill: str = "#14181f",
    anchor: str = "start",
    most: float | None = None,
) -> str:
    # A name that is too long is condensed, not cut.
    fits = most is None or len(text) * size * 0.56 <= most
    length = "" if fits else f' textLength="{most:g}" lengthAdjust="spacingAndGlyphs"'
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" font-weight="{weight}" fill="{fill}" '
        f'text-anchor="{anchor}"{length}>{_text(text)}</text>'
    )


def _text(text: str) -> str:
    return escape(printable(text), quote=True)


def _file_name(name: str, taken: Mapping[str, str]) -> str:
    """The experiment's name, without what a file system may refuse; unique in the folder."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._") or "experiment"
    unique, number = plain, 2
    while f"{unique}.svg" in taken:
        unique, number = f"{plain}_{number}", number + 1
    return unique
