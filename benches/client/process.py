"""The processes of a run: the responder on one core, the clients on another."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from .adapters import SUBJECTS

ROOT = Path(__file__).parent.parent.parent
RESPONDER = ROOT / "target" / "release" / "examples" / "responder"
# A slice of the slowest client takes less; one that answers nothing any more is ended.
PATIENCE = 180.0


class Missing(Exception):
    """The client, or the environment it needs, is not installed."""


class Failed(Exception):
    """The client gave a wrong answer, an error, or none; its cell has no figure."""


def pin(core: int | None) -> Any:
    return (lambda: os.sched_setaffinity(0, {core})) if core is not None else None


class Responder:
    def __init__(self, core: int | None) -> None:
        if not RESPONDER.exists():
            sys.exit("the responder is not built (cargo build --release -p towline-io --example responder)")
        self._process = subprocess.Popen(
            [str(RESPONDER)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=pin(core),
        )
        assert self._process.stdout is not None
        self.base = f"http://{self._process.stdout.readline().strip()}"

    def cpu_s(self) -> float:
        """Of its one thread, exact to nanoseconds."""
        return int(Path(f"/proc/{self._process.pid}/schedstat").read_text().split()[0]) / 1e9

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


class Worker:
    """One client; see worker.py for what it is told."""

    def __init__(self, subject: str, cell: str, base: str, loop: str, core: int | None) -> None:
        self.name = subject
        # A fresh size of the environment moves the stack: one unlucky layout must not colour every restart.
        padding = {"BENCH_PADDING": "x" * (os.urandom(1)[0] * 8), "PYTHONPATH": str(ROOT)}
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by stop)
        self._process = subprocess.Popen(
            [interpreter(subject), "-m", "benches.client.worker", subject, cell, base, loop],
            cwd=ROOT, env=os.environ | padding, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
            preexec_fn=pin(core),
        )  # fmt: skip
        self._held = b""

    def start(self) -> dict[str, str]:
        """The versions of what it measures."""
        answer = self._answer()
        if "missing" in answer:
            raise Missing(answer["missing"])
        versions: dict[str, str] = answer["versions"]
        return versions

    def verify(self) -> None:
        self._tell("verify")

    def run(self, seconds: float) -> dict[str, Any]:
        return self._tell(f"run {seconds}")

    def _tell(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Failed(f"{self.name} ended: {self.log()}") from None
        answer = self._answer()
        if "error" in answer:
            raise Failed(answer["error"])
        found: dict[str, Any] = answer["found"]
        return found

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        while b"\n" not in self._held:
            if not select.select([fd], [], [], PATIENCE)[0]:
                raise Failed(f"no answer in {PATIENCE:.0f} s")
            data = os.read(fd, 65536)
            if not data:
                raise Failed(f"{self.name} ended: {self.log()}")
            self._held += data
        line, _, self._held = self._held.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()[-400:]

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._log.close()


def interpreter(subject: str) -> str:
    """A client that cannot share an environment with the others has its own beside ours: .venv-NAME."""
    home = SUBJECTS[subject].home
    if home is None:
        return sys.executable
    found = ROOT / f".venv-{home}" / "bin" / "python"
    if not found.exists():
        raise Missing(f"there is no .venv-{home} (make client-peers)")
    return str(found)
