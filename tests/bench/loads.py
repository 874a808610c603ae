"""A load from several agents as a process of a test, and the agents."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from towline.bench.responder import Responder

from tests.support.process import eventually

LOAD = [sys.executable, "-m", "towline", "load", "--json"]
BEGUN = 20
"""Requests after which a load has begun on all of its agents, and has responses."""


def run(*options: str) -> tuple[int, dict[str, Any], str]:
    """Status, report and standard error of a load."""
    done = subprocess.run([*LOAD, *options], capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


@contextmanager
def running(responder: Responder, *options: str, url: str | None = None) -> Iterator[subprocess.Popen[str]]:
    """A load that has begun; killed in the end, if it still runs. `url`: the responder's, where the agents know another."""
    before = responder.injected().requests
    with subprocess.Popen(
        [*LOAD, *options, url or f"{responder.base_url}/"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as load:
        try:
            eventually(
                lambda: load.poll() is not None or responder.injected().requests >= before + BEGUN,
                "the load begins",
                timeout=60,
            )
            assert load.poll() is None, load.communicate()
            yield load
        finally:
            load.kill()


def processes() -> Iterator[tuple[int, list[str]]]:
    """Ids and command lines."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        yield int(path.parent.name), line


def agents(argument: str) -> list[int]:
    """Ids of this environment's agents with an argument that those of other tests, which may run beside, do not have."""
    return [pid for pid, line in processes() if line[0] == sys.executable and argument in line]


def until_no_agent(argument: str) -> None:
    eventually(lambda: not agents(argument), f"agents with {argument} have ended")
