"""Compares the load generator with others: `python -m benches.generators [--only speed,http3] [--rounds 12]`.

One core for the generator, 64 connections, the native responder on the other core. Each round runs a slice of every
generator in a new random order; ratios are paired by round, with t-intervals of their logarithms over rounds. The cost
is what the system counts for the generator's process: CPU time per request, resident memory over a minute of load.
Goals: 1.2 times the rate of wrk and 1.7 times that of oha, less CPU time per request than both, constant memory.

wrk is also compared at 64, 500 and 5,000 connections, to the responder and to nginx (`--wrk-rounds`), in slices of two
seconds: wrk connects within its measured time, which costs it more with many connections, and the rate of an nginx that
is busy all the time is its own and not the generator's; so compare the CPU time, too.

HTTP/2 is compared with h2load: 8 connections with 1, 10 and 100 streams each, by prior knowledge. Goals: 1.3, 2 and 2
times its rate. The rate depends on the responder as much as on the generator, so compare the CPU time.

HTTP/3 is compared with oha (`cargo install oha --locked --features http3`; `--oha PATH` or the variable OHA names it) in the
same way, over TLS. It does not end by time there, so it sends a number of requests. At its end it waits 30 s for the server
to close, so its rate is taken as its concurrent requests divided by their mean latency: at least what it reaches. Goal: its
rate at least.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import random
import re
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from towline.bench.runner.design import Cores
from towline.bench.statistics import t_interval
from towline.bench.subjects import make_certificate

from benches import report

ROOT = Path(__file__).resolve().parent.parent
RESPONDER = ROOT / "target/release/towline-responder"
OURS = "towline-load"
CONNECTIONS = 64
GOALS = {"wrk": 1.2, "oha": 1.7}
WRK_CONNECTIONS = (64, 500, 5000)
WRK_SECONDS = 2
"""wrk takes whole seconds only."""
H2_CONNECTIONS = 8
H2_GOALS = {1: 1.3, 10: 2.0, 100: 2.0}
H3_GOALS = {1: 1.0, 10: 1.0, 100: 1.0}
OHA_REQUESTS = 30_000
PARTS = ("speed", "wrk", "http2", "http3", "memory")


@dataclass(frozen=True)
class Tool:
    """A generator: its command line for a run of some seconds, and the parser of its output."""

    name: str
    program: str
    arguments: tuple[str, ...]
    read: Callable[[str], tuple[float, int]]
    """Parses its output into requests per second and total requests; successful ones only, if it reports them."""
    mean_s: Callable[[str], float] | None = None
    """Parses the mean latency, of a generator whose rate is not that of its requests."""

    def command(self, seconds: int, url: str, streams: int = 1, connections: int = CONNECTIONS) -> list[str]:
        """`streams`: concurrent streams on each connection, for tools with HTTP/2."""
        output = {"c": connections, "s": seconds, "h": H2_CONNECTIONS, "m": streams}
        return [self.program, *(part.format(**output) for part in self.arguments), url]


def read_ours(text: str) -> tuple[float, int]:
    found = json.loads(text)
    if any(found["errors"].values()):
        raise ValueError(f"errors: {found['first_failure']}")
    return found["requests_per_s"], found["answered"]


def read_oha(text: str) -> tuple[float, int]:
    found = json.loads(text)
    return found["summary"]["requestsPerSec"], found["statusCodeDistribution"]["200"]


def read_bombardier(text: str) -> tuple[float, int]:
    found = json.loads(text)["result"]
    return found["req2xx"] / found["timeTakenSeconds"], found["req2xx"]


def read_h2load(text: str) -> tuple[float, int]:
    rate = re.search(r"finished in .*?, ([0-9.]+) req/s", text)
    counts = re.search(r"(\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout", text)
    if rate is None or counts is None or any(map(int, counts.groups()[1:])):
        raise ValueError(f"no figures, or errors, in {text!r}")
    return float(rate[1]), int(counts[1])


def read_text(total: str) -> Callable[[str], tuple[float, int]]:
    def read(text: str) -> tuple[float, int]:
        rate, count = re.search(r"Requests/sec:\s+([0-9.]+)", text), re.search(total, text)
        if rate is None or count is None:
            raise ValueError(f"no figures in {text!r}")
        return float(rate[1]), int(count[1])

    return read


TOOLS = (
    Tool(OURS, str(ROOT / "target/release/towline-load"), ("-c", "{c}", "-d", "{s}s", "--json"), read_ours),
    Tool("wrk", "wrk", ("-t1", "-c{c}", "-d{s}s"), read_text(r"(\d+) requests in")),
    Tool("oha", "oha", ("--no-tui", "--output-format", "json", "-c", "{c}", "-z", "{s}s"), read_oha),
    Tool(
        "bombardier",
        "bombardier",
        ("-c", "{c}", "-d", "{s}s", "-o", "json", "-p", "r"),
        read_bombardier,
    ),
    Tool("hey", "hey", ("-c", "{c}", "-z", "{s}s", "-cpus", "1"), read_text(r"\[200\]\s+(\d+) responses")),
)

H2_TOOLS = (
    Tool(OURS, TOOLS[0].program, ("--http2", "-c", "{h}", "-m", "{m}", "-d", "{s}s", "--json"), read_ours),
    Tool("h2load", "h2load", ("-c", "{h}", "-m", "{m}", "-D", "{s}"), read_h2load),
)

H3_TOOLS = (
    Tool(OURS, TOOLS[0].program, ("--http3", "-c", "{h}", "-m", "{m}", "-d", "{s}s", "--json"), read_ours),
    Tool(
        "oha",
        "oha",
        (
            *("--no-tui", "--output-format", "json", "--http-version", "3", "--insecure"),
            *("-c", "{h}", "-p", "{m}", "-n", str(OHA_REQUESTS)),
        ),
        read_oha,
        lambda text: float(json.loads(text)["summary"]["average"]),
    ),
)

HINTS = {OURS: ": cargo build --release -p towline-load", "oha": ": --oha PATH names it"}
"""Where a program comes from."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benches.generators", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=int, default=1, help="of each slice; wrk takes whole seconds only")
    parser.add_argument(
        "--wrk-rounds",
        type=int,
        default=8,
        help="compared with wrk, for each server and number of connections",
    )
    parser.add_argument("--memory-seconds", type=int, default=60, help="of load while memory is sampled")
    parser.add_argument(
        "--http2-rounds", type=int, default=8, help="beside h2load, for each number of streams"
    )
    parser.add_argument("--http3-rounds", type=int, default=5, help="the same beside oha; 100 s each")
    parser.add_argument("--tools", default=",".join(tool.name for tool in TOOLS))
    parser.add_argument("--oha", default=os.environ.get("OHA", "oha"), metavar="PATH", help="its program")
    parser.add_argument("--only", default=",".join(PARTS), metavar="PARTS", help=f"of {','.join(PARTS)}")
    parser.add_argument("--no-save", dest="save", action="store_false", help="leave benches/results/ alone")
    options = parser.parse_args()
    parts, names = options.only.split(","), options.tools.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--only: no part is called {', '.join(sorted(unknown))}")
    all_tools, h3_tools = with_oha(TOOLS, options.oha), with_oha(H3_TOOLS, options.oha)
    uses_tools = {"speed", "memory"} & set(parts)
    tools = [tool for tool in all_tools if uses_tools and tool.name in names and is_installed(tool)]
    if options.rounds and "speed" in parts:
        found = speed(tools, options.rounds, options.seconds)
        print_speed(found)
        save("speed", found, options.save)
    if options.wrk_rounds and "wrk" in parts and shutil.which("wrk"):
        found = speed_wrk(options.wrk_rounds)
        for name, part in found["cells"].items():
            print(name)
            print_speed(part)
        save("wrk", found, options.save)
    if options.http2_rounds and "http2" in parts and all(map(is_installed, H2_TOOLS)):
        found = speed_by_streams(H2_TOOLS, H2_GOALS, options.http2_rounds, options.seconds)
        for streams, part in found["streams"].items():
            print(f"{streams} streams")
            print_speed(part)
        save("http2", found, options.save)
    if (
        options.http3_rounds
        and "http3" in parts
        and all(map(is_installed, h3_tools))
        and has_http3(h3_tools[1])
    ):
        found = speed_by_streams(h3_tools, H3_GOALS, options.http3_rounds, options.seconds, http3=True)
        for streams, part in found["streams"].items():
            print(f"HTTP/3, {streams} streams")
            print_speed(part)
        save("http3", found, options.save)
    if options.memory_seconds and "memory" in parts:
        found = memory(tools, options.memory_seconds)
        print(json.dumps(found["figures"], indent=1))
        save("memory", found, options.save)
    return 0


