"""One client in its own process, for the malicious server: `python -m tests.client.peers_child SUBJECT`.

Of Towline, only the adapters of the benchmark are imported: some clients have an environment of their own.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from towline.bench.clients.subjects import CLIENTS

from .peers_adapters import adapter_of


def child(subject_name: str) -> int:
    """Reads lines of URL and script; writes a line after each step."""
    subject = CLIENTS[subject_name]
    try:
        make = adapter_of(subject_name)
    except (ImportError, AttributeError) as error:
        print(json.dumps({"missing": str(error)}), flush=True)
        return 0
    loop = asyncio.new_event_loop() if subject.backend == "async" else None
    print("{}", flush=True)
    for line in sys.stdin:
        base, script = line.split()
        one_script(make(base, 10), loop, script)
    os._exit(0)


def one_script(adapter: Any, loop: asyncio.AbstractEventLoop | None, script: str) -> None:
    report: dict[str, Any] = {}

    def call(name: str) -> Any:
        return loop.run_until_complete(adapter.get(f"/{name}")) if loop else adapter.get(f"/{name}")

    if loop is not None:
        loop.run_until_complete(adapter.open())
    else:
        adapter.open()
    call("good")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before = peak_mib()
    print(json.dumps(report), flush=True)
    for step, name in (("answer", script), ("next", "good")):
        try:
            status, body = call(name)
            report[step] = f"{status} with {len(body)} bytes"
            if name == "good" and bytes(body) != b"good":
                report["poisoned"] = True
        except BaseException as error:
            report[step] = type(error).__name__
        if step == "answer":
            report["growth_mib"] = round(peak_mib() - before, 1)
            rest(loop, 0.2)
        print(json.dumps(report), flush=True)


def rest(loop: asyncio.AbstractEventLoop | None, seconds: float) -> None:
    """Idle time in which an asynchronous client can maintain its connections."""
    if loop is None:
        time.sleep(seconds)
    else:
        loop.run_until_complete(asyncio.sleep(seconds))


def peak_mib() -> float:
    """Peak resident memory, in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0


if __name__ == "__main__":
    sys.exit(child(sys.argv[1]))
