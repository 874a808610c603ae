"""A native helper in a process of its own (responder, network emulator), which ends with its parent."""

from __future__ import annotations

import json
import os
import resource
import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

# A start takes some 50 ms, or long on a machine that is busy with builds.
START_TIMEOUT_S = 30.0
DESCRIPTORS = 65_536


class HelperFailed(Exception):
    """The helper did not start, or ended; the message contains its output."""


class LineReader:
    """The lines that a process writes to a pipe."""

    def __init__(self) -> None:
        self._held = b""

    def line(self, pipe: IO[bytes], deadline: float) -> bytes:
        """The next line. Raises TimeoutError, and BrokenPipeError at the end of the output."""
        while b"\n" not in self._held:
            if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError
            data = os.read(pipe.fileno(), 1 << 20)
            if not data:
                raise BrokenPipeError
            self._held += data
        line, _, self._held = self._held.partition(b"\n")
        return line


class HelperProcess:
    """A command that prints its address first; pinned to `cores` if given; ended by `stop`."""

    def __init__(self, *command: str, cores: Sequence[int] | None = None) -> None:
        self._log = tempfile.TemporaryFile("w+b")  # noqa: SIM115 (closed by stop)
        self._lines = LineReader()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            preexec_fn=in_child(cores),
            start_new_session=True,
        )
        try:
            self.address = self.read_line()
        except HelperFailed:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def alive(self) -> bool:
        return self._process.poll() is None

    def log(self) -> str:
        """The standard error of the helper so far."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def cpu_s(self) -> float:
        """CPU time of its main thread, which does all the work, in nanosecond resolution."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1e9

    def ask(self) -> dict[str, Any]:
        """The reply of the helper to a line. Raises `HelperFailed`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
        except OSError:
            raise HelperFailed(f"the helper ended: {self.log().strip()[-400:]}") from None
        line = self.read_line()
        try:
            reply: dict[str, Any] = json.loads(line)
        except ValueError:
            raise HelperFailed(f"its reply is not understood: {line[:80]!r}") from None
        return reply

    def read_line(self) -> str:
        """The next line of its standard output."""
        assert self._process.stdout is not None
        try:
            return self._lines.line(self._process.stdout, time.monotonic() + START_TIMEOUT_S).decode()
        except TimeoutError:
            raise HelperFailed(f"the helper printed nothing within {START_TIMEOUT_S:.0f} s") from None
        except BrokenPipeError:
            raise HelperFailed(f"the helper ended: {self.log().strip()[-400:]}") from None

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._log.close()


def in_child(cores: Sequence[int] | None) -> Callable[[], None]:
    """`preexec_fn` for processes with thousands of connections: the default of 1,024 descriptors is too low."""
    pin = pinned_to(cores)

    def prepare() -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
        if pin is not None:
            pin()

    return prepare


def pinned_to(cores: Sequence[int] | None) -> Callable[[], None] | None:
    """`preexec_fn` that pins to cores: Linux only; elsewhere nothing is pinned."""
    if cores is None or not hasattr(os, "sched_setaffinity"):
        return None
    wanted = set(cores)
    return lambda: os.sched_setaffinity(0, wanted)
