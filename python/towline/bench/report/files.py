"""The output files and their writers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from .. import record as records
from ..analysis import Analysis, analyse
from ..verdict import MARGIN
from .csv import slices_csv, subjects_csv
from .history import History, HistoryError, charts
from .html import html
from .markdown import markdown

FORMATS = ("html", "markdown", "csv")
Maker = Callable[[Analysis, "History | None"], str]
FILES: dict[str, dict[str, Maker]] = {
    "html": {"report.html": lambda analysis, history: html(analysis, _charts(analysis, history))},
    "markdown": {"report.md": lambda analysis, _: markdown(analysis)},
    "csv": {
        "subjects.csv": lambda analysis, _: subjects_csv(analysis),
        "slices.csv": lambda analysis, _: slices_csv(analysis.record),
    },
}


def render_all(
    record_path: Path,
    out_dir: Path,
    *,
    formats: Sequence[str] = FORMATS,
    baseline: str = "towline",
    margin: float = MARGIN,
    history: History | None = None,
) -> list[Path]:
    """Writes report.html, report.md, subjects.csv and slices.csv into `out_dir`; returns their paths.

    `history`: earlier runs for the page's charts. Raises `record.NotARecord`, or OSError.
    """
    return render(analyse(records.load(record_path), baseline, margin), out_dir, formats, history)


def render(
    analysis: Analysis, out_dir: Path, formats: Sequence[str] = FORMATS, history: History | None = None
) -> list[Path]:
    """The same from an analysis."""
    out_dir.mkdir(parents=True, exist_ok=True)
    written = []
    for chosen in formats:
        for name, make in FILES[chosen].items():
            path = out_dir / name
            part = path.with_name(name + ".part")
            part.write_text(make(analysis, history), encoding="utf-8")
            part.replace(path)
            written.append(path)
    return written


def _charts(analysis: Analysis, history: History | None) -> dict[str, dict[str, object]]:
    """The page is also made when the history cannot be read."""
    if history is None or not history.path.exists():
        return {}
    try:
        return charts(history, analysis)
    except HistoryError:
        return {}
