"""README's tables of figures from benches/results/: `python -m benches.figures` after a bench has run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benches import report
from benches.cells import CELLS
from benches.client.cells import CELLS as CLIENT_CELLS

README = Path(__file__).parent.parent / "README.md"
SERVERS = ("towline", "granian", "uvicorn", "hypercorn", "gunicorn", "nginx")
# Columns of the two tables of clients: what stands above them, and the subject.
ASYNC = {
    "towline": "towline",
    "aiohttp": "aiohttp",
    "httpx": "httpx",
    "httpx2": "httpx2",
    "pyreqwest": "pyreqwest",
    "pycurl": "pycurl-multi",
    "rnet": "rnet",
    "primp": "primp",
}
SYNC = {
    "towline": "towline-sync",
    "requests": "requests",
    "urllib3": "urllib3",
    "httpx": "httpx-sync",
    "pyreqwest": "pyreqwest-sync",
    "pycurl": "pycurl",
}
ASYNC_CELLS = (
    "async_1",
    "async_20",
    "async_500",
    "get_async",
    "parallel_50",
    "large_body",
    "upload_1m",
    "upload_64m",
)
SYNC_CELLS = ("sync_1", "sync_20", "sync_100", "get_sync", "small_post", "stream_sync_100", "stream_sync_200")


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


def servers_block(measured: dict[str, Any]) -> str:
    cells = [name for name in CELLS if name in measured]
    columns = [name for name in SERVERS if any(rate(measured[cell]["servers"], name) for cell in cells)]
    rows = [
        [CELLS[name].what, *(rate(measured[name]["servers"], column) for column in columns)] for name in cells
    ]
    text = "Thousands of requests a second, one worker on one core, wrk on another, medians of interleaved slices:\n\n"
    return text + report.table(["", *columns], rows) + closing("server", measured, cells)


def pace(clients: dict[str, Any], subject: str) -> str:
    """Requests a second, and the CPU time of one."""
    seen = clients.get(subject)
    if seen is None:
        return ""
    per_s = seen["requests_per_s"]
    shown = f"{per_s / 1000:,.1f} k" if per_s >= 1000 else f"{per_s:,.0f}"
    return f"{'≥ ' if seen['at_least'] else ''}{shown} · {seen['cpu_us']:,.0f}"


def clients_table(measured: dict[str, Any], cells: tuple[str, ...], columns: dict[str, str]) -> str:
    rows = [
        [CLIENT_CELLS[cell].what, *(pace(measured[cell]["clients"], subject) for subject in columns.values())]
        for cell in cells
        if cell in measured
    ]
    return report.table(["", *columns], rows)


def clients_block(measured: dict[str, Any]) -> str:
    text = "Requests a second · CPU microseconds of the client for one. Client on one core, a native upstream on another,\n"
    text += "all clients interleaved, medians. Asynchronous:\n\n" + clients_table(
        measured, ASYNC_CELLS, ASYNC
    )
    text += "\nBlocking:\n\n" + clients_table(measured, SYNC_CELLS, SYNC)
    return text + closing("client", measured, [*ASYNC_CELLS, *SYNC_CELLS])


def closing(name: str, measured: dict[str, Any], cells: list[str]) -> str:
    where = sorted({report.conditions(measured[cell]) for cell in cells if cell in measured})
    return (
        f"\n{chr(10).join(where)}.\n"
        f"Intervals, ratios and command lines: [benches/results/{name}.md](benches/results/{name}.md).\n"
    )


def main() -> int:
    text = README.read_text()
    for name, block in (("server", servers_block), ("client", clients_block)):
        begin, end = f"<!-- figures of {name}s: python -m benches.figures -->", f"<!-- end of {name}s -->"
        if measured := report.load(name):
            before, rest = text.split(begin)
            text = f"{before}{begin}\n{block(measured)}{end}{rest.split(end)[1]}"
        else:
            print(f"{name}: nothing measured yet", file=sys.stderr)
    README.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
