"""README's table of figures from benches/results/server.json: `python -m benches.figures` after `make bench`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benches import report
from benches.cells import CELLS

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- figures: python -m benches.figures -->", "<!-- end of figures -->"
COLUMNS = ("towline", "granian", "uvicorn", "hypercorn", "gunicorn", "nginx")


def rate(servers: dict[str, Any], column: str) -> str:
    """Of gunicorn its best worker for the cell; empty where a server has no figure."""
    found = [
        seen
        for name, seen in servers.items()
        if name.split("-")[0] == column and "requests_per_s" in seen and "@" not in name
    ]
    best = max(found, key=lambda seen: seen["requests_per_s"], default=None)
    if best is None:
        return ""
    return f"{'≥ ' if best['at_least'] else ''}{best['requests_per_s'] / 1000:,.1f}"


def block(measured: dict[str, Any]) -> str:
    cells = [name for name in CELLS if name in measured]
    columns = [name for name in COLUMNS if any(rate(measured[cell]["servers"], name) for cell in cells)]
    rows = [
        [CELLS[name].what, *(rate(measured[name]["servers"], column) for column in columns)] for name in cells
    ]
    where = sorted({report.conditions(measured[name]) for name in cells})
    text = "Thousands of requests a second, one worker on one core, wrk on another, medians of interleaved slices:\n\n"
    text += report.table(["", *columns], rows) + "\n" + "\n".join(where)
    return (
        text
        + ".\nIntervals, ratios and command lines: [benches/results/server.md](benches/results/server.md).\n"
    )


def main() -> int:
    measured = report.load("server")
    if not measured:
        sys.exit("nothing measured yet: make bench")
    text = README.read_text()
    before, rest = text.split(BEGIN)
    README.write_text(f"{before}{BEGIN}\n{block(measured)}{END}{rest.split(END)[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