def is_installed(tool: Tool) -> bool:
    if shutil.which(tool.program):
        return True
    hint = HINTS.get(tool.name, "")
    print(f"{tool.name} is not installed and is left out{hint}", file=sys.stderr)
    return False


def with_oha(tools: Sequence[Tool], program: str) -> list[Tool]:
    return [replace(tool, program=program) if tool.name == "oha" else tool for tool in tools]


def has_http3(oha: Tool) -> bool:
    """Whether this oha was built with HTTP/3: another one refuses the version before it connects."""
    command = [oha.program, "--http-version", "3", "--no-tui", "-n", "0", "https://127.0.0.1:9/"]
    tried = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if "not been built with HTTP/3" not in tried.stderr:
        return True
    print("oha has no HTTP/3: cargo install oha --locked --features http3", file=sys.stderr)
    return False


@contextmanager
def responder(*, http3: bool = False) -> Iterator[tuple[str, list[str]]]:
    """Yields the URL of a new responder on one core, and the command prefix that pins a generator to the other."""
    cores = Cores.divided()
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [*pinned(cores.subject), str(RESPONDER), *(_http3(Path(folder)) if http3 else ())],
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            # The first line of the responder has the address.
            port = re.findall(r"\d+", process.stdout.readline())[-1]
            yield f"http{'s' if http3 else ''}://127.0.0.1:{port}/", pinned(cores.driver)
        finally:
            process.terminate()


