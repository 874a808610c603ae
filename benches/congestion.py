"""Congestion control over emulated networks: `python -m benches.congestion [--net TEXT]... [--rounds N] [--output FILE]` (Linux, root).

Subjects are HTTP/3 with each `--http3-congestion`, and HTTP/1.1 over TLS with CUBIC and BBR of the kernel's TCP (one connection).
Each network is an interface of its own that delays, loses and queues whole packets (`towline.bench.netem` with `packets`). In each round,
every subject transfers each size on a new connection; the order is random. A page is 100 responses of 16 KiB at once on one new
connection, over HTTP/3 and HTTP/2. `--share SECONDS`: instead, a download of each subject beside one of TCP with CUBIC through the same queue.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import platform
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import towline
from towline.bench import netem
from towline.bench.subjects import make_certificate

NETS = ("rtt=50ms,loss=2%",)
SIZES = {"100 kB": 100_000, "1 MB": 1_000_000, "10 MB": 10_000_000}
PAGE = "page"
PAGE_RESPONSES, PAGE_BYTES = 100, 16 * 1024
TIMEOUT_S = 120.0
WINDOWS = {"stream_window": 8 << 20, "max_stream_window": 8 << 20}
"""As much as the kernel's TCP grants: the receiver is never the limit."""


@dataclass(frozen=True)
class Subject:
    name: str
    tcp: str
    """The kernel's algorithm for the server's connections."""
    http3: str | None = None
    port: int = 0


SUBJECTS = (
    Subject("h3 cubic", "cubic", "cubic"),
    Subject("h3 bbr", "cubic", "bbr"),
    Subject("tcp cubic", "cubic"),
    Subject("tcp bbr", "bbr"),
)


def serve(subject: Subject, certificate: tuple[str, str]) -> subprocess.Popen[bytes]:
    chain, key = certificate
    command = [
        sys.executable,
        "-m",
        "towline",
        "serve",
        "downloads:app",
        "--app-dir",
        "benches/apps",
        "--no-access-log",
    ]
    command += ["--ssl-certfile", chain, "--ssl-keyfile", key]
    with socket.create_server(("0.0.0.0", 0 if subject.http3 else subject.port), backlog=100) as listener:
        if subject.http3:
            command += ["--bind", f"0.0.0.0:{subject.port}", "--http3", "--http3-congestion", subject.http3]
        else:
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, subject.tcp.encode())
            command += ["--fd", str(listener.fileno())]
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(command, stdout=quiet, stderr=quiet, pass_fds=[listener.fileno()])
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", subject.port), 1).close()
            break
        except OSError:
            time.sleep(0.05)
    return process


def options(subject: Subject, what: str) -> dict[str, Any]:
    if subject.http3:
        return WINDOWS | {"http1": False, "http3": True}
    return WINDOWS | {"http1": what != PAGE, "http2": what == PAGE}


def transfer(subject: Subject, host: str, what: str) -> float:
    """Seconds from the dial to the last byte."""
    base = f"https://{host}:{subject.port}"
    began = time.perf_counter()
    if what == PAGE:
        asyncio.run(page(subject, base))
    else:
        with towline.Client(verify=False, timeout=TIMEOUT_S, **options(subject, what)) as client:
            size = SIZES[what]
            assert len(client.get(f"{base}/{size}").content) == size
    return time.perf_counter() - began


