"""The scripts of the published comparisons, by their commands in docs/published_comparisons.md: `python -m benches.published_comparisons [--only NAMES] [--list] [--quick]`.

Each measuring command of the table there runs in full, with at least three restarts, against the peers that its
document names or that are nearest to them, and its record and report are kept as benches/results/documents/NAME.json.gz
and NAME.md. `--list` shows commands and estimates. `--quick` makes all of them short and keeps nothing: it shows that they
run to their end, and gives no figures. `--pages` writes the reports again from their records. The webhook table runs on
PostgreSQL, too, if `--postgresql URL` is given.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from towline.bench import load
from towline.bench.analysis import analyse
from towline.bench.record import FILE
from towline.bench.report.markdown import markdown

from benches.report import RESULTS

ROOT = Path(__file__).parent.parent
FOLDER = RESULTS / "documents"
ROW = re.compile(r"^\| (.+?) \| `((?:[A-Z_]+=\S+ )*towline bench [^`]+)`.*\|$", re.MULTILINE)
MEASURING = ("servers", "clients", "webhooks", "llm")

SHORT = ("--runs", "1", "--duration", "0.05", "--warm-up", "0.05", "--no-history", "--quiet")
SHORT_OF = {
    "servers": ("--no-latency", "--no-control", "-S", "towline"),
    "clients": ("--no-control", "-S", "towline"),
    "webhooks": ("-s", "800x40", "-S", "towline"),
    "llm": ("--scale", "0.02", "-S", "towline"),
}
"""Options for a short run, by kind of command: Towline alone, and of the webhooks one row."""

ASGI = ("-S", "towline,granian,uvicorn-httptools,hypercorn", "--interface", "asgi", "--no-latency")
TWO_PEERS = ("-S", "towline,granian,uvicorn-httptools", "--interface", "asgi", "--no-latency")
"""As many as in that document."""
CLIENTS = (
    "-S",
    "towline,towline-sync,aiohttp,httpx,httpx-sync,httpcore,httpcore-sync,httpcorexyz,httpcorexyz-sync,urllib3",
)
RELAYS = ("-S", "towline,uvicorn-httptools+aiohttp,uvicorn-httptools+httpx")
"""One relay on a fast client and one on the usual one, as in that document: those that time out take half a minute a row."""
RUNS = ("--runs", "3", "--no-control")


@dataclass(frozen=True)
class FullRun:
    """A command as it is run for its kept record."""

    name: str
    """Name of the record."""
    options: tuple[str, ...]
    """Options added to the command of the document."""
    minutes: float
    """Estimated duration on two cores."""


FULL = {
    "Roadrunner: its published matrix": FullRun("roadrunner_matrix", (*ASGI, "--no-control"), 34),
    "Roadrunner: all its scenarios": FullRun("roadrunner_all", (*TWO_PEERS, *RUNS, "--duration", "0.5"), 25),
    "Hornbeam: its quick bench of ASGI applications": FullRun("hornbeam_quick", ("--no-latency", *RUNS), 4),
    "Hornbeam: the comparison table with gunicorn": FullRun("hornbeam_gunicorn", ("--no-latency", *RUNS), 5),
    "httpcorexyz: GETs, asynchronous and threads": FullRun("httpcorexyz_get", (*CLIENTS, *RUNS), 6),
    "httpcorexyz: uploads": FullRun("httpcorexyz_post", (*CLIENTS, *RUNS), 8),
    "httpcorexyz: streams with 1 to 200 threads": FullRun("httpcorexyz_stream", (*CLIENTS, *RUNS), 30),
    "httpcorexyz: the pool and partial writes": FullRun("httpcorexyz_pool", RUNS, 37),
    "Nous: Req against Hackney": FullRun("nous", RUNS, 21),
    "Nous: a real endpoint": FullRun("nous_endpoint", ("--scale", "0.25"), 6),
    "HTTPotion: the webhook table, 40 to 4,000 at a time": FullRun("httpotion", (*RELAYS, "--runs", "3"), 33),
}
"""Full runs by their rows in docs/published_comparisons.md."""
POSTGRESQL = FullRun("httpotion_postgresql", ("-S", "towline,uvicorn-httptools+aiohttp", "--runs", "3"), 12)
"""Without the relay on the usual client, which takes most of the time."""


def commands() -> dict[str, str]:
    """The commands of docs/published_comparisons.md by script, those that only report included."""
    page = (ROOT / "docs" / "published_comparisons.md").read_text()
    return dict(ROW.findall(page.partition("## The scripts behind")[2]))


def kind_of(command: str) -> str:
    return command.partition("towline bench ")[2].split()[0]


def run(command: str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of the table, whose FOLDER is `folder`, with the output captured."""
    words = shlex.split(command.replace("FOLDER", str(folder)))
    variables = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
    return subprocess.run(
        [sys.executable, "-m", "towline", *words[len(variables) + 1 :], *more],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=2 * 3600,
        check=False,
    )


