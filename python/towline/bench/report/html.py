"""A self-contained HTML page without requests to anywhere, also for phones and dark mode.

A content security policy allows only the two scripts in the page, by their hashes; anything that came into it through
a name remains text.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

from ..analysis import Analysis
from ..record import Record
from . import formatting
from .experiment_section import Charts, experiment_section, lead_chart
from .markup import Markup, data, el
from .summary import headline, summary
from .verdict_counts import tiles
from .view import ExperimentView, views

COLOURS = 10
"""Number of subject colours in the stylesheet."""
OPEN_EXPERIMENTS = 4
"""A page with more experiments shows all but the first one folded: the matrix of verdicts links to them."""


def html(analysis: Analysis, history: Charts | None = None) -> str:
    """The page. `history`: curves by experiment, from `history.charts`."""
    shown = views(analysis)
    colours = colours_of(shown)
    charts: Charts = {}
    folded = len(shown) > OPEN_EXPERIMENTS
    sections = [
        experiment_section(
            one,
            index,
            colours,
            analysis.margin,
            charts,
            (history or {}).get(one.experiment.name, {}),
            folded=folded and index > 0,
        )
        for index, one in enumerate(shown)
    ]
    body = [
        _header(analysis, shown),
        el("main", lead_chart(shown, colours), summary(analysis, shown), sections, _about(analysis.record)),
        el(
            "footer",
            "Made by ",
            el("b", "towline bench"),
            " from the record alone; it can be made again from the file.",
        ),
        el("script", data(charts), type="application/json", id="charts"),
        *(el("script", Markup(text)) for text in _scripts()),
    ]
    page = el("html", _head(analysis.record), el("body", body), lang="en")
    return f"<!doctype html>\n{page}\n"


def colours_of(shown: Sequence[ExperimentView]) -> dict[str, int]:
    """Colours of the subjects, the same all over the page; the baseline has the first."""
    first = [one.baseline for one in shown if one.baseline and not one.experiment.control]
    names = [*first, *(subject.name for one in shown for subject in one.subjects)]
    return {name: index % COLOURS for index, name in enumerate(dict.fromkeys(names))}


@cache
def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8").strip()


def _scripts() -> tuple[str, str]:
    return f"/*\n{_asset('uPlot.LICENSE')}\n*/\n{_asset('uPlot.iife.min.js')}", _asset("page.js")


def _head(record: Record) -> Markup:
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in _scripts()
    )
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    return el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("meta", name="generator", content=record.tool),
        el("link", rel="icon", href="data:,"),
        el("title", f"Towline bench, {formatting.moment(record.began_unix_s)}"),
        el("style", Markup(_asset("uPlot.min.css")), Markup(_asset("page.css"))),
    )


def _header(analysis: Analysis, shown: Sequence[ExperimentView]) -> Markup:
    record = analysis.record
    facts = [
        formatting.moment(record.began_unix_s),
        f"{formatting.duration(record.ended_unix_s - record.began_unix_s)} of measuring",
        *_machine(record.machine),
        record.tool,
    ]
    return el(
        "header",
        el("p", el("span", "towline", class_="mark"), " bench", class_="brand"),
        el("h1", headline(shown)),
        tiles(shown),
        el("p", [el("span", fact) for fact in facts], class_="facts"),
        el("p", "Interrupted: only what was measured until then is included.", class_="alert")
        if record.interrupted
        else None,
    )


def _machine(machine: Mapping[str, object]) -> list[str]:
    """`AMD EPYC`, `2 cores`, `Linux 6.18`, as far as they are known."""
    cores = machine.get("cores_usable") or machine.get("cores")
    system = " ".join(str(machine[key]) for key in ("system", "kernel") if machine.get(key))
    return [one for one in (str(machine.get("cpu") or ""), f"{cores} cores" if cores else "", system) if one]


def _about(record: Record) -> Markup:
    parts = [
        el("h2", "Machine, versions, command"),
        el(
            "div",
            _facts("Machine", record.machine),
            _facts("Versions", record.versions),
            _facts("Settings", record.settings),
            _facts("Network", record.net) if record.net else None,
            class_="columns",
        ),
        el("h3", "Command line"),
        el("pre", shlex.join(record.command)),
        el("p", f"Seed {record.seed}: the order of starts and slices follows from it."),
    ]
    return el("section", parts, class_="card", id="about")


def _facts(title: str, values: Mapping[str, object]) -> Markup:
    rows = [
        el("div", el("dt", str(key).replace("_", " ")), el("dd", _value(str(key), value)))
        for key, value in values.items()
    ]
    return el("div", el("h3", title), el("dl", rows, class_="facts-list"))


def _value(key: str, value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_value(str(name), one)}" for name, one in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_value(key, one) for one in value)
    if key.endswith("_bytes") and isinstance(value, (int, float)):
        return formatting.size(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)