def _http3(folder: Path) -> list[str]:
    cert, key = make_certificate(folder).tls
    return ["--http3", "--cert", str(cert), "--key", str(key)]


NGINX = """\
daemon off;
worker_processes 1;
worker_rlimit_nofile 20000;
error_log {folder}/error.log;
pid {folder}/nginx.pid;
events {{ worker_connections 10000; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    server {{
        listen 127.0.0.1:{port} backlog=8192;
        location / {{ default_type text/plain; return 200 "Hello, World!"; }}
    }}
}}
"""


@contextmanager
def nginx() -> Iterator[tuple[str, list[str]]]:
    """Like `responder`, with one worker of nginx."""
    cores = Cores.divided()
    with tempfile.TemporaryDirectory() as folder:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
        config = Path(folder, "nginx.conf")
        config.write_text(NGINX.format(folder=folder, port=port))
        command = ["nginx", "-e", f"{folder}/error.log", "-p", folder, "-c", str(config)]
        with subprocess.Popen([*pinned(cores.subject), *command]) as process:
            try:
                wait_for_port(port)
                yield f"http://127.0.0.1:{port}/", pinned(cores.driver)
            finally:
                process.terminate()


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def pinned(cores: tuple[int, ...] | None) -> list[str]:
    if cores is None or shutil.which("taskset") is None:
        return []
    return ["taskset", "-c", ",".join(map(str, cores))]


def speed(tools: list[Tool], rounds: int, seconds: int) -> dict[str, Any]:
    slices: dict[str, list[dict[str, float]]] = {tool.name: [] for tool in tools}
    with responder() as (url, pin):
        for tool in tools:
            one_slice(tool, 1, url, pin)
        for number in range(rounds):
            for tool in random.sample(tools, len(tools)):
                slices[tool.name].append(one_slice(tool, seconds, url, pin))
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return described(
        {"rounds": rounds, "seconds": seconds, "connections": CONNECTIONS},
        figures={name: of_tool(found, slices[OURS]) for name, found in slices.items()},
        slices=slices,
    )