def options_of(script: str, full: FullRun, *, short: bool) -> tuple[str, ...]:
    return (*SHORT, *SHORT_OF[kind_of(commands()[script])]) if short else (*full.options, "--no-history")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benches.published_comparisons", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("--only", metavar="NAMES", help="of " + ", ".join(one.name for one in FULL.values()))
    parser.add_argument("--list", action="store_true", help="show commands and estimates")
    parser.add_argument("--quick", action="store_true", help="short runs, which keep nothing")
    parser.add_argument(
        "--pages", action="store_true", help="write the reports again from their records, without measuring"
    )
    parser.add_argument("--postgresql", metavar="URL", help="the webhook table on this server, too")
    options = parser.parse_args(arguments)
    names = options.only.split(",") if options.only else None
    known = {*(full.name for full in FULL.values()), POSTGRESQL.name}
    if unknown := sorted(set(names or ()) - known):
        parser.error(f"--only: there is no {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    if names and POSTGRESQL.name in names and not (options.postgresql or options.pages):
        parser.error(f"{POSTGRESQL.name} needs a server: --postgresql URL")
    if options.pages:
        write_pages(names)
        return 0
    jobs = [
        (full.name, commands()[script], options_of(script, full, short=options.quick), full.minutes)
        for script, full in FULL.items()
        if names is None or full.name in names
    ]
    if options.postgresql and (names is None or POSTGRESQL.name in names):
        script = next(script for script, run in FULL.items() if run.name == "httpotion")
        more = options_of(script, POSTGRESQL, short=options.quick)
        more += ("--database", options.postgresql)
        jobs.append((POSTGRESQL.name, commands()[script], more, POSTGRESQL.minutes))
    if options.list:
        for name, command, more, minutes in jobs:
            print(f"{name}: about {minutes:g} min\n  {command} {shlex.join(more)}")
        print(f"in all about {sum(job[3] for job in jobs):g} min")
        return 0
    failed = [
        name for name, command, more, _ in jobs if not finish(name, command, more, keep=not options.quick)
    ]
    if not options.quick:
        write_index()
    return 1 if failed else 0


def finish(name: str, command: str, more: tuple[str, ...], *, keep: bool) -> bool:
    """Runs a command to its end and keeps its record and report."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        output = () if "FOLDER" in command else ("-o", str(folder))
        done = run(command, folder, *more, *output)
        minutes = (time.monotonic() - began) / 60
        print(f"{name}: status {done.returncode} after {minutes:.1f} min", flush=True)
        if done.returncode:
            print(done.stdout[-2000:] + done.stderr[-2000:], file=sys.stderr)
            return False
        if keep:
            FOLDER.mkdir(parents=True, exist_ok=True)
            (FOLDER / f"{name}.json.gz").write_bytes((folder / FILE).read_bytes())
            # Where the database was is of no use to a reader.
            shown = re.sub(r"'?postgresql:\S+", "postgresql://...", f"{command} {shlex.join(more)}")
            chosen = f"{name} --postgresql URL" if name == POSTGRESQL.name else name
            head = f"<!-- python -m benches.published_comparisons --only {chosen} -->\n`{shown}`, {minutes:.1f} min\n\n"
            (FOLDER / f"{name}.md").write_text(head + (folder / "report.md").read_text())
    return True


def write_pages(names: Sequence[str] | None) -> None:
    """The reports again from their records; the first lines, with the command and its time, stay."""
    for path in sorted(FOLDER.glob("*.json.gz")):
        name = path.name.partition(".")[0]
        if names is None or name in names:
            page = FOLDER / f"{name}.md"
            head = page.read_text().partition("### ")[0]
            page.write_text(head + markdown(analyse(load(path))))


def write_index() -> None:
    """A page with the kept records."""
    names = {run.name: script for script, run in FULL.items()}
    names[POSTGRESQL.name] = "HTTPotion: the webhook table on PostgreSQL"
    lines = [
        "# The scripts of the published comparisons, in full",
        "",
        "Written by `python -m benches.published_comparisons`. The commands are those of [docs/published_comparisons.md](../../../docs/published_comparisons.md); each page has its own with "
        "the options that were added, and each record is read by `towline bench report`.",
        "",
        "| script | report | record | measured |",
        "|---|---|---|---|",
    ]
    for name, script in names.items():
        path = FOLDER / f"{name}.json.gz"
        if path.exists():
            measured = datetime.fromtimestamp(load(path).began_unix_s, timezone.utc).date()
            lines.append(f"| {script} | [{name}.md]({name}.md) | [{path.name}]({path.name}) | {measured} |")
    (FOLDER / "index.md").write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    sys.exit(main())
