"""The output files and their writers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .. import record as records
from ..analysis import Analysis, analyse
from ..verdict import MARGIN
from .chart_files import png_files, svg_files
from .csv import slices_csv, subjects_csv
from .history import History, HistoryError, charts
from .html import html
from .markdown import markdown
from .verdicts_json import verdicts_json

FORMATS = ("html", "markdown", "csv", "json", "svg", "png")
USUAL = FORMATS[:4]
"""The files that a run writes. Charts as files are made on request."""
Maker = Callable[[Analysis, "History | None"], Mapping[str, "str | bytes"]]
"""Contents by file name."""
MAKERS: dict[str, Maker] = {
    "html": lambda analysis, history: {"report.html": html(analysis, _charts(analysis, history))},
    "markdown": lambda analysis, _: {"report.md": markdown(analysis)},
    "csv": lambda analysis, _: {
        "subjects.csv": subjects_csv(analysis),
        "slices.csv": slices_csv(analysis.record),
    },
    "json": lambda analysis, _: {"verdicts.json": verdicts_json(analysis)},
    "svg": lambda analysis, _: svg_files(analysis),
    "png": lambda analysis, _: png_files(analysis),
}


def render_all(
    record_path: Path,
    out_dir: Path,
    *,
    formats: Sequence[str] = USUAL,
    baseline: str | None = None,
    margin: float = MARGIN,
    history: History | None = None,
) -> list[Path]:
    """Writes report.html, report.md, subjects.csv, slices.csv and verdicts.json into `out_dir`; returns their paths.

    `formats`: those of FORMATS. svg and png write a chart for each experiment.

    `history`: earlier runs for the page's charts. Raises `record.NotARecord`, or OSError.
    """
    return render(analyse(records.load(record_path), baseline, margin), out_dir, formats, history)


def render(
    analysis: Analysis, out_dir: Path, formats: Sequence[str] = USUAL, history: History | None = None
) -> list[Path]:
    """Write the files of an analysis."""
    out_dir.mkdir(parents=True, exist_ok=True)
    written = []
    for chosen in formats:
        for name, content in MAKERS[chosen](analysis, history).items():
            path = out_dir / name
            records.write(path, content if isinstance(content, bytes) else content.encode())
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
