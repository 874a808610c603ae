"""docs/figures.svg, README's bar chart, from the records of `towline bench` in benches/results (`make format`).

`--check` (in `make check`) fails when the chart differs from the records.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

from towline.bench import Analysis, analyse, load

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benches" / "results"
CHART = ROOT / "docs" / "figures.svg"
NAMES = {"uvicorn-httptools": "uvicorn", "uvicorn-zttp": "uvicorn", "gunicorn-gthread": "gunicorn"}
OURS = "towline"

WIDTH, PANEL, GAP = 800, 380, 40
TITLE, ROW, BAR = 34, 26, 16
LABEL, VALUE = 74, 78  # widths left and right of a bar

STYLE = """
text { font: 13px -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-weight: 600 } .note { font-size: 11px; fill: #59636e }
.bar { fill: #afb8c1 } .ours { fill: #d1570d } .ground { fill: #ffffff }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .note { fill: #9198a1 } .bar { fill: #57606a } .ours { fill: #f0883e } .ground { fill: #0d1117 }
}
"""


@dataclass(frozen=True)
class Panel:
    """One group of bars: an experiment of one record."""

    record: str
    experiment: str
    title: str


PANELS = (
    Panel("servers", "hello", "ASGI over HTTP/1.1"),
    Panel("servers_http2", "hello_h2", "ASGI over HTTP/2"),
    Panel("servers_http2", "websocket_msg_throughput", "WebSocket, 1 KiB there and back"),
    Panel("clients_http2", "hello_h2_async_50", "Asynchronous client, HTTP/2, 50 calls at once"),
)


def bars(panel: Panel, analysis: Analysis) -> list[tuple[str, float, str]]:
    """Name, requests per second and the label of each subject, the fastest first."""
    (measured,) = [
        one
        for one in analysis.experiments
        if one.experiment.name == panel.experiment and one.experiment.question == "capacity"
    ]
    found = []
    for subject in measured.subjects:
        if subject.name == "floor":  # no server
            continue
        if subject.failure is None and (rate := subject.figures.get("per_s")):
            label = f"{'≥ ' if rate.at_least else ''}{rate.value / 1000:,.1f} k/s"
            found.append((NAMES.get(subject.name, subject.name), rate.value, label))
    return sorted(found, key=lambda bar: -bar[1])


def text(x: float, y: float, content: str, css: str = "", anchor: str = "start") -> str:
    kind = f' class="{css}"' if css else ""
    return f'<text x="{x:g}" y="{y:g}"{kind} text-anchor="{anchor}">{escape(content)}</text>\n'


def drawn(panel: Panel, found: list[tuple[str, float, str]], left: float, top: float) -> str:
    parts = [text(left, top + 14, panel.title, "title")]
    largest = max(value for _, value, _ in found)
    for number, (name, value, label) in enumerate(found):
        y = top + TITLE + number * ROW
        width = max(1.0, (PANEL - LABEL - VALUE) * value / largest)
        css = "ours" if name == OURS else "bar"
        parts.append(text(left + LABEL - 8, y + 13, name, anchor="end"))
        parts.append(
            f'<rect class="{css}" x="{left + LABEL:g}" y="{y:g}" width="{width:.1f}" height="{BAR}" rx="2"/>\n'
        )
        parts.append(text(left + LABEL + width + 6, y + 13, label))
    return "".join(parts)


def chart() -> str:
    analyses = {panel.record: analyse(load(RESULTS / f"{panel.record}.json.gz")) for panel in PANELS}
    groups = [(panel, bars(panel, analyses[panel.record])) for panel in PANELS]
    body, top = [], 4
    for row in range(0, len(groups), 2):
        pair = groups[row : row + 2]
        body += [
            drawn(panel, found, column * (PANEL + GAP), top) for column, (panel, found) in enumerate(pair)
        ]
        top += TITLE + ROW * max(len(found) for _, found in pair) + 14
    machines = dict.fromkeys(str(one.record.machine.get("cpu")) for one in analyses.values())
    note = (
        "Requests or messages per second, one worker on one core, higher is better. "
        f"Virtual machines: {', '.join(machines)}."
    )
    body.append(text(0, top + 12, note, "note"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 20}" role="img">\n'
        f"<title>Requests per second of Towline and its peers</title>\n<style>{STYLE}</style>\n"
        # A page may be light where the system is dark.
        + f'<rect class="ground" width="{WIDTH}" height="{top + 20}"/>\n'
        + "".join(body)
        + "</svg>\n"
    )


def main() -> int:
    if "--check" not in sys.argv:
        CHART.write_text(chart())
        return 0
    if not CHART.exists() or CHART.read_text() != chart():
        print("docs/figures.svg does not show the records of benches/results: run `make format`")
        return 1
    print("chart: docs/figures.svg shows the records")
    return 0


if __name__ == "__main__":
    sys.exit(main())
