"""The tables of docs/figures.md and other pages: `python -m benches.figures [--measure TABLE...] [--quick]`.

Each table is made from a record of `towline bench` in benches/results, and stands between the two comments that name
it. `--measure clients` runs the measurement first (on a quiet machine; minutes), keeps its record as
benches/results/clients.json.gz and writes the table. A table without a record is left unchanged.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from towline.bench import Analysis, Estimate, analyse, load
from towline.bench.analysis import ExperimentAnalysis, analyse_experiment
from towline.bench.record import FILE, PAGE

from benches.report import RESULTS, table
from benches.report import load as instructions

ROOT = Path(__file__).parent.parent
PAGES = tuple(
    ROOT / name
    for name in ("README.md", "docs/call.md", "docs/dropins.md", "docs/figures.md", "docs/http3.md")
)

PRECISE = ("--runs", "5", "--duration", "0.3", "--warm-up", "0.7", "--no-history")
PAGES_OF_OBJECTS = ("--runs", "10", "--duration", "5", "--no-history")
"""Chance decides which packets of a page are lost: many pages."""
QUICK = ("--runs", "1", "--duration", "0.1", "--warm-up", "0.2", "--no-history")
CAPACITY = ("--no-latency", "--no-control")
# The strongest of November 2026. Weft needs CPython 3.12 and is left out on older ones.
SERVERS = "towline,peregrine,weft,granian,uvicorn-httptools"
# At 100 at once httpx and httpx2 do a few hundred requests per second, and a slice takes 20 s.
CLIENTS = "towline,wreq,pyreqwest,aiohttp,pycurl,pycurl-multi,httpr,pyqwest,urllib3"
FRAMEWORKS = (
    "servers",
    "--servers",
    str(ROOT / "benches" / "frameworks.toml"),
    "--scenarios",
    str(ROOT / "benches" / "frameworks_scenarios.toml"),
)
MEASUREMENTS: dict[str, tuple[str, ...]] = {
    "servers": (
        *("servers", "-s", "hello,json,echo,large_response,small_chunked_response,httparena_static"),
        *(
            "-S",
            f"{SERVERS},fastpysgi,bjoern,gunicorn-gthread,nginx,floor",
            "--protocol",
            "h1",
            "--no-latency",
        ),
    ),
    "fastapi": (
        *(*FRAMEWORKS, "-s", "message,path_model,post_model,fifty_items"),
        *("-S", "*-fastapi", *CAPACITY),
    ),
    "frameworks": (
        *(*FRAMEWORKS, "-s", "message", "--interface", "asgi,wsgi", *CAPACITY, "-S"),
        ",".join(
            f"{server}-{framework}"
            for framework, servers in {
                **dict.fromkeys(
                    ("starlette", "litestar", "quart", "django-asgi"),
                    "towline,peregrine,weft,granian,uvicorn",
                ),
                **dict.fromkeys(("django", "flask"), "towline,peregrine,weft,granian,bjoern"),
            }.items()
            for server in servers.split(",")
        ),
    ),
    "servers_http2": (
        *(
            "servers",
            "-s",
            "hello,multi_stream_h2,websocket_msg_throughput,large_post_h2",
            "--interface",
            "asgi",
        ),
        *("-S", "towline,peregrine,weft,granian,h2corn,uvicorn-zttp", *CAPACITY),
    ),
    "clients": (
        *("clients", "-s", "hello_async,hello_sync", "-c", "1,20"),
        *("-S", f"{CLIENTS},requests,curl_cffi,httpx,httpx2", "--no-control"),
    ),
    "clients_many": ("clients", "-s", "hello_async,hello_sync", "-S", CLIENTS, "-c", "100", "--no-control"),
    "clients_http2": (
        "clients",
        "-s",
        "hello_h2_async",
        "-S",
        "towline,httpx2,pyreqwest,wreq,pyqwest",
        "--no-control",
    ),
    "clients_bodies": ("clients", "-s", "small_post,parallel_50,upload_256k", "-S", CLIENTS, "--no-control"),
    "servers_http3": (
        *("servers", "-s", "hello,multi_stream_h2,large_response,download,tls_handshake_throughput"),
        *("--protocol", "h3", "--interface", "asgi", "-S", "towline,peregrine,weft,nginx,caddy,quic-go"),
        # scripts/http3_interop.sh makes it.
        *("--peers-bin", str(ROOT / "target" / "http3" / "wrappers"), *CAPACITY),
    ),
    # On 50 connections Hypercorn's handshakes take longer than the 5 s in which clients give up.
    "servers_http3_python": (
        *("servers", "-s", "hello,multi_stream_h2", "--protocol", "h3", "--interface", "asgi", "-c", "8"),
        *("-S", "towline,peregrine,weft,hypercorn", *CAPACITY),
    ),
    "clients_http3": (
        "clients",
        "-s",
        "hello_h3_async,hello_h3_sync",
        "-S",
        "towline,niquests",
        "--no-control",
    ),
    "dropins": (
        *("clients", "-s", "dropin_httpx,dropin_httpx2,dropin_requests", "--no-control"),
        *("-S", "towline.httpx,httpx,towline.httpx2,httpx2,towline.requests,requests"),
    ),
    "servers_more": (
        *("servers", "--protocol", "h1", "--interface", "asgi"),
        "-s",
        "headers_heavy,cookies_heavy,varied_paths_router,gzip_response,post_4kb_form,server_sent_events,slow_client,"
        "mixed_workload,concurrent_tasks,tls_handshake_throughput",
        *("-S", "towline,peregrine,granian", *CAPACITY),
    ),
    "engines": ("clients", "-s", "engines", "--no-control"),
    "clients_pool": ("clients", "-s", "pool_assignment,uncontended_acquire,partial_write", "--no-control"),
    "versions": (
        *("servers", "-s", "page_load", "--protocol", "h3,h2,h1", "--side-by-side", "-S", "towline"),
        *("--net", "rtt=50ms,loss=2%,packets", "--interface", "asgi", *CAPACITY),
    ),
}
"""The arguments of `towline bench` for each record, those that matter most first."""
WITHOUT_APPLICATION = frozenset({"nginx", "floor", "native"})
"""Not compared with servers that run an application."""
RESUMED_S = 6 * 3600
FLOOR_BEGIN = "<!-- distance to the floor: python -m benches.figures -->"
FLOOR_END = "<!-- end of the distance to the floor -->"
MAX_COLUMNS = 8
"""An experiment `message` with more subjects has a row for each framework."""
BACKENDS = {"async": "Asynchronous", "sync": "Blocking"}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benches.figures", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--measure",
        nargs="+",
        choices=("all", *MEASUREMENTS),
        default=[],
        metavar="TABLE",
        help=f"measure these first: all, {', '.join(MEASUREMENTS)}",
    )
    parser.add_argument(
        "--resume", action="store_true", help="leave out tables whose record is less than six hours old"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one short restart: checks the tables, gives no figures"
    )
    parser.add_argument("--subjects", metavar="NAMES", help="only these subjects")
    options = parser.parse_args(arguments)
    wanted = list(MEASUREMENTS) if "all" in options.measure else options.measure
    failed = []
    for name in wanted:
        if options.resume and is_fresh(RESULTS / f"{name}.json.gz"):
            continue
        began = time.monotonic()
        try:
            measure(name, quick=options.quick, subjects=options.subjects)
        except subprocess.CalledProcessError as error:
            if error.returncode > 128:  # interrupted: --resume goes on
                return int(error.returncode)
            failed.append(name)
        fill()
        print(f"{name}: {time.monotonic() - began:,.0f} s", file=sys.stderr)
    fill()
    if wanted:
        subprocess.run([sys.executable, str(ROOT / "scripts" / "readme_chart.py")], check=True)
    if failed:
        print(f"not measured: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def fill() -> None:
    for page in PAGES:
        page.write_text(filled(page.read_text()))


def is_fresh(path: Path) -> bool:
    if not path.exists():
        return False
    record = load(path)
    return not record.interrupted and time.time() - record.ended_unix_s < RESUMED_S


def measure(name: str, *, quick: bool = False, subjects: str | None = None) -> None:
    """Runs `towline bench` and keeps its record."""
    precise = PAGES_OF_OBJECTS if name == "versions" else PRECISE
    command = [sys.executable, "-m", "towline", "bench", *MEASUREMENTS[name], *(QUICK if quick else precise)]
    if subjects is not None:
        command[command.index("-S") + 1] = subjects
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*command, "-o", folder], check=True)
        RESULTS.joinpath(f"{name}.json.gz").write_bytes(Path(folder, FILE).read_bytes())


def filled(text: str) -> str:
    """The page with each of its tables made from its record."""
    for name in MEASUREMENTS:
        begin, end = f"<!-- figures of {name}: python -m benches.figures -->", f"<!-- end of {name} -->"
        if begin not in text:
            continue
        path = RESULTS / f"{name}.json.gz"
        if not path.exists():
            print(f"{name}: no record; its table is unchanged (--measure {name})", file=sys.stderr)
            continue
        text = replaced(text, begin, block(name, analyse(load(path))), end)
    if FLOOR_BEGIN in text and (RESULTS / "servers.json.gz").exists():
        text = replaced(text, FLOOR_BEGIN, floor(analyse(load(RESULTS / "servers.json.gz"))), FLOOR_END)
    return text


def replaced(text: str, begin: str, block: str, end: str) -> str:
    before, rest = text.split(begin)
    return f"{before}{begin}\n{block}{end}{rest.split(end)[1]}"


def floor(analysis: Analysis) -> str:
    """CPU of a hello request beyond that of the floor, divided by the instructions that callgrind counts."""
    costs = {
        (one.experiment.name, subject.name): subject.figures["cpu_us"].value
        for one in analysis.experiments
        if not one.experiment.control
        for subject in one.subjects
        if "cpu_us" in subject.figures
    }
    least = costs.get(("hello", "floor"))
    if least is None:
        return "The record of the servers has no floor: --measure servers.\n"
    rows = []
    for interface, name in (("asgi", "hello"), ("wsgi", "hello_wsgi")):
        cost = costs[name, "towline"]
        parts: dict[str, float] = instructions("instructions")[interface]["instructions"]
        ours = {group: parts.pop(group) for group in ("CPython", "Towline")}
        ours["libraries"] = sum(parts.values())
        shares = [f"{(cost - least) * n / sum(ours.values()):.2f}" for n in ours.values()]
        rows.append([interface.upper(), f"{least:.2f}", *shares, f"{cost:.2f}", f"{cost / least:.2f}"])
    head = ["hello", "floor", *ours, "in all", "in all / floor"]
    return f"CPU microseconds per request, 50 connections:\n\n{table(head, rows)}\n"


def block(name: str, analysis: Analysis) -> str:
    """The tables of a record, one for each kind of client, and their conditions."""
    experiments = [
        one
        for one in analysis.experiments
        if one.experiment.question == "capacity" and not one.experiment.control and one.experiment.slices
    ]
    record = analysis.record
    machine = f"{record.machine.get('cpu')}, {record.machine.get('cores')} cores, kernel {record.machine.get('kernel')}"
    of_pages = any(one.experiment.is_of_pages for one in experiments)
    alternating = "pages" if of_pages else "slices"
    return (
        f"{'Milliseconds of a page, on average' if of_pages else 'Requests per second'} · CPU microseconds of the subject "
        f"per request; one worker on one core, the driver on another, {alternating} of all alternating.\n\n"
        + "\n".join(tables(experiments))
        + f"\n{machine}, Towline {record.versions['towline']}, seed {record.seed}. Intervals, ratios and command lines: "
        f"`towline bench report benches/results/{name}.json.gz`.\n"
    )


def tables(experiments: Sequence[ExperimentAnalysis]) -> Iterable[str]:
    """A row for each experiment, a column for each subject; asynchronous and blocking clients apart."""
    for one in filter(is_of_frameworks, experiments):
        yield of_frameworks(one)
    experiments = [one for one in experiments if not is_of_frameworks(one)]
    backends = list(dict.fromkeys(map(backend_of, experiments)))
    for backend in backends:
        mine = [one for one in experiments if backend_of(one) == backend]
        subjects = list(dict.fromkeys(one.name for each in mine for one in each.subjects if one.figures))
        rows = [
            [each.experiment.title, *(figures(each, subject) for subject in subjects), verdict(each)]
            for each in mine
        ]
        heading = f"{BACKENDS[backend]}:\n\n" if len(backends) > 1 and backend in BACKENDS else ""
        yield heading + table(["", *subjects, "with the fastest other"], rows)


def is_of_frameworks(one: ExperimentAnalysis) -> bool:
    return one.experiment.scenario == "message" and len(one.subjects) > MAX_COLUMNS


def of_frameworks(one: ExperimentAnalysis) -> str:
    """A row for each framework, a column for each server; names are `SERVER-FRAMEWORK`."""
    names = [subject.name.partition("-") for subject in one.subjects]
    servers = list(dict.fromkeys(server for server, _, _ in names))
    rows = []
    for framework in dict.fromkeys(framework for _, _, framework in names):
        mine = {f"{server}-{framework}" for server in servers}
        part = replace(
            one.experiment,
            subjects=[subject for subject in one.experiment.subjects if subject.name in mine],
            slices=[piece for piece in one.experiment.slices if piece.subject in mine],
            baseline=f"{servers[0]}-{framework}",
        )
        found = analyse_experiment(part, f"{servers[0]}-{framework}")
        rows.append(
            [framework, *(figures(found, f"{server}-{framework}") for server in servers), verdict(found)]
        )
    return table([one.experiment.title, *servers, "with the fastest other"], rows)


def verdict(one: ExperimentAnalysis) -> str:
    """Our rate divided by that of the fastest other subject, with the interval; CPU per request if the driver was the
    limit."""
    known = {subject.name: subject.figures for subject in one.subjects if subject.failure is None}
    rates = {
        found.baseline: known[found.baseline]["per_s"] for found in one.comparisons if found.metric == "per_s"
    }
    # Few have HTTP/3: nginx is one of them.
    left_out = WITHOUT_APPLICATION - ({"nginx"} if one.experiment.load.get("protocol") == "h3" else set())
    rates = {name: rate for name, rate in rates.items() if name not in left_out}
    if not rates:
        return ""
    other = max(rates, key=lambda name: rates[name].value)
    ours = next(found.subject for found in one.comparisons)
    limited = rates[other].at_least or known[ours]["per_s"].at_least
    found = one.comparison(ours, other, "cpu_us" if limited else "per_s")
    if found is None:
        return ""
    interval = f"{found.ratio:.2f} [{found.low:.2f}, {found.high:.2f}]"
    return f"{'CPU ' if limited else ''}{interval} {other}: {found.verdict.value}"


def backend_of(one: ExperimentAnalysis) -> str:
    """`async`, `sync`, or empty for servers."""
    return next((subject.options.get("backend", "") for subject in one.experiment.subjects), "")


def figures(experiment: ExperimentAnalysis, subject: str) -> str:
    """Rate and cost of a subject; empty without a figure."""
    found = next((one for one in experiment.subjects if one.name == subject), None)
    if found is None or found.failure is not None or "per_s" not in found.figures:
        return ""
    rate, cost = found.figures["per_s"], found.figures.get("cpu_us")
    page = found.figures.get(PAGE)
    return (number(rate) if page is None else f"{page.value:,.0f} ms") + (
        f" · {cost.value:,.0f}" if cost is not None else ""
    )


def number(rate: Estimate) -> str:
    """`12.3 k` for 12,300; `≥` where the driver was the limit."""
    shown = f"{rate.value / 1000:,.1f} k" if rate.value >= 1000 else f"{rate.value:,.0f}"
    return f"≥ {shown}" if rate.at_least else shown


if __name__ == "__main__":
    sys.exit(main())
