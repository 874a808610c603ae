"""wrk as the independent generator, pinned to a core of its own."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from benches.cells import Cell
from benches.subjects import Subject

SCRIPT = Path(__file__).parent / "wrk.lua"
# Above this share of its core the generator may have been the limit, unless the subject's core was full too.
GENERATOR_FULL, SUBJECT_FULL = 0.9, 0.9


@dataclass(frozen=True)
class Slice:
    """One measurement of one subject."""

    requests_per_s: float
    p50_us: int
    p99_us: int
    max_us: int
    failed: int
    subject_cpu: float  # share of one core
    generator_cpu: float

    @property
    def at_least(self) -> bool:
        """The generator was the limit: the subject could have done more."""
        return self.generator_cpu > GENERATOR_FULL and self.subject_cpu < SUBJECT_FULL

    def record(self) -> dict[str, object]:
        return {**asdict(self), "at_least": self.at_least}


def require_wrk() -> None:
    if shutil.which("wrk") is None:
        sys.exit(
            "the generator `wrk` is not installed (Debian, Ubuntu: apt install wrk; macOS: brew install wrk)"
        )


def wrk_command(cell: Cell, port: int, seconds: int) -> list[str]:
    return [
        "wrk", "--threads", "1", "--connections", str(cell.connections), "--duration", f"{seconds}s",
        "--script", str(SCRIPT.relative_to(Path.cwd()) if SCRIPT.is_relative_to(Path.cwd()) else SCRIPT),
        f"http://127.0.0.1:{port}{cell.path}", "--", cell.method, str(cell.body_bytes), str(cell.pipeline),
    ]  # fmt: skip


def measure(cell: Cell, subject: Subject, seconds: int, core: int | None) -> Slice:
    before, spent = subject.cpu_seconds(), children_cpu()
    done = subprocess.run(
        wrk_command(cell, subject.port, seconds), capture_output=True, text=True, check=False,
        timeout=seconds + 60, preexec_fn=(lambda: os.sched_setaffinity(0, {core})) if core is not None else None,
    )  # fmt: skip
    result = next((line for line in done.stdout.splitlines() if line.startswith("result ")), None)
    if done.returncode != 0 or result is None:
        raise RuntimeError(f"wrk against {subject.name} failed:\n{done.stdout}{done.stderr}")
    seen = json.loads(result.removeprefix("result "))
    elapsed = seen["duration_us"] / 1e6
    return Slice(
        requests_per_s=round(seen["requests"] / elapsed, 1),
        p50_us=seen["p50_us"],
        p99_us=seen["p99_us"],
        max_us=seen["max_us"],
        failed=sum(seen[kind] for kind in ("connect", "read", "write", "timeout", "status")),
        subject_cpu=round((subject.cpu_seconds() - before) / elapsed, 3),
        generator_cpu=round((children_cpu() - spent) / elapsed, 3),
    )


def children_cpu() -> float:
    """Only wrk is waited for while a slice runs, so the growth is wrk's."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
