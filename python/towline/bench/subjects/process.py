"""One running server subject: start, ready, pause, resume, stop. All processes that it started end with it.

```text
start ─► listening ─► responding ─► paused ⇄ running ─► SIGTERM ─► grace ─► SIGKILL ─► strays killed and reported
   └─ each step is bounded in time; a subject that exceeds it is a `SubjectFailed` of one line
```
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import Error
from .._helper_process import LineReader
from . import reaper
from .model import Server
from .ports import HOST, free_port, is_free
from .readiness import BadReply, readiness_status
from .render import Rendered, Settings, render
from .resources import Meter, Peaks, Usage

REAPER = Path(reaper.__file__)
ATTEMPT_TIMEOUT_S = 2.0
MAX_BAD_REPLIES = 3
"""After this many consecutive replies that are not HTTP, waiting is useless."""


class SubjectFailed(Error):
    """The subject has no figures; the message is one line, `log` the end of its output."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


@dataclass(frozen=True)
class StopReport:
    """How a subject ended."""

    exit_status: int | None
    """As in a shell; negative numbers are signals. None: it was never started."""
    killed: bool
    """The subject did not end on SIGTERM."""
    strays: tuple[str, ...]
    """Names of processes that it left behind; they have been killed."""
    stuck: int
    """Processes that could not be killed."""
    seconds: float

    def notes(self, name: str) -> list[str]:
        """Remarks for the report; usually none."""
        found = []
        if self.killed:
            found.append(f"{name} did not end on SIGTERM and was killed")
        if self.strays:
            count = len(self.strays)
            processes = "1 process" if count == 1 else f"{count} processes"
            found.append(
                f"{name} left {processes} behind, now killed: {', '.join(sorted(set(self.strays))[:5])}"
            )
        if self.stuck:
            found.append(f"{name}: {self.stuck} of its processes could not be killed")
        return found


