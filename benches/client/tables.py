"""benches/results/client.md from client.json."""

from __future__ import annotations

from typing import Any

from benches import report

from .cells import CELLS, OURS, Cell

MIB = 1 << 20


def cell_table(cell: Cell, entry: dict[str, Any]) -> str:
    loop = "" if entry["plan"]["loop"] == "asyncio" else f" ({entry['plan']['loop']})"
    title = f"\n## {cell.name}{loop}: {entry['what']}\n\n"
    body = slow_rows(entry) if cell.slow else load_rows(cell, entry)
    missing = [name for name, why in entry["failed"].items() if why.startswith("not installed")]
    notes = [
        f"{name}: no figure, {why[:100]}" for name, why in entry["failed"].items() if name not in missing
    ]
    if missing:
        notes.append(f"Not installed: {', '.join(missing)}.")
    if cell.floor_s is not None:
        notes.append(f"Floor: {cell.floor_s:g} s.")
    return title + body + "".join(f"\n{note}\n" for note in notes)


def load_rows(cell: Cell, entry: dict[str, Any]) -> str:
    uploads = cell.load == "upload"
    rows = []
    for name, seen in sorted(entry["clients"].items(), key=lambda item: -item[1]["requests_per_s"]):
        rate = seen["requests_per_s"]
        shown = f"{rate * cell.body_bytes / MIB:,.0f} MiB/s" if uploads else f"{rate:,.0f}"
        shown = f"{'at least ' if seen['at_least'] else ''}{shown}"
        row = [f"**{name}**" if name in cell.ours else name, shown, f"{seen['cpu_us']:,.1f}"]
        if cell.count is not None:
            row.append(f"{seen['seconds']:.3f}")
        row += [milliseconds(seen.get(key)) for key in ("mean_ms", "median_ms", "p99_ms")]
        found = entry["ratios"].get(name, {})
        row += [spread(found.get("rate")), spread(found.get("cpu")), goals(cell, name)]
        rows.append(row)
    head = ["client", "upload" if uploads else "requests/s", "CPU us"]
    head += ["total s"] if cell.count is not None else []
    batch = " of a batch" if cell.batch > 1 else ""
    head += [f"mean ms{batch}", "median", "p99", "rate: ours is [95 %]", "CPU: theirs to ours [95 %]", "goal"]
    return report.table(head, rows)


def milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:,.3g}" if value < 100 else f"{value:,.0f}"


def spread(found: dict[str, float] | None) -> str:
    if found is None:
        return ""
    interval = f" [{found['low']:.2f}, {found['high']:.2f}]" if "low" in found else ""
    return f"{found['ratio']:.2f} x{interval}"


def goals(cell: Cell, name: str) -> str:
    wanted = [goal for goal in cell.goals if name in goal.peers]
    return ", ".join(f"{goal.least:g} x{' CPU' if goal.metric == 'cpu' else ''}" for goal in wanted)


def slow_rows(entry: dict[str, Any]) -> str:
    rows = []
    for name, seen in sorted(entry["clients"].items(), key=lambda item: item[1]["growth_mib"]):
        stopped = any(one["stopped"] for one in seen["slices"])
        growth = f"over {seen['growth_mib']:,.0f}" if stopped else f"{seen['growth_mib']:,.1f}"
        held = seen.get("buffered_bytes")
        rate = seen["taken_bytes"] / seen["seconds"] / 1024
        shown = f"**{name}**" if name in OURS else name
        rows.append([shown, growth, "" if held is None else f"{held:,.0f}", f"{rate:,.1f}"])
    return report.table(["client", "RSS growth MiB", "buffered bytes at most", "taken KiB/s"], rows)


def write_tables() -> None:
    measured = report.load("client")
    parts = []
    for key, entry in sorted(measured.items(), key=lambda item: list(CELLS).index(item[0].split("/")[0])):
        cell = CELLS[key.split("/")[0]]
        parts.append(cell_table(cell, entry) + "\n" + report.conditions(entry) + "\n")
    title = "Clients, each a process on one core, the responder on another"
    report.write_markdown("client", title, parts, command="make bench-client")