def speed_wrk(rounds: int) -> dict[str, Any]:
    """Ratios to wrk alone, by server and number of connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    tools = [tool for tool in TOOLS if tool.name in (OURS, "wrk")]
    servers = {"responder": responder}
    if shutil.which("nginx"):
        servers["nginx"] = nginx
    cells: dict[str, Any] = {}
    for name, server in servers.items():
        for connections in WRK_CONNECTIONS:
            slices: dict[str, list[dict[str, float]]] = {tool.name: [] for tool in tools}
            with server() as (url, pin):
                for _ in range(rounds):
                    for tool in random.sample(tools, len(tools)):
                        found = one_slice(tool, WRK_SECONDS, url, pin, connections=connections)
                        slices[tool.name].append(found)
            figures = {tool: of_tool(found, slices[OURS]) for tool, found in slices.items()}
            cells[f"{name}, {connections} connections"] = {"figures": figures, "slices": slices}
            print(f"{name}, {connections} connections", file=sys.stderr)
    return described({"rounds": rounds, "seconds": WRK_SECONDS}, cells=cells)


def speed_by_streams(
    tools: Sequence[Tool], goals: dict[int, float], rounds: int, seconds: int, *, http3: bool = False
) -> dict[str, Any]:
    """Rates and CPU times with streams: over HTTP/2 compared with h2load, over HTTP/3 with oha."""
    slices: dict[int, dict[str, list[dict[str, float]]]] = {
        streams: {tool.name: [] for tool in tools} for streams in goals
    }
    with responder(http3=http3) as (url, pin):
        for number in range(rounds):
            for streams in goals:
                for tool in random.sample(tools, len(tools)):
                    slices[streams][tool.name].append(one_slice(tool, seconds, url, pin, streams))
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
    plan = {"rounds": rounds, "seconds": seconds, "connections": H2_CONNECTIONS}
    parts = {
        str(streams): {
            "figures": {name: of_tool(peer, found[OURS]) for name, peer in found.items()},
            "slices": found,
        }
        for streams, found in slices.items()
    }
    return described(plan, streams=parts)


def one_slice(
    tool: Tool, seconds: int, url: str, pin: list[str], streams: int = 1, connections: int = CONNECTIONS
) -> dict[str, float]:
    command = [*pin, *tool.command(seconds, url, streams, connections)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    text = process.stdout.read()
    # wait4 returns the usage of this child alone.
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    if process.returncode != 0:
        raise SystemExit(f"{tool.name} ended with status {process.returncode}")
    per_s, requests = tool.read(text)
    if tool.mean_s is not None:
        per_s = H2_CONNECTIONS * streams / tool.mean_s(text)
    cpu_s = usage.ru_utime + usage.ru_stime
    return {"requests_per_s": per_s, "cpu_us": cpu_s * 1e6 / requests, "peak_mib": usage.ru_maxrss / 1024}


def of_tool(peer: list[dict[str, float]], ours: list[dict[str, float]]) -> dict[str, Any]:
    """Medians, and ratios of ours to the peer: above 1, ours is faster, or costs more."""
    entry: dict[str, Any] = {
        key: round(statistics.median(one[key] for one in peer), 2) for key in ("requests_per_s", "cpu_us")
    }
    if peer is not ours:
        for key, name in (("requests_per_s", "rate_ratio"), ("cpu_us", "cpu_ratio")):
            logs = [math.log(a[key] / b[key]) for a, b in zip(ours, peer, strict=True)]
            found = t_interval(logs)
            entry[name] = [round(math.exp(value), 3) for value in (found.mean, found.low, found.high)]
    return entry


def memory(tools: list[Tool], seconds: int) -> dict[str, Any]:
    """Resident memory near the beginning and at the end of a minute of load."""
    figures: dict[str, Any] = {}
    with responder() as (url, pin):
        for tool in (tool for tool in tools if tool.name in (OURS, *GOALS)):
            process = subprocess.Popen([*pin, *tool.command(seconds, url)], stdout=subprocess.DEVNULL)
            seen = []
            while process.poll() is None:
                time.sleep(1)
                seen.append(resident_mib(process.pid))
            # The first second is start-up, the last ones are the report.
            kept = [mib for mib in seen[1:-2] if mib]
            figures[tool.name] = {"begin_mib": round(kept[0], 1), "end_mib": round(kept[-1], 1)}
    return described({"seconds": seconds, "connections": CONNECTIONS}, figures=figures)


def resident_mib(pid: int) -> float:
    try:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found else 0.0


def described(plan: dict[str, Any], **found: Any) -> dict[str, Any]:
    return {
        "date": datetime.date.today().isoformat(),
        "machine": report.machine(),
        "plan": plan,
        **found,
    }


def print_speed(found: dict[str, Any]) -> None:
    for name, entry in found["figures"].items():
        ratios = [f"{key} {entry[key]}" for key in ("rate_ratio", "cpu_ratio") if key in entry]
        print(f"{name:<14}{entry['requests_per_s']:>10.0f}/s {entry['cpu_us']:>7.2f} us  {'  '.join(ratios)}")


def save(part: str, found: dict[str, Any], names: bool) -> None:
    if not names:
        return
    report.save("generators", {part: found})
    (report.RESULTS / "generators.md").write_text(table(report.load("generators")))


def table(kept: dict[str, Any]) -> str:
    lines = [
        "# Load generators",
        "",
        "Made by `python -m benches.generators`; a ratio is the figure of towline-load divided by that of the other generator.",
    ]
    if speed := kept.get("speed"):
        plan = speed["plan"]
        lines += [
            "",
            f"{speed['date']}, {speed['machine']['cpu']}: one core, {plan['connections']} connections, "
            f"{plan['rounds']} rounds of {plan['seconds']} s slices.",
            "",
            "| generator | requests/s | rate ratio | CPU us/request | CPU ratio | goal |",
            "|---|---|---|---|---|---|",
        ]
        for name, entry in speed["figures"].items():
            goal = f"rate {GOALS[name]}, CPU below 1" if name in GOALS else ""
            rate, cpu = (interval(entry.get(key)) for key in ("rate_ratio", "cpu_ratio"))
            lines.append(
                f"| {name} | {entry['requests_per_s']:,.0f} | {rate} | {entry['cpu_us']:.2f} | {cpu} | {goal} |"
            )
    if wrk := kept.get("wrk"):
        lines += table_wrk(wrk)
    if http2 := kept.get("http2"):
        lines += table_by_streams("HTTP/2", "h2load", H2_GOALS, http2)
    if http3 := kept.get("http3"):
        lines += table_by_streams("HTTP/3", "oha", H3_GOALS, http3)
    if memory := kept.get("memory"):
        lines += [
            "",
            f"Resident memory over {memory['plan']['seconds']} s of load:",
            "",
            "| generator | begin, MiB | end, MiB |",
            "|---|---|---|",
        ]
        for name, entry in memory["figures"].items():
            lines.append(f"| {name} | {entry['begin_mib']} | {entry['end_mib']} |")
    return "\n".join(lines) + "\n"


def table_wrk(wrk: dict[str, Any]) -> list[str]:
    plan = wrk["plan"]
    lines = [
        "",
        f"wrk by server and connections, {wrk['date']}, {wrk['machine']['cpu']}: one core, {plan['rounds']} rounds of {plan['seconds']} s slices.",
        "",
        "| server | towline-load, requests/s | wrk, requests/s | rate ratio | towline-load, CPU us/request | wrk, CPU us/request "
        "| CPU ratio | goal |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, part in wrk["cells"].items():
        ours, peer = part["figures"][OURS], part["figures"]["wrk"]
        rate, cpu = (interval(peer.get(key)) for key in ("rate_ratio", "cpu_ratio"))
        lines.append(
            f"| {name} | {ours['requests_per_s']:,.0f} | {peer['requests_per_s']:,.0f} | {rate} "
            f"| {ours['cpu_us']:.2f} | {peer['cpu_us']:.2f} | {cpu} | rate {GOALS['wrk']}, CPU below 1 |"
        )
    return lines


def table_by_streams(
    version: str, peer_name: str, goals: dict[int, float], kept: dict[str, Any]
) -> list[str]:
    plan = kept["plan"]
    lines = [
        "",
        f"{version}, {kept['date']}, {kept['machine']['cpu']}: one core, {plan['connections']} connections, "
        f"{plan['rounds']} rounds of {plan['seconds']} s slices.",
        "",
        f"| streams | towline-load, requests/s | {peer_name}, requests/s | rate ratio | towline-load, CPU us/request "
        f"| {peer_name}, CPU us/request | CPU ratio | goal |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for streams, part in kept["streams"].items():
        ours, peer = part["figures"][OURS], part["figures"][peer_name]
        rate, cpu = (interval(peer.get(key)) for key in ("rate_ratio", "cpu_ratio"))
        lines.append(
            f"| {streams} | {ours['requests_per_s']:,.0f} | {peer['requests_per_s']:,.0f} | {rate} "
            f"| {ours['cpu_us']:.2f} | {peer['cpu_us']:.2f} | {cpu} | rate {goals[int(streams)]} |"
        )
    return lines


def interval(found: list[float] | None) -> str:
    return f"{found[0]:.2f} [{found[1]:.2f}, {found[2]:.2f}]" if found else ""


if __name__ == "__main__":
    sys.exit(main())
