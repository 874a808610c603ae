"""A client in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .._helper_process import LineReader, pinned_to
from ..runner.protocol import Failed
from .subjects import Client, Missing
from .worker.job import Job

WORKER = Path(__file__).parent / "worker"
OPEN_TIMEOUT_S, VERIFY_TIMEOUT_S, SLICE_TIMEOUT_S = 60.0, 30.0, 90.0
"""Timeouts of a client, in addition to the duration of its slice."""
STOP_TIMEOUT_S = 2.0


class Worker:
    """A process of the worker package in some interpreter, and the RPC with it."""

    def __init__(self, python: Path, cores: Sequence[int] | None = None, padding_bytes: int = 0) -> None:
        self.command = [str(python), str(WORKER)]
        self._log = tempfile.TemporaryFile("w+b")  # noqa: SIM115 (closed by stop)
        self._lines = LineReader()
        try:
            self._process = subprocess.Popen(
                self.command,
                env=os.environ | {"BENCH_PADDING": "x" * padding_bytes},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                preexec_fn=pinned_to(cores),
                start_new_session=True,
            )
        except OSError as error:
            raise Failed(f"{python} does not start: {error}") from None

    @classmethod
    def opened(
        cls, python: Path, cores: Sequence[int] | None = None, padding_bytes: int = 0, **request: Any
    ) -> tuple[Worker, dict[str, str]]:
        """A worker with the client of `request`, and versions of its packages. Raises Missing, Failed."""
        worker = cls(python, cores, padding_bytes)
        try:
            reply = worker.call(OPEN_TIMEOUT_S, **request)
            if "missing" in reply:
                raise Missing(reply["missing"])
        except (Failed, Missing):
            worker.stop()
            raise
        return worker, reply["versions"]

    def call(self, timeout_s: float, **request: Any) -> dict[str, Any]:
        """Sends a call and waits for the response. Raises Failed."""
        process = self._process
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None
        reply = self._answer(timeout_s)
        if "error" in reply:
            raise Failed(str(reply["error"]), self.log_tail())
        return reply

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        try:
            line = self._lines.line(self._process.stdout, time.monotonic() + timeout_s)
        except TimeoutError:
            raise Failed(f"it hangs: no reply within {timeout_s:.0f} s", self.log_tail()) from None
        except BrokenPipeError:
            raise self._died() from None
        try:
            reply: dict[str, Any] = json.loads(line)
        except ValueError:
            raise Failed(f"it replied garbage: {line[:80]!r}", self.log_tail()) from None
        return reply

    def _died(self) -> Failed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_S)
        output = self.log_tail().strip().splitlines()[-1:]
        status = self._process.returncode
        return Failed(
            f"it ended with status {status}" + (f": {output[0][:200]}" if output else ""), self.log_tail()
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def log_tail(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-2000:]

    def stop(self) -> None:
        """Ends the process and everything it started. May be called twice."""
        end(self._process)
        self._log.close()


class ClientProcess:
    """A running client with its job; worker/rpc.py has the calls."""

    def __init__(
        self,
        client: Client,
        job: Job,
        bases: Sequence[str],
        python: Path,
        cores: Sequence[int] | None = None,
        padding_bytes: int = 0,
    ) -> None:
        """Returns when the client is open. Raises Failed."""
        began = time.monotonic()
        try:
            self.worker, self.versions = Worker.opened(
                python,
                cores,
                padding_bytes,
                op="open",
                library=client.library,
                adapter=client.adapter,
                packages=client.packages,
                job=job.plain(),
                bases=list(bases),
            )
        except Missing as missing:
            raise Failed(f"not installed: {missing}") from None
        self.ready_after_s = time.monotonic() - began

    def verify(self) -> None:
        """Sends each request of the job twice, the second over the kept connection. Raises Failed."""
        self.worker.call(VERIFY_TIMEOUT_S, op="verify")

    def slice(self, seconds: float, discard_s: float, count: int | None = None) -> dict[str, Any]:
        """Runs one slice; worker/window.py has its fields. Raises Failed."""
        request = {"seconds": seconds, "discard_s": discard_s, "count": count}
        found: dict[str, Any] = self.worker.call(seconds + SLICE_TIMEOUT_S, op="slice", **request)["found"]
        return found

    def memory_bytes(self) -> tuple[int, int]:
        """Resident memory now, and the peak; zeros after the process has ended."""
        found = {"VmRSS": 0, "VmHWM": 0}
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.worker.pid}/status").read_text().splitlines():
                name, _, value = line.partition(":")
                if name in found:
                    found[name] = int(value.split()[0]) * 1024
        return found["VmRSS"], found["VmHWM"]

    def stop(self) -> None:
        self.worker.stop()


def end(process: subprocess.Popen[Any]) -> None:
    """Kills the process and its group: it has nothing to save."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
