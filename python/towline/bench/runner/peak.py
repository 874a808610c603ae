"""The highest rate that keeps a goal: the generator's search, run against one server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..scenarios import Protocol, Request, Scenario, SendMode
from .protocol import Failed

GOAL_MS, GOAL_PERCENTILE, GOAL_ERRORS, WINDOW_MS = 20, 99, 0.001, 500
TIMEOUT_S = 180.0


def find_peak(
    scenario: Scenario,
    base_url: str,
    protocol: Protocol,
    connections: int,
    seed: int,
    cores: Sequence[int] | None,
    hosts: Sequence[str] = (),
) -> dict[str, Any]:
    """The report of the run that confirms the peak. Raises `Failed`. `hosts`: options of agents elsewhere."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "towline",
            *arguments(scenario, base_url, protocol, connections, seed, Path(folder)),
            *hosts,
        ]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=TIMEOUT_S,
                preexec_fn=(lambda: os.sched_setaffinity(0, cores)) if cores else None,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"the search for the peak did not end in {TIMEOUT_S:.0f} s") from None
    try:
        runs = [json.loads(line) for line in done.stdout.splitlines() if line.strip()]
    except ValueError:
        raise Failed("the reply of the peak search is not JSON", done.stderr) from None
    if done.returncode and "the generator was the limit" in done.stderr:
        raise Failed(done.stderr.strip().splitlines()[-1].removeprefix("towline-load: "))
    kept = [run for run in runs if "response" in run and keeps_goal(run)]
    if not kept:
        raise Failed("no rate keeps the goal of the search", done.stderr[-2000:])
    best: dict[str, Any] = max(kept, key=lambda run: float(run["requests_per_s"]))
    return best


def keeps_goal(run: dict[str, Any]) -> bool:
    """Whether a run keeps the goal, as the generator judges it."""
    errors, answered = sum(run["errors"].values()), run["answered"]
    at = {one["percent"]: one["us"] for one in run["response"]["percentiles"]}
    total = answered + errors
    fast = at.get(float(GOAL_PERCENTILE), 0.0) <= GOAL_MS * 1000
    schedule = run.get("open_loop")
    achieved = schedule is None or schedule["achieved_share"] >= 0.99
    return bool(total and errors / total <= GOAL_ERRORS and fast and achieved)


def cannot(scenario: Scenario) -> str | None:
    """Why the search's command line cannot express this scenario; None if it can."""
    if scenario.message is not None:
        return "it is messages of WebSockets"
    if scenario.page is not None:
        return "it is pages"
    first = scenario.requests[0]
    alike = all(
        (one.method, one.fields, one.body) == (first.method, first.fields, first.body)
        for one in scenario.requests
    )
    if not alike or any(one.send_mode != SendMode() or one.chunk_bytes for one in scenario.requests):
        return "its requests differ, or have a send mode"
    return None


def arguments(
    scenario: Scenario, base_url: str, protocol: Protocol, connections: int, seed: int, folder: Path
) -> list[str]:
    """Arguments of `towline load`."""
    first: Request = scenario.requests[0]
    found = [
        "load",
        "--find-peak",
        "--json",
        "--goal",
        f"{GOAL_MS}ms",
        "--goal-percentile",
        str(GOAL_PERCENTILE),
        "--goal-errors",
        str(GOAL_ERRORS),
        "-d",
        f"{WINDOW_MS}ms",
        "-c",
        str(connections),
        "--seed",
        str(seed),
        "-m",
        first.method,
        "--poisson",
        *{"h1": ("-p",), "h2": ("--http2", "--streams"), "h3": ("--http3", "--streams")}[protocol],
        str(scenario.concurrency(protocol)),
    ]
    for name, value in first.fields_over(protocol):
        found += ["-H", f"{name}: {value}"]
    if first.body is not None:
        (folder / "body").write_bytes(first.body.whole())
        found += ["--body-file", str(folder / "body")]
    found += ["--expect-status", str(first.expect.status)]
    return [*found, *(base_url.rstrip("/") + one.target for one in scenario.requests)]
