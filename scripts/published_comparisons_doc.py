"""Writes docs/published_comparisons.md: the published figures of five comparisons of servers and clients beside those of our kept records.

Published figures are those of the scenario catalogue; ours come from benches/results/documents, where a script has run in full, else from
the records of docs/figures.md. A row without a record names the command that makes one. `make format` runs this, `make check` with `--check`.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from towline.bench import analyse, load
from towline.bench.analysis import Estimate, ExperimentAnalysis
from towline.bench.scenarios import Scenario, Section, sections

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benches" / "results"
PAGE = ROOT / "docs" / "published_comparisons.md"
OTHERS = (
    "servers",
    "servers_more",
    "servers_http2",
    "clients_bodies",
    "clients_pool",
    "clients",
)
"""Records of docs/figures.md, behind those of the comparisons."""
RUN_OF_SECTION = {
    "Roadrunner": "roadrunner_matrix",
    "Hornbeam": "hornbeam_gunicorn",
    "httpcorexyz": "httpcorexyz_get",
    "Nous": "nous",
    "HTTPotion": "httpotion",
}
RUN_OF_SCENARIO = {
    "post_async": "httpcorexyz_post",
    "post_sync": "httpcorexyz_post",
    "stream_sync": "httpcorexyz_stream",
    "pool_assignment": "httpcorexyz_pool",
    "partial_write": "httpcorexyz_pool",
    "uncontended_acquire": "httpcorexyz_pool",
    "llm_sequential": "nous_endpoint",
    "llm_parallel": "nous_endpoint",
}
"""Runs of `benches.published_comparisons` for scenarios that the run of their section does not have."""
COMMANDS = {"streaming_pull": "towline bench clients -s streaming_pull"}
"""Commands for scenarios that no run has."""
SEPARATORS = {"webhooks": "; "}
"""Between the subjects of a row, where the figures of one have commas."""
CLIENTS = {"httpcorexyz", "Nous", "HTTPotion"}
"""Every scenario of these has a row, with or without a published figure."""
NOT_SERVERS = {"floor", "native"}
HEAD = """# The published comparisons

<!-- Written by scripts/published_comparisons_doc.py from the scenario catalogue and benches/results (`make format`); edit the source. -->

