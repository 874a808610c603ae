"""README's tables of figures from results of `towline bench`: `python -m benches.figures` after `make bench`.

It reads servers.json.gz, servers_http2.json.gz (WebSocket stands there too), clients.json.gz and clients_http2.json.gz
of benches/results; a table whose result is not there stays as it is.
"""

from __future__ import annotations

import sys
from pathlib import Path

from towline.bench import Analysis, Estimate, analyse, load
from towline.bench.analysis import ExperimentAnalysis

from benches.report import table

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "benches" / "results"


def block(name: str, analysis: Analysis) -> str:
    """One table: a row an experiment of capacity, a column a subject; thousands a second, and CPU microseconds of one."""
    experiments = [
        one
        for one in analysis.experiments
        if one.experiment.question == "capacity" and not one.experiment.control and one.experiment.slices
    ]
    subjects = list(
        dict.fromkeys(one.name for experiment in experiments for one in experiment.subjects if one.figures)
    )
    rows = [
        [experiment.experiment.title, *(pace(experiment, subject) for subject in subjects)]
        for experiment in experiments
    ]
    record = analysis.record
    where = f"{record.machine.get('cpu')}, {record.machine.get('cores')} cores, kernel {record.machine.get('kernel')}"
    return (
        "Requests a second · CPU microseconds of the subject for one; one worker on one core, the driver on another, "
        "slices of all alternating:\n\n"
        + table(["", *subjects], rows)
        + f"\n{where}, Towline {record.versions['towline']}, seed {record.seed}. Everything else: "
        f"`towline bench report benches/results/{name}.json.gz`.\n"
    )


def pace(experiment: ExperimentAnalysis, subject: str) -> str:
    """Empty where there is no figure."""
    found = next((one for one in experiment.subjects if one.name == subject), None)
    if found is None or found.failure is not None or "per_s" not in found.figures:
        return ""
    rate, cost = found.figures["per_s"], found.figures.get("cpu_us")
    return number(rate) + (f" · {cost.value:,.0f}" if cost is not None else "")


def number(rate: Estimate) -> str:
    shown = f"{rate.value / 1000:,.1f} k" if rate.value >= 1000 else f"{rate.value:,.0f}"
    return f"≥ {shown}" if rate.at_least else shown


def main() -> int:
    text = README.read_text()
    for name in ("servers", "servers_http2", "clients", "clients_http2"):
        begin, end = f"<!-- figures of {name}: python -m benches.figures -->", f"<!-- end of {name} -->"
        path = RESULTS / f"{name}.json.gz"
        if not path.exists():
            print(f"{name}: nothing measured yet; its table stays (make bench)", file=sys.stderr)
            continue
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{block(name, analyse(load(path)))}{end}{rest.split(end)[1]}"
    README.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
