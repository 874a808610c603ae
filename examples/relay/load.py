"""The load of the relay: every row of requests and concurrency, and whether anything failed or was lost.

`python -m examples.relay.load [--database URL] [--runs N]`, from the repository's root. It starts an upstream and
the relay as processes of their own, sends the rows one after another, waits until the relay has forwarded all,
and compares three accounts: the answers, the database, the upstream. Results go to benches/results/relay.*.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import resource
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import towline

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "benches" / "results" / "relay"
BODY = b'{"first_name":"Jony"}'
ROWS = [
    *((800, 40), (800, 80), (800, 150), (2000, 400), (3000, 600)),
    *((4000, 1000), (4000, 1500), (4000, 2500), (4000, 3500), (4000, 4000)),
]
PATIENCE = 120.0  # seconds until all must have been forwarded


@dataclass(frozen=True)
class Row:
    """One load. `lost`: accepted, and not in the database as forwarded with the upstream's answer."""

    database: str
    requests: int
    concurrency: int
    failed: int
    lost: int
    per_second: float
    p50_ms: float
    p99_ms: float
    drained_after_s: float
    errors: dict[str, int]


@contextmanager
def served(target: str, environment: dict[str, str]) -> Iterator[str]:
    """A Towline of its own on a free port; gives its base URL."""
    command = [sys.executable, "-m", "towline", "serve", target, "--port", "0"]
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"on .*?(http://127\.0\.0\.1:\d+)", line):
                break
        else:
            raise RuntimeError(f"{target} did not start")
        # Whoever does not read a pipe stops its writer.
        drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=sys.stderr.fileno())
        yield found[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    drain.wait()


class Load:
    """`requests` posts by `concurrency` callers, all of which begin at once."""

    def __init__(self, client: Any, url: str, requests: int) -> None:
        self._client = client
        self._url = url
        self._left = requests
        self.accepted: list[int] = []
        self.seconds: list[float] = []
        self.errors: Counter[str] = Counter()

    async def run(self, concurrency: int) -> float:
        begun = time.perf_counter()
        await asyncio.gather(*(self._call() for _ in range(concurrency)))
        return time.perf_counter() - begun

    async def _call(self) -> None:
        while self._left > 0:
            self._left -= 1
            begun = time.perf_counter()
            try:
                response = await self._client.post(
                    self._url, content=BODY, headers={"content-type": "application/json"}
                )
                answer = response.json() if response.status_code == 202 else {}
                if "id" in answer:
                    self.accepted.append(answer["id"])
                else:
                    self.errors[f"status {response.status_code}"] += 1
            except towline.Error as error:
                self.errors[f"{type(error).__name__}: {error}"[:200]] += 1
            self.seconds.append(time.perf_counter() - begun)


async def measure(relay: str, database: str, requests: int, concurrency: int) -> Row:
    limits = towline.Limits(
        max_connections=concurrency,
        max_connections_per_host=concurrency,
        max_keepalive_connections=concurrency,
    )
    async with towline.AsyncClient(limits=limits, timeout=towline.Timeout(60.0)) as client:
        load = Load(client, f"{relay}/api/webhooks/load-{concurrency}", requests)
        elapsed = await load.run(concurrency)
        ended = time.perf_counter()
        await drained(client, relay)
    kept = forwarded(database)
    milliseconds = sorted(seconds * 1000 for seconds in load.seconds)
    return Row(
        database.partition(":")[0] if "://" in database else "sqlite",
        requests,
        concurrency,
        failed=sum(load.errors.values()),
        lost=sum(number not in kept for number in load.accepted),
        per_second=round(requests / elapsed, 1),
        p50_ms=round(statistics.median(milliseconds), 2),
        p99_ms=round(milliseconds[int(len(milliseconds) * 0.99)], 2),
        drained_after_s=round(time.perf_counter() - ended, 3),
        errors=dict(load.errors),
    )


async def drained(client: Any, relay: str) -> None:
    """Waits until no accepted webhook is left to forward."""
    deadline = time.monotonic() + PATIENCE
    while (await client.get(f"{relay}/api/status")).json().get("accepted"):
        if time.monotonic() > deadline:
            return
        await asyncio.sleep(0.02)


def forwarded(database: str) -> set[int]:
    """The ids that the database has as forwarded, with body, duration and the upstream's answer."""
    query = (
        "SELECT id, request_body, response_body FROM webhooks"
        " WHERE state = 'forwarded' AND status = 200 AND duration > 0 AND response_headers LIKE '%x-upstream%'"
    )
    connection: Any
    if "://" in database:
        import psycopg

        connection = psycopg.connect(database)
    else:
        connection = sqlite3.connect(database)
    rows = connection.execute(query).fetchall()
    connection.close()
    return {number for number, sent, answer in rows if bytes(sent) == BODY and bytes(answer) == b"thanks"}


async def seen(upstream: str) -> dict[str, int]:
    async with towline.AsyncClient() as client:
        answer: dict[str, int] = (await client.get(f"{upstream}/seen")).json()
    return answer


def run(database: str, runs: int, rows: list[tuple[int, int]]) -> tuple[list[Row], dict[str, int]]:
    with served("examples.relay.upstream:app", {}) as upstream:
        environment = {"RELAY_UPSTREAM": f"{upstream}/hooks", "RELAY_DATABASE": database}
        with served("examples.relay.app:app", environment) as relay:
            measured = []
            for requests, concurrency in rows * runs:
                row = asyncio.run(measure(relay, database, requests, concurrency))
                print(line(row), flush=True)
                measured.append(row)
            return measured, asyncio.run(seen(upstream))


def line(row: Row) -> str:
    cells = (row.database, row.requests, row.concurrency, row.failed, row.lost, f"{row.per_second:,.0f}")
    return "| " + " | ".join(map(str, (*cells, row.p50_ms, row.p99_ms, row.drained_after_s))) + " |"


def write(rows: list[Row], upstreams: dict[str, dict[str, int]]) -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    context = {
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
    }
    kept = {"context": context, "upstream": upstreams, "rows": [asdict(row) for row in rows]}
    RESULTS.with_suffix(".json").write_text(json.dumps(kept, indent=1) + "\n")
    accounts = [
        f"- {name}: {it['different']} different webhooks reached the upstream, {it['again']} of them more than"
        f" once, {it['wrong']} with another body"
        for name, it in upstreams.items()
    ]
    text = [
        "# The relay under load",
        "",
        "Written by `python -m examples.relay.load`. Load, relay and upstream share the machine. Failed: not answered",
        "with 202. Lost: accepted, and not in the database as forwarded. Drained: seconds from the last answer until",
        "all were forwarded.",
        "",
        "| database | requests | concurrency | failed | lost | requests/s | p50, ms | p99, ms | drained, s |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *map(line, rows),
        "",
        *accounts,
        "",
        ", ".join(f"{name} {value}" for name, value in context.items()),
    ]
    RESULTS.with_suffix(".md").write_text("\n".join(text) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--database", action="append", help="a postgresql:// URL or a path; may be given again"
    )
    parser.add_argument("--runs", type=int, default=1, help="how often all rows are sent")
    parser.add_argument("--keep", action="store_true", help="write benches/results/relay.*")
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65_536)), hard))
    rows: list[Row] = []
    upstreams = {}
    with tempfile.TemporaryDirectory() as folder:
        for database in options.database or [f"{folder}/relay.sqlite"]:
            measured, upstreams[measured_name(database)] = run(database, options.runs, ROWS)
            rows += measured
    if options.keep:
        write(rows, upstreams)
    bad = [row for row in rows if row.failed or row.lost]
    print(
        json.dumps(upstreams),
        "all forwarded, none failed, none lost" if not bad else f"{len(bad)} rows are bad",
    )
    return 1 if bad else 0


def measured_name(database: str) -> str:
    return database.partition(":")[0] if "://" in database else "sqlite"


if __name__ == "__main__":
    sys.exit(main())