class Process:
    """A started subject; `wait_ready` returns when it serves. Also a context manager that stops it."""

    def __init__(self, server: Server, settings: Settings | None = None) -> None:
        """Starts it. Raises `SubjectFailed`, or `NotSupported` if the definition lacks what is requested."""
        self.server, self.name = server, server.name
        self._settings = settings or Settings()
        self.port = _port_for(server, self._settings.host)
        self._began = time.monotonic()
        self.ready_after_s = 0.0
        self._stopped: StopReport | None = None
        self._folder = tempfile.mkdtemp(prefix="towline-bench-")
        try:
            self._rendered = render(
                server, self._settings, host=self._settings.host, port=self.port, folder=Path(self._folder)
            )
            self._reaper = _ReaperLink()
            self._meter = Meter(self._reaper.pid)
        except BaseException:
            os.rmdir(self._folder)
            raise
        try:
            self.pid = self._launch(self._rendered)
        except BaseException:
            self.stop()
            raise

    # --- properties -------------------------------------------------------------------------------------

    @property
    def base_url(self) -> str:
        return f"http{'s' if self._settings.tls else ''}://{self._settings.reached_at}:{self.port}"

    @property
    def folder(self) -> Path:
        """`{folder}` of the definition, removed when it is stopped."""
        return Path(self._folder)

    @property
    def command(self) -> list[str]:
        """The command line for the record: PORT for the port, no path of this machine."""
        return self._rendered.shown

    @property
    def options(self) -> dict[str, str]:
        return self._rendered.options

    @property
    def interface(self) -> str | None:
        return self._rendered.interface

    # --- life cycle ---------------------------------------------------------------------------------------

    def wait_ready(self, timeout_s: float | None = None) -> float:
        """Waits for a response to the readiness request; returns the seconds since the start. Raises `SubjectFailed`."""
        timeout_left = self.server.start_timeout_s if timeout_s is None else timeout_s
        deadline = self._began + timeout_left
        host = self._settings.reached_at
        last, nonsense, pause = (
            f"nothing listens on its port{'' if host == HOST else f' at {host}'}",
            0,
            0.005,
        )
        while True:
            self._must_live("before it was ready")
            try:
                left = max(0.05, min(ATTEMPT_TIMEOUT_S, deadline - time.monotonic()))
                status = readiness_status(
                    host,
                    self.port,
                    self.server.ready.path,
                    left,
                    tls=self._settings.tls is not None,
                    protocol=self._rendered.protocol,
                )
                wanted = self.server.ready.status
                if status == wanted or (wanted is None and status < 500):
                    break
                last, nonsense = f"GET {self.server.ready.path} has status {status}", 0
            except BadReply as error:
                last, nonsense = str(error), nonsense + 1
            except ConnectionRefusedError:
                pass
            except TimeoutError:
                last = f"it accepts, but GET {self.server.ready.path} has no response"
            except OSError as error:
                last = f"GET {self.server.ready.path}: {error.strerror or error}"
            if time.monotonic() >= deadline:
                raise self._failure(f"not ready after {timeout_left:g} s: {last}")
            if nonsense >= MAX_BAD_REPLIES:
                raise self._failure(last)
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)
        self._must_live("before it was ready")  # another process may have the port
        self.ready_after_s = time.monotonic() - self._began
        self._meter.reset_peaks()
        return self.ready_after_s

    def alive(self) -> bool:
        """Whether the started process still runs. Cheap: one file of /proc."""
        fields = reaper.stat(self.pid) if self._stopped is None else None
        return fields is not None and fields[0] not in "ZX"

    def check(self, when: str = "while it was measured") -> None:
        """Raises `SubjectFailed` when it has ended."""
        self._must_live(when)

    def pause(self) -> None:
        """Stops all its processes (SIGSTOP)."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal_all(signal.SIGCONT)

    def stop(self, grace_s: float | None = None) -> StopReport:
        """SIGTERM, then SIGKILL, then kills what it left behind. Idempotent; never raises."""
        if self._stopped is not None:
            return self._stopped
        began, grace = time.monotonic(), self.server.grace_s if grace_s is None else grace_s
        reply = self._reaper.stop(grace)
        self._stopped = StopReport(
            reply.get("exit"),
            bool(reply.get("killed")),
            tuple(reply.get("strays", ())),
            int(reply.get("stuck", 0)),
            time.monotonic() - began,
        )
        self._last_log = str(reply.get("log", ""))
        return self._stopped

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- resources and output -------------------------------------------------------------------------

    def usage(self) -> Usage:
        """CPU time, switches and memory of all its processes until now. Cheap enough for the edges of a slice."""
        return self._meter.usage()

    def peaks(self) -> Peaks:
        """The highest figures since it was ready, or since `reset_peaks`."""
        return self._meter.peaks()

    def reset_peaks(self) -> None:
        self._meter.reset_peaks()

    def pids(self) -> list[int]:
        """Ids of all its processes now."""
        self._meter.usage()
        return self._meter.pids()

    def log_tail(self, lines: int = 40) -> str:
        """The end of its output, of which the last 64 KiB are kept."""
        text = (
            self._last_log
            if self._stopped is not None
            else str(self._reaper.request({"op": "state"}).get("log", ""))
        )
        return "\n".join(text.splitlines()[-lines:])

    # --- helpers ----------------------------------------------------------------------------------------

    def _launch(self, rendered: Rendered) -> int:
        # A server started by root drops its privileges: it must still reach its files.
        os.chmod(self._folder, 0o711)
        for name, text in rendered.files.items():
            path = Path(self._folder, name)
            path.write_text(text, newline="")
            path.chmod(0o644)
        # Messages have the program as written, without a path of this machine.
        program = rendered.shown[0]
        reply = self._reaper.request(
            {
                "op": "start",
                "argv": rendered.argv,
                "env": os.environ | rendered.env,
                "cwd": str(rendered.cwd),
                "cores": list(self._settings.cores or ()),
                "folder": self._folder,
            }
        )
        if "pid" not in reply:
            why = reply.get("failed", "its reaper did not reply")
            if not rendered.cwd.is_dir():
                why = f"its cwd {self.server.cwd!r} is no folder"
            raise SubjectFailed(f"{self.name}: cannot start {program}: {why}")
        return int(reply["pid"])

    def _must_live(self, when: str) -> None:
        if not self.alive():
            raise self._failure(f"ended {when}{self._how_it_ended()}")

    def _how_it_ended(self) -> str:
        status = self._reaper.request({"op": "state"}).get("exit")
        if not isinstance(status, int):
            return ""
        if status < 0:
            return f", killed by {_signal_name(-status)}"
        hint = "; a subject must stay in the foreground" if status == 0 else ""
        return f", exit status {status}{hint}"

    def _failure(self, what: str) -> SubjectFailed:
        log = self.log_tail()
        last_line = next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "")
        line = f"{self.name}: {what}" + (
            f"; its output ends with: {_printable(last_line)[:160]}" if last_line else ""
        )
        return SubjectFailed(line, log)

    def _signal_all(self, number: int) -> None:
        """The group in one call; then those that have left it."""
        if self._stopped is not None:
            return
        try:
            os.killpg(self.pid, number)
        except OSError:
            pass
        for pid in self._meter.outside(self.pid):
            try:
                os.kill(pid, number)
            except OSError:
                pass


class _ReaperLink:
    """The bench's end of the connection to the reaper: one JSON object per line, replies bounded in time."""

    ANSWER_TIMEOUT_S = 10.0

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(REAPER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )
        self.pid = self._process.pid
        self._lines = LineReader()

    def request(self, command: dict[str, Any], timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
        """Empty when there is no reply in time, or the reaper has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            found: dict[str, Any] = json.loads(
                self._lines.line(self._process.stdout, time.monotonic() + timeout_s)
            )
            return found
        except (OSError, ValueError):
            return {}

    def stop(self, grace_s: float) -> dict[str, Any]:
        reply = self.request(
            {"op": "stop", "grace_s": grace_s}, grace_s + reaper.KILL_TIMEOUT_S + self.ANSWER_TIMEOUT_S
        )
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()  # at the end of its input it kills all remaining processes and exits
        try:
            self._process.wait(reaper.KILL_TIMEOUT_S + self.ANSWER_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        return reply


# --- ports and text -----------------------------------------------------------------------------------------


def _port_for(server: Server, host: str) -> int:
    if server.port is None:
        return free_port(host)
    if not is_free(server.port, host):
        raise SubjectFailed(f"{server.name}: port {server.port} is taken by another process")
    return server.port


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)
