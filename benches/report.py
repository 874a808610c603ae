"""Shared by the drivers in this folder: ratios, the machine, and the records in benches/results."""

from __future__ import annotations

import datetime
import gzip
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
LOAD_BEFORE = os.getloadavg()[0]
"""The load average when a driver begins: afterwards it would be that of the measurement itself."""
PACKAGES = (
    "towline",
    "granian",
    "uvicorn",
    "uvloop",
    "httptools",
    "hypercorn",
    "gunicorn",
    "starlette",
    "fastapi",
)
# Student's t, two-sided 95 %, by degrees of freedom; beyond the table the normal value is near enough.
T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)


def ratio(ours: list[float], peer: list[float]) -> dict[str, Any]:
    """Ratios `ours / peer`, paired by round: geometric mean, 95 % interval over rounds, smallest and largest."""
    logs = [math.log(a / b) for a, b in zip(ours, peer, strict=True)]
    mean = statistics.fmean(logs)
    found: dict[str, Any] = {"ratio": mean, "least": min(logs), "most": max(logs)}
    if len(logs) > 1:
        t = T95[len(logs) - 2] if len(logs) - 2 < len(T95) else 1.96
        half = t * statistics.stdev(logs) / math.sqrt(len(logs))
        found |= {"low": mean - half, "high": mean + half}
    return {name: round(math.exp(value), 3) for name, value in found.items()}


def spread(values: list[float]) -> list[float] | None:
    """Median, least and most."""
    if not values:
        return None
    return [round(one, 3) for one in (statistics.median(values), min(values), max(values))]


def shown(figure: list[float] | None) -> str:
    """`12.3 (11.9 to 14.0)`: the median of the runs, the least and the most."""
    if figure is None:
        return ""
    digits = 0 if figure[0] >= 100 else 1 if figure[0] >= 1 else 2
    median, least, most = (f"{one:,.{digits}f}" for one in figure)
    return f"{median} ({least} to {most})"


def machine() -> dict[str, Any]:
    model = platform.processor()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(
            (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model
        )
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "governor": governor.read_text().strip() if governor.exists() else None,
        "load_before": LOAD_BEFORE,
    }


def versions(packages: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    for name, option in (("wrk", "-v"), ("nginx", "-v")):
        path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin")
        if path:
            output = subprocess.run([path, option], capture_output=True, text=True, check=False)
            found[name] = (output.stdout + output.stderr).splitlines()[0].split("Copyright")[0].strip()
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
        cwd=RESULTS.parent,
    )
    found["commit"] = commit.stdout.strip() or "unknown"
    return found


def save(name: str, entries: dict[str, Any], *, replace: bool = False) -> Path:
    """Writes results/NAME.json.gz; merged into the existing entries, unless `replace`."""
    RESULTS.mkdir(exist_ok=True)
    merged = entries if replace else load(name) | entries
    path = RESULTS / f"{name}.json.gz"
    # Without the time, so that the same entries are the same file.
    path.write_bytes(gzip.compress((json.dumps(merged, indent=1) + "\n").encode(), mtime=0))
    return path


def load(name: str) -> dict[str, Any]:
    """The entries of results/NAME.json.gz; empty when there is no such file."""
    path = RESULTS / f"{name}.json.gz"
    entries: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes())) if path.exists() else {}
    return entries


def table(head: list[str], rows: list[list[str]]) -> str:
    align = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, align, *rows]) + "\n"


def write_markdown(name: str, title: str, parts: list[str], command: str) -> None:
    text = f"# {title}\n\nWritten by `{command}`; the slices, versions and command lines are in `{name}.json.gz`.\n\n"
    (RESULTS / f"{name}.md").write_text(text + "\n".join(parts))


def save_page(
    name: str, title: str, found: dict[str, Any], parts: list[str], packages: tuple[str, ...] = PACKAGES
) -> None:
    """Writes the record of a measurement and its page, in place of the earlier ones."""
    entry: dict[str, Any] = {"machine": machine(), "versions": versions(packages)}
    entry |= {"date": datetime.date.today().isoformat(), **found}
    save(name, entry, replace=True)
    write_markdown(name, title, [conditions(entry), "", *parts], f"python -m benches.{name}")


def conditions(entry: dict[str, Any]) -> str:
    m, v = entry["machine"], entry["versions"]
    return f"{m['cpu']}, {m['cores']} cores, {m['system']}, Python {v['python']}, commit {v['commit']}, {entry['date']}"


def fail(message: str) -> None:
    print(message, file=sys.stderr)
    raise SystemExit(2)
