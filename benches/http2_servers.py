"""Compares the native responder with nginx and nghttpd over HTTP/2: `python -m benches.http2_servers [--rounds 6]`.

h2load runs on one core with 8 connections of 1 and 16 streams each; the servers share the other core and are measured
in a new random order each round. The response is seven bytes of text. The rate depends on the client too, so compare
the CPU time of the server per request.
"""

from __future__ import annotations

import argparse
import math
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from towline.bench.runner.design import Cores
from towline.bench.statistics import t_interval
from towline.bench.subjects.ports import free_port, is_free

from benches import report
from benches.generators import H2_TOOLS, RESPONDER, described, interval, one_slice, pinned

OURS = "towline-responder"
STREAMS = (1, 16)
BODY = "alive\r\n"
NGINX = """
daemon off; master_process off; worker_processes 1; pid {folder}/pid; error_log {folder}/errors;
events {{ worker_connections 1024; }}
http {{
    access_log off; keepalive_requests 1000000000; keepalive_timeout 3600; http2_max_concurrent_streams 256;
    server {{ listen 127.0.0.1:{port} http2; location / {{ default_type text/plain; return 200 "alive\\r\\n"; }} }}
}}
"""


@dataclass(frozen=True)
class Server:
    """A running server."""

    pid: int
    url: str

    def cpu_s(self) -> float:
        """CPU time of all its threads so far."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benches.http2_servers", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=int, default=1, help="of each slice")
    parser.add_argument("--no-save", dest="save", action="store_false", help="leave benches/results/ alone")
    options = parser.parse_args()
    missing = [name for name in ("nginx", "nghttpd", "h2load", str(RESPONDER)) if shutil.which(name) is None]
    if missing:
        print(f"not installed: {', '.join(missing)}", file=sys.stderr)
        return 2
    found = measure(options.rounds, options.seconds)
    text = table(found)
    print(text)
    if options.save:
        report.save("http2_servers", found, replace=True)
        (report.RESULTS / "http2_servers.md").write_text(text)
    return 0


def measure(rounds: int, seconds: int) -> dict[str, Any]:
    cores = Cores.divided()
    h2load = H2_TOOLS[1]
    slices: dict[int, dict[str, list[dict[str, float]]]] = {streams: {} for streams in STREAMS}
    with servers(pinned(cores.subject)) as all_of_them:
        for _ in range(rounds):
            for streams in STREAMS:
                for name in random.sample(sorted(all_of_them), len(all_of_them)):
                    server, before = all_of_them[name], all_of_them[name].cpu_s()
                    one = one_slice(h2load, seconds, server.url, pinned(cores.driver), streams)
                    # h2load counts until the end of its time; few requests are in flight then.
                    requests = one["requests_per_s"] * seconds
                    cpu_us = (server.cpu_s() - before) * 1e6 / requests
                    kept = {"requests_per_s": one["requests_per_s"], "server_cpu_us": cpu_us}
                    slices[streams].setdefault(name, []).append(kept)
    return described({"rounds": rounds, "seconds": seconds, "connections": 8}, slices=slices)


@contextmanager
def servers(pin: list[str]) -> Iterator[dict[str, Server]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "index.html").write_text(BODY, newline="")
        (folder / "logs").mkdir()
        ports = {name: free_port() for name in ("nginx", "nghttpd")}
        (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=ports["nginx"]))
        commands = {
            OURS: [str(RESPONDER)],
            "nginx": ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")],
            "nghttpd": ["nghttpd", "--no-tls", "-n1", "-d", str(folder), str(ports["nghttpd"])],
        }
        running: dict[str, Server] = {}
        for name, command in commands.items():
            process = stack.enter_context(
                subprocess.Popen(
                    [*pin, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
                )
            )
            stack.callback(process.terminate)
            if name == OURS:
                assert process.stdout is not None
                port = int(re.findall(r"\d+", process.stdout.readline())[-1])
            else:
                port = ports[name]
                await_port(port)
            running[name] = Server(process.pid, f"http://127.0.0.1:{port}/")
        yield running


def await_port(port: int) -> None:
    for _ in range(100):
        if not is_free(port):
            return
        time.sleep(0.05)
    raise SystemExit(f"nothing listens on port {port}")


def table(found: dict[str, Any]) -> str:
    plan = found["plan"]
    lines = [
        "# HTTP/2 servers",
        "",
        "Made by `python -m benches.http2_servers`: h2load on one core, the servers on another.",
        "",
        f"{found['date']}, {found['machine']['cpu']}: {plan['connections']} connections, {plan['rounds']} rounds "
        f"of {plan['seconds']} s slices.",
        "",
        "| streams | server | requests/s | CPU us/request | CPU ratio (it / responder) | rate ratio (responder / it) |",
        "|---|---|---|---|---|---|",
    ]
    for streams, by_name in found["slices"].items():
        ours = by_name[OURS]
        for name, peer in sorted(by_name.items(), key=lambda item: item[0] != OURS):
            rate, cpu = (
                statistics.median(one[key] for one in peer) for key in ("requests_per_s", "server_cpu_us")
            )
            ratios = ["", ""]
            if name != OURS:
                ratios = [
                    ratio(peer, ours, "server_cpu_us"),
                    ratio(ours, peer, "requests_per_s"),
                ]
            lines.append(f"| {streams} | {name} | {rate:,.0f} | {cpu:.2f} | {ratios[0]} | {ratios[1]} |")
    return "\n".join(lines) + "\n"


def ratio(some: list[dict[str, float]], others: list[dict[str, float]], key: str) -> str:
    """Ratio of the first to the second, paired by round."""
    found = t_interval([math.log(a[key] / b[key]) for a, b in zip(some, others, strict=True)])
    return interval([math.exp(value) for value in (found.mean, found.low, found.high)])


if __name__ == "__main__":
    sys.exit(main())