The project began with five published comparisons of HTTP servers and clients: Roadrunner, Hornbeam, httpcorexyz, Nous and HTTPotion.
[Scenarios](scenarios.md) repeats their requests to the byte, and `towline bench` repeats their measurements ([commands](#the-scripts-behind-the-scenarios)). Here are their figures beside ours.

How to read a row:

- The published figures come from another machine, with all of its cores, and often from a server in another language. They are context: do
  not compare them with ours.
- Our figures are of one worker on one core of a small virtual machine. Compare only figures of the same row: their subjects were measured
  together. Rows of the record `servers` were measured on a faster machine than those of `documents/`.
- `≥` means that the driver was the limit. If a subject failed, the row has the reason.

Those comparisons have flaws that this bench avoids: a fixed order of subjects; samples of 20 ms; medians of three runs without an interval; closed
loops only, which hide stalls; the latency of a batch divided by its size; responses that nobody compares; failures counted in the rate.
[Measuring](measure.md#method) has the method.
"""
SCRIPTS = """
## The scripts behind the scenarios

Each comparison has scripts. These commands of `towline bench` do the same:

| their script | here |
|---|---|
| Roadrunner: its published matrix | `RUNS=3 DURATION=5 towline bench servers -s tag:matrix` |
| Roadrunner: all its scenarios | `towline bench servers -s section:roadrunner` |
| Roadrunner: the tables again from its log (`SKIP_BENCH=1`) | `SKIP_BENCH=1 towline bench servers -o FOLDER`, or `towline bench report FOLDER` |
| Hornbeam: its quick bench of ASGI applications | `towline bench servers -s tag:hornbeam-quick --interface asgi -o FOLDER` |
| Hornbeam: a server that runs already (`--bind`), and another | `towline bench http://127.0.0.1:8000/ http://127.0.0.1:9000/` |
| Hornbeam: the comparison table with gunicorn | `towline bench servers -s section:hornbeam -S towline,gunicorn-gthread` |
| httpcorexyz: GETs, asynchronous and threads | `towline bench clients -s get_async,get_sync` |
| httpcorexyz: uploads | `towline bench clients -s post_async,post_sync` |
| httpcorexyz: streams with 1 to 200 threads | `towline bench clients -s stream_sync` |
| httpcorexyz: the pool and partial writes | `towline bench clients -s pool_assignment,partial_write,uncontended_acquire` |
| httpcorexyz: charts saved as files | `towline bench report FOLDER --svg --png` |
| Nous: Req against Hackney | `towline bench clients -s small_post,parallel_50,large_body` |
| Nous: a real endpoint | `towline bench llm` (`OPENROUTER_API_KEY`; without it a local mock) |
| HTTPotion: the webhook table, 40 to 4,000 at a time | `towline bench webhooks` (SQLite; `--database postgresql://...`) |

`python -m benches.published_comparisons` runs them one after the other for [kept records](../benches/results/documents/index.md), in about three and
a half hours. `--list` shows the time of each, `--quick` runs them all in a few minutes.

`RUNS` and `DURATION` stand for `--runs` and `--duration`. With `SKIP_BENCH=1` a measuring command makes the tables and files of the result in
`--output` again. The scripts measure subjects in a fixed order; these commands use random, interleaved orders.
"""
"""The commands, which `benches.published_comparisons` reads from the page and runs."""


@dataclass(frozen=True)
class Measured:
    """An experiment of a kept record."""

    record: str
    scenario: str
    name: str
    rates: dict[str, Estimate]
    """Per second, by subject."""
    failed: dict[str, int]
    answered: dict[str, int]
    failures: dict[str, str]
    """Why a subject has no rate."""


def records() -> list[Path]:
    kept = sorted((RESULTS / "documents").glob("*.json.gz"))
    return [*kept, *(path for name in OTHERS if (path := RESULTS / f"{name}.json.gz").exists())]


def measured() -> list[Measured]:
    found = []
    for path in records():
        name = str(path.relative_to(RESULTS)).removesuffix(".json.gz")
        for one in analyse(load(path)).experiments:
            kept = one.experiment
            if kept.question == "latency":
                found.append(Measured(name, kept.scenario, kept.name, {}, {}, {}, {}))
            elif kept.question == "capacity" and not kept.control and kept.slices:
                found.append(experiment(name, one))
    return found


def experiment(record: str, one: ExperimentAnalysis) -> Measured:
    rates, failed, answered, failures = {}, {}, {}, {}
    for subject in one.subjects:
        if subject.failure and subject.name not in NOT_SERVERS:
            failures[subject.name] = shortened(subject.failure)
        slices = [each for each in one.experiment.slices if each.subject == subject.name]
        if subject.name in NOT_SERVERS or not slices:
            continue
        failed[subject.name] = sum(each.failed for each in slices)
        answered[subject.name] = sum(each.answered for each in slices)
        if not subject.failure and (per_s := subject.figures.get("per_s")):
            rates[subject.name] = per_s
    return Measured(record, one.experiment.scenario, one.experiment.name, rates, failed, answered, failures)


def shortened(failure: str) -> str:
    """The reason without the end of the subject's output."""
    reason = failure.partition(":")[0]
    killed = re.fullmatch(r"it ended with status -(\d+)", reason)
    return f"it ended with {signal.Signals(int(killed[1])).name}" if killed else reason


def rate(value: float) -> str:
    return f"{value / 1000:,.1f}\u00a0k" if value >= 1000 else f"{value:,.3g}"


def published(scenario: Scenario) -> Iterator[tuple[str, str, str]]:
    """Protocol, unit and figures of each row of the source."""
    rows = [
        (one.protocol, one.unit, ", ".join(f"{name} {value:,g}" for name, value in one.figures))
        for one in scenario.published
    ]
    if scenario.kind == "webhooks":  # the source has them for all of its loads together
        yield "h1", "", "all rows: " + "; ".join(f"{figures} {unit}" for _, unit, figures in rows)
        return
    yield from rows
    if not scenario.published:
        yield "h1", "", ""


def ours(scenario: Scenario, protocol: str, all_measured: list[Measured]) -> list[Measured]:
    """The experiments of a scenario, each from the record with the most subjects, or the first of these."""
    suffix = "" if protocol == "h1" or scenario.name.endswith(f"_{protocol}") else f"_{protocol}"
    wanted = {f"{scenario.name}{suffix}"}
    if scenario.section == "Hornbeam":  # its peer, gunicorn, is a WSGI server
        wanted.add(f"{scenario.name}_wsgi")
    mine = [one for one in all_measured if one.scenario == scenario.name]
    if scenario.kind != "llm":
        mine = [one for one in mine if one.rates or one.answered]
    if scenario.kind == "server":
        mine = [one for one in mine if one.name in wanted]
    best: dict[str, Measured] = {}
    for one in mine:
        if one.name not in best or len(one.rates) > len(best[one.name].rates):
            best[one.name] = one
    return list(best.values())


def row(section: Section, scenario: Scenario, all_measured: list[Measured]) -> Iterator[str]:
    for protocol, unit, figures in published(scenario):
        found = ours(scenario, protocol, all_measured)
        name = f"`{scenario.name}`" + (" over HTTP/2" if protocol == "h2" else "")
        theirs = f"{figures} {unit}".strip()
        if not found:
            run = RUN_OF_SCENARIO.get(scenario.name, RUN_OF_SECTION[section.name])
            command = COMMANDS.get(scenario.name, f"python -m benches.published_comparisons --only {run}")
            yield f"| {name} | {theirs} | `{command}` | |\n"
        count = next((load.count for load in scenario.loads if load.count), None) if unit == "s" else None
        for one in found:
            shown = one.name if one.name == scenario.name else one.name.removesuffix("_h2")
            label = (
                name
                if shown == scenario.name
                else f"{name}, {shown.removeprefix(scenario.name).lstrip('_ ')}"
            )
            if scenario.kind == "webhooks" and one is not found[0]:
                theirs = ""
            yield f"| {label} | {theirs} | {SEPARATORS.get(scenario.kind, ', ').join(cells(scenario, one, count))} | {link(one)} |\n"


def cells(scenario: Scenario, one: Measured, count: int | None) -> Iterator[str]:
    """The figures of all subjects; with `count` as the seconds for so many calls, as the source has them."""
    if scenario.kind == "webhooks":
        for name, failed in one.failed.items():
            shown = f"{name} {rate(one.rates[name].value)}/s" if name in one.rates else name
            yield f"{shown}, {failed:,} of {failed + one.answered[name]:,} failed"
        return
    if scenario.kind == "llm":
        yield "latencies: in the record"
    for name, per_s in one.rates.items():
        if count:
            value = ("≤ " if per_s.at_least else "") + f"{count / per_s.value:.2f} s"
        else:
            value = ("≥ " if per_s.at_least else "") + rate(per_s.value)
        yield f"**{name} {value}**" if name.startswith("towline") else f"{name} {value}"
    for name, why in one.failures.items():
        yield f"{name} has no figure ({why})"


def link(one: Measured) -> str:
    path = RESULTS / f"{one.record}.md"
    return f"[{one.record}](../benches/results/{one.record}.md)" if path.exists() else f"`{one.record}`"


def part(section: Section, all_measured: list[Measured]) -> str:
    shown = [one for one in section.scenarios if one.published or section.name in CLIENTS]
    machine = f" Machine of the published figures: {section.machine}." if section.machine else ""
    unit = {"HTTPotion": "accepted, stored and forwarded per second"}.get(
        section.name, "per second: responses, calls or batches"
    )
    return (
        f"\n## {section.source}\n\n{section.title}.{machine} Ours: {unit}.\n\n"
        "| scenario | published there | ours, measured together | record |\n|---|---|---|---|\n"
        + "".join(line for one in shown for line in row(section, one, all_measured))
    )


def page() -> str:
    all_measured = measured()
    parts = (part(one, all_measured) for one in sections() if one.name in RUN_OF_SECTION)
    return HEAD + "".join(parts) + SCRIPTS


def main() -> int:
    if "--check" not in sys.argv:
        PAGE.write_text(page())
        return 0
    if not PAGE.exists() or PAGE.read_text() != page():
        print("docs/published_comparisons.md does not show the records of benches/results: run `make format`")
        return 1
    print("published comparisons: docs/published_comparisons.md shows the records")
    return 0


if __name__ == "__main__":
    sys.exit(main())
