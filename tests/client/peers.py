"""What other clients do with the malicious server: `python -m tests.client.peers [--subjects a,b] [--scripts x,y]`.

Recorded, not asserted: benches/results/client_faults.md. Each attempt has a client of its own: a good request,
the script, and a good request again, each within ten seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benches import report
from benches.client.adapters import SUBJECTS
from benches.client.process import Missing, interpreter

from .hostile import SCRIPTS, Hostile

PATIENCE = 10.0
ROOT = Path(__file__).parent.parent.parent
# One face of each: what lies below is the same.
CHOSEN = (
    "towline", "towline-sync", "aiohttp", "httpx-sync", "httpx2-sync", "httpcorexyz-sync", "urllib3", "requests",
    "niquests-sync", "pycurl", "pyreqwest", "rnet", "primp",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.client.peers", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--subjects", default=",".join(CHOSEN))
    parser.add_argument("--scripts", default=",".join(name for name in SCRIPTS if name != "good"))
    parser.add_argument("--child", metavar="SUBJECT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options.child)
    for subject in options.subjects.split(","):
        try:
            found = record(subject, options.scripts.split(","))
        except Missing as missing:
            print(f"{subject} is left out: {missing}", file=sys.stderr)
            continue
        kept = report.load("client_faults").get(subject, {})
        entry = {"date": datetime.date.today().isoformat(), "found": kept.get("found", {}) | found}
        report.save("client_faults", {subject: entry})
        write_table()
        print(subject, {name: verdict(one) for name, one in found.items()}, flush=True)
    return 0


# --- in the child -------------------------------------------------------------------------------


def child(subject_name: str) -> int:
    """Reads lines of URL and script; says how far it has come after each step."""
    subject = SUBJECTS[subject_name]
    try:
        make = subject.load()
    except (ImportError, AttributeError) as error:
        print(json.dumps({"missing": str(error)}), flush=True)
        return 0
    loop = asyncio.new_event_loop() if subject.face == "async" else None
    print("{}", flush=True)
    for line in sys.stdin:
        base, script = line.split()
        one_script(make(base, 10), loop, script)
    os._exit(0)


def one_script(adapter: Any, loop: asyncio.AbstractEventLoop | None, script: str) -> None:
    say: dict[str, Any] = {}

    def call(name: str) -> Any:
        return loop.run_until_complete(adapter.get(f"/{name}")) if loop else adapter.get(f"/{name}")

    if loop is not None:
        loop.run_until_complete(adapter.open())
    else:
        adapter.open()
    call("good")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before = peak_mib()
    print(json.dumps(say), flush=True)
    for step, name in (("answer", script), ("next", "good")):
        try:
            status, body = call(name)
            say[step] = f"{status} with {len(body)} bytes"
            if name == "good" and bytes(body) != b"good":
                say["poisoned"] = True
        except BaseException as error:
            say[step] = type(error).__name__
        if step == "answer":
            say["growth_mib"] = round(peak_mib() - before, 1)
            rest(loop, 0.2)
        print(json.dumps(say), flush=True)


def rest(loop: asyncio.AbstractEventLoop | None, seconds: float) -> None:
    """An idle moment in which an asynchronous client may look after its connections."""
    if loop is None:
        time.sleep(seconds)
    else:
        loop.run_until_complete(asyncio.sleep(seconds))


def peak_mib() -> float:
    """What was held for a moment counts."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0


# --- in the parent ------------------------------------------------------------------------------


class Child:
    """A process of one client, made anew when a script has hung it."""

    def __init__(self, subject: str) -> None:
        command = [interpreter(subject), "-m", "tests.client.peers", "--child", subject]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.held = b""
        said = self.line(60)
        if said is None or "missing" in said:
            self.stop()
            raise Missing(str(said))

    def line(self, patience: float) -> dict[str, Any] | None:
        """What it says next; `None`: nothing in that time, or it has died."""
        assert self.process.stdout is not None
        end = time.monotonic() + patience
        while b"\n" not in self.held:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                return None
            piece = os.read(self.process.stdout.fileno(), 65536)
            if not piece:
                return None
            self.held += piece
        line, _, self.held = self.held.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        return said

    def attempt(self, script: str) -> dict[str, Any] | None:
        """`None`: it could not even begin. `hung` after that: it is of no use any more."""
        with Hostile() as server:
            assert self.process.stdin is not None
            self.process.stdin.write(f"{server.base} {script}\n".encode())
            self.process.stdin.flush()
            found = self.line(30)
            for _ in ("answer", "next"):
                said = self.line(PATIENCE)
                if said is None:
                    return {**(found or {}), "hung": True}
                found = said
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
    """In a few words what a reader wants to know first."""
    words = [one.get("answer", f"still at it after {PATIENCE:.0f} s")]
    if one.get("poisoned"):
        words.append("**the next answer is the attacker's**")
    elif one.get("hung") and "answer" in one:
        words.append("then the next request hangs")
    elif not str(one.get("next", "200")).startswith("200"):
        words.append(f"then {one['next']}")
    if one.get("growth_mib", 0) >= 16:
        words.append(f"+{one['growth_mib']:.0f} MiB")
    return ", ".join(words)


def write_table() -> None:
    measured = report.load("client_faults")
    subjects = [name for name in CHOSEN if name in measured]
    rows = [
        [name, *(verdict(measured[subject]["found"].get(name, {"answer": ""})) for subject in subjects)]
        for name in SCRIPTS
        if name != "good"
    ]
    lead = "Scripts: tests/client/hostile.py. An error's name, or the answer that was taken for good; then what a good"
    lead += " request over the same client got. Each as it comes, without a deadline or a limit set. Memory is the peak of the process, where it grew by 16 MiB or more.\n\n"
    report.write_markdown(
        "client_faults", "Clients and a malicious server", [lead + report.table(["script", *subjects], rows)],
        command="python -m tests.client.peers",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
