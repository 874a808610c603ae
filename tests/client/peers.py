"""Behaviour of other clients with the malicious server: `python -m tests.client.peers [--subjects a,b] [--scripts x,y]`.

Recorded, not asserted: benches/results/client_faults.md. Each attempt has a client of its own: a good request,
the script, and a good request again, each within ten seconds. `--life` records the behaviours of peers_lifecycle.py.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from towline.bench.clients.subjects import Missing

from benches import report
from tests.support.http1_scripts import SCRIPTS, HostileServer

from . import peers_lifecycle
from .peers_adapters import PATHS, interpreter

MAX_WAIT = 10.0
ROOT = Path(__file__).parent.parent.parent
# One backend of each client: the layers below are the same.
CHOSEN = (
    "towline",
    "towline-sync",
    "aiohttp",
    "httpx-sync",
    "httpx2-sync",
    "httpcorexyz-sync",
    "urllib3",
    "requests",
    "niquests-sync",
    "pycurl",
    "pyreqwest",
    "wreq",
    "primp",
)

LIVES = tuple(dict.fromkeys((*peers_lifecycle.SYNC, *peers_lifecycle.ASYNC)))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.client.peers", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--subjects")
    parser.add_argument("--life", metavar="BEHAVIOURS", nargs="?", const=",".join(peers_lifecycle.BEHAVIOURS))
    parser.add_argument("--scripts", default=",".join(name for name in SCRIPTS if name != "good"))
    options = parser.parse_args()
    part, chosen = ("life", LIVES) if options.life else ("found", CHOSEN)
    for subject in options.subjects.split(",") if options.subjects else chosen:
        try:
            if options.life:
                found = peers_lifecycle.record(subject, options.life.split(","))
            else:
                found = record(subject, options.scripts.split(","))
        except Missing as missing:
            print(f"{subject} is left out: {missing}", file=sys.stderr)
            continue
        kept = report.load("client_faults").get(subject, {})
        entry = kept | {"date": datetime.date.today().isoformat(), part: kept.get(part, {}) | found}
        report.save("client_faults", {subject: entry})
        write_tables()
        judge = peers_lifecycle.verdict if options.life else lambda _, one: verdict(one)
        print(subject, {name: judge(name, one) for name, one in found.items()}, flush=True)
    return 0


class Child:
    """A process of one client, replaced when a script makes it hang."""

    def __init__(self, subject: str) -> None:
        command = [interpreter(subject), "-m", "tests.client.peers_child", subject]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": PATHS},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.buffer = b""
        reply = self.line(60)
        if reply is None or "missing" in reply:
            self.stop()
            raise Missing(str(reply))

    def line(self, timeout: float) -> dict[str, Any] | None:
        """The child's next line; `None` on a timeout or when it has died."""
        assert self.process.stdout is not None
        end = time.monotonic() + timeout
        while b"\n" not in self.buffer:
            remaining = end - time.monotonic()
            if remaining <= 0 or not select.select([self.process.stdout], [], [], remaining)[0]:
                return None
            piece = os.read(self.process.stdout.fileno(), 65536)
            if not piece:
                return None
            self.buffer += piece
        line, _, self.buffer = self.buffer.partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def attempt(self, script: str) -> dict[str, Any] | None:
        """`None`: the client did not start. After `hung`, the child cannot be used any more."""
        with HostileServer() as server:
            assert self.process.stdin is not None
            self.process.stdin.write(f"{server.base} {script}\n".encode())
            self.process.stdin.flush()
            found = self.line(30)
            for _ in ("answer", "next"):
                reply = self.line(MAX_WAIT)
                if reply is None:
                    return {**(found or {}), "hung": True}
                found = reply
            return found

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def record(subject: str, scripts: list[str]) -> dict[str, Any]:
    """Raises Missing."""
    found: dict[str, Any] = {}
    child = Child(subject)
    try:
        for script in scripts:
            found[script] = child.attempt(script) or {"answer": "no figure"}
            if found[script].get("hung"):
                child.stop()
                child = Child(subject)
    finally:
        child.stop()
    return found


def verdict(one: dict[str, Any]) -> str:
    """Summary in a few words."""
    words = [one.get("answer", f"still at it after {MAX_WAIT:.0f} s")]
    if one.get("poisoned"):
        words.append("**the next answer is the attacker's**")
    elif one.get("hung") and "answer" in one:
        words.append("then the next request hangs")
    elif not str(one.get("next", "200")).startswith("200"):
        words.append(f"then {one['next']}")
    if one.get("growth_mib", 0) >= 16:
        words.append(f"+{one['growth_mib']:.0f} MiB")
    return ", ".join(words)


def write_tables() -> None:
    measured = report.load("client_faults")
    subjects = [name for name in CHOSEN if "found" in measured.get(name, {})]
    rows = [
        [name, *(verdict(measured[subject]["found"].get(name, {"answer": ""})) for subject in subjects)]
        for name in SCRIPTS
        if name != "good"
    ]
    lead = "Scripts: tests/support/http1_scripts.py. An error's name, or the answer that was taken for good; then what a good"
    lead += " request over the same client got. Each as it comes, without a deadline or a limit set. Memory is the peak of the process, where it grew by 16 MiB or more.\n\n"
    report.write_markdown(
        "client_faults",
        "Clients and a malicious server",
        [lead + report.table(["script", *subjects], rows), *peers_lifecycle.tables(measured)],
        command="python -m tests.client.peers",
    )


if __name__ == "__main__":
    sys.exit(main())