async def page(subject: Subject, base: str) -> None:
    async with towline.AsyncClient(verify=False, timeout=TIMEOUT_S, **options(subject, PAGE)) as client:
        calls = (client.get(f"{base}/{PAGE_BYTES}") for _ in range(PAGE_RESPONSES))
        for response in await asyncio.gather(*calls):
            assert len(response.content) == PAGE_BYTES


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Geometric mean of ratios and its 95 % interval (normal, of their logarithms)."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    half = 2.1 * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def measure(
    text: str, subjects: list[Subject], what: list[str], rounds: int, seed: int
) -> list[dict[str, Any]]:
    conditions = replace(netem.parse(text), packets=True)
    times: dict[tuple[str, str], list[float]] = {}
    order = [(subject, one) for subject in subjects for one in what]
    chance = random.Random(seed)
    with ExitStack() as stack:
        hosts = {
            subject: stack.enter_context(netem.Netem(f"127.0.0.1:{subject.port}", conditions, seed=seed)).host
            for subject in subjects
        }
        for _ in range(rounds):
            chance.shuffle(order)
            for subject, one in order:
                times.setdefault((subject.name, one), []).append(transfer(subject, hosts[subject], one))
    rows: list[dict[str, Any]] = []
    for one in what:
        row: dict[str, Any] = {"net": text, "what": one, "times": {}}
        for subject in subjects:
            found = times[subject.name, one]
            row["times"][subject.name] = found
        rows.append(row)
        cells = [f"{name} {statistics.median(found):.2f} s" for name, found in row["times"].items()]
        for other in ("tcp bbr", "h3 cubic"):
            mine, theirs = times.get(("h3 bbr", one)), times.get((other, one))
            if mine and theirs:
                mean, low, high = interval([b / a for a, b in zip(mine, theirs, strict=True)])
                cells.append(f"h3 bbr / {other} {mean:.2f} [{low:.2f}, {high:.2f}]")
        print(f"{text:40} {one:7} " + " | ".join(cells), flush=True)
    return rows


@dataclass
class Download:
    """An endless download in a thread of its own."""

    subject: Subject
    host: str
    count: int = 0
    is_over: bool = False

    def run(self) -> None:
        with (
            towline.Client(verify=False, timeout=TIMEOUT_S, **options(self.subject, "")) as client,
            client.stream("GET", f"https://{self.host}:{self.subject.port}/{10**12}") as response,
        ):
            for piece in response.iter_bytes():
                self.count += len(piece)
                if self.is_over:
                    return


def share(text: str, subjects: list[Subject], seconds: float, seed: int) -> list[dict[str, Any]]:
    """Bytes of a subject and of TCP with CUBIC, each with an endless download, after a start of two seconds."""
    conditions = replace(netem.parse(text), packets=True)
    rival = next(one for one in subjects if one.name == "tcp cubic")
    rows: list[dict[str, Any]] = []
    for subject in subjects:
        # One interface; packets to another port than the subject's share the direction of the responses, as acknowledgements may.
        with netem.Netem(f"127.0.0.1:{subject.port}", conditions, seed=seed) as network:
            both = [Download(rival, network.host), Download(subject, network.host)]
            threads = [threading.Thread(target=one.run, daemon=True) for one in both]
            for thread in threads:
                thread.start()
            time.sleep(2)
            before = [one.count for one in both]
            time.sleep(seconds)
            cubic, own = (one.count - earlier for one, earlier in zip(both, before, strict=True))
            for one in both:
                one.is_over = True
            for thread in threads:
                thread.join(10)
        part, rate = own / ((cubic + own) or 1), (cubic + own) * 8 / seconds / 1e6
        rows.append({"net": text, "subject": subject.name, "share": part, "mbit_per_s": rate})
        print(f"{text:40} {subject.name:10} beside tcp cubic: {part:.0%} of {rate:.1f} Mbit/s", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--net", action="append", help=f"network, repeatable (default: {', '.join(NETS)})".replace("%", "%%")
    )
    parser.add_argument(
        "--what", default="1 MB,10 MB,page", help=f"of {', '.join((*SIZES, PAGE))}, by commas"
    )
    parser.add_argument("--only", default="", help="names of subjects, by commas")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--share", type=float, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--output", type=Path, help="JSON of all times")
    given = parser.parse_args()
    netem.isolate()
    available = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    only = [name for name in given.only.split(",") if name]
    chosen = [one for one in SUBJECTS if one.tcp in available and (not only or one.name in only)]
    subjects = [replace(one, port=4400 + 7 * number) for number, one in enumerate(chosen)]
    rows: list[dict[str, Any]] = []
    print(
        f"kernel {platform.release()}, TCP has {', '.join(available)}, {os.cpu_count()} cores, seed {given.seed}",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        made = make_certificate(Path(folder))
        certificate = (str(made.certificate), str(made.key))
        for subject in subjects:
            process = serve(subject, certificate)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        for text in given.net or NETS:
            if given.share:
                rows += share(text, subjects, given.share, given.seed)
            else:
                rows += measure(text, subjects, given.what.split(","), given.rounds, given.seed)
    if given.output:
        given.output.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
