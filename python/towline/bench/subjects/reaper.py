"""The reaper of one subject: a small process between it and the bench that no process of the subject can escape.

```text
bench ──stdin/stdout: one JSON object per line──► reaper ──► the subject ──► its workers
                                                    ▲                            │ double fork, setsid, own environment
                                                    └────── orphans come here ◄──┘
```

It is the subreaper of all processes that the subject starts, so a daemon that left the group is still its child. When
its stdin ends, because the bench has stopped or was killed, it kills them all and exits. Output of the subject comes
through a pipe, of which the last 64 KiB are kept.

Started as a plain file by any Python, without the package: standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

KEPT_BYTES = 64 * 1024
DESCRIPTORS = 65_536
AFTERWARDS_S = 0.5
"""Time for the subject's other processes to end after the first one."""
KILL_TIMEOUT_S = 5.0
MARKER = "TOWLINE_BENCH_SUBJECT"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def main() -> int:
    reaper_process = Reaper()
    try:
        reaper_process.serve()
    finally:
        reaper_process.end()
    return 0


class Reaper:
    """Waits for commands, the subject's output and the ends of processes."""

    def __init__(self) -> None:
        self._commands = b""
        self._log = bytearray()
        self._output: int | None = None
        self._main: int | None = None
        self._exit: int | None = None
        self._folder: str | None = None
        self._woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(ignored, signal.SIG_IGN)  # the bench decides when it ends
        _prctl(PR_SET_CHILD_SUBREAPER, 1)

    def serve(self) -> None:
        while (command := self._next_command()) is not None:
            print(json.dumps(self._answer(command)), flush=True)

    def end(self) -> None:
        """Kills all processes of the subject, in any state."""
        self._kill_all()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _answer(self, command: dict[str, Any]) -> dict[str, Any]:
        if command["op"] == "start":
            return self._start(command)
        if command["op"] == "stop":
            return self._stop(command["grace_s"])
        self._turn(0)  # output that has arrived in the meantime
        return self._state()

    def _state(self) -> dict[str, Any]:
        return {"exit": self._exit, "log": self._log.decode(errors="replace")}

    # --- start ------------------------------------------------------------------------------------------

    def _start(self, command: dict[str, Any]) -> dict[str, Any]:
        self._folder = command["folder"]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
        if command["cores"]:
            os.sched_setaffinity(0, command["cores"])  # reading output is part of the subject's cost
        self._output, end = os.pipe2(os.O_CLOEXEC)
        try:
            child = subprocess.Popen(
                command["argv"],
                env=command["env"] | {MARKER: marker()},
                cwd=command["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=end,
                stderr=end,
                start_new_session=True,
                preexec_fn=_in_child,
            )
        except (OSError, ValueError) as error:
            return {"failed": getattr(error, "strerror", None) or str(error)}
        finally:
            os.close(end)
        self._main, child.returncode = child.pid, 0  # Popen must not wait for it: `_reap` does
        return {"pid": self._main}

    # --- stop -------------------------------------------------------------------------------------------

    def _stop(self, grace_s: float) -> dict[str, Any]:
        ended_itself = self._main is not None and self._exit is not None
        for pid in descendants():
            _signal(pid, signal.SIGCONT)
        if self._main is not None and self._exit is None:
            _signal(self._main, signal.SIGTERM)
            self._wait(grace_s, lambda: self._exit is not None)
        killed = self._main is not None and self._exit is None
        if not killed:
            self._wait(AFTERWARDS_S, lambda: not descendants())
        # Workers of a first process that had to be killed are not strays; daemons are.
        strays = [name(pid) for pid in descendants() if not (killed and _session(pid) == self._main)]
        stuck = self._kill_all()
        return self._state() | {
            "killed": killed,
            "strays": strays,
            "stuck": stuck,
            "ended_itself": ended_itself,
        }

    def _kill_all(self) -> int:
        """Number of remaining processes: uninterruptible, or of another user."""
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while time.monotonic() < deadline:
            left = descendants()
            if not left:
                return 0
            for pid in left:
                _signal(pid, signal.SIGKILL)
            self._turn(0.01)
        return len(descendants())

    def _wait(self, seconds: float, done: Any) -> None:
        deadline = time.monotonic() + seconds
        while not done() and (left := deadline - time.monotonic()) > 0:
            self._turn(min(left, 0.02))

    # --- events -------------------------------------------------------------------------------------

    def _next_command(self) -> dict[str, Any] | None:
        """None when the bench has ended."""
        while b"\n" not in self._commands:
            if 0 in self._turn(None):
                piece = os.read(0, 65536)
                if not piece:
                    return None
                self._commands += piece
        line, _, self._commands = self._commands.partition(b"\n")
        command: dict[str, Any] = json.loads(line)
        return command

    def _turn(self, seconds: float | None) -> list[int]:
        watched = [0, self._woken] + ([self._output] if self._output is not None else [])
        if seconds is not None:
            watched.remove(0)
        ready = select.select(watched, [], [], seconds)[0]
        if self._woken in ready:
            os.read(self._woken, 4096)
        if self._output in ready and self._output is not None:
            piece = os.read(self._output, 65536)
            if piece:
                self._log += piece
                del self._log[:-KEPT_BYTES]
            else:
                os.close(self._output)
                self._output = None
        self._reap()
        return ready

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._main:
                self._exit = os.waitstatus_to_exitcode(status)


# --- processes ------------------------------------------------------------------------------------------


def descendants(root: int | None = None) -> list[int]:
    """All processes below `root` (this one), without unreaped ended ones."""
    found: list[int] = []
    remaining = [os.getpid() if root is None else root]
    while remaining:
        below = children(remaining.pop())
        remaining += below
        found += below
    return [pid for pid in found if (fields := stat(pid)) is not None and fields[0] not in "ZX"]


def children(pid: int) -> list[int]:
    try:
        found: list[int] = []
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
        return found
    except FileNotFoundError:
        # The process has ended, or this kernel has no such file.
        return _children_by_scan(pid) if os.path.exists(f"/proc/{pid}") else []
    except OSError:
        return []


def _children_by_scan(pid: int) -> list[int]:
    everybody = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return [one for one in everybody if (fields := stat(one)) is not None and int(fields[1]) == pid]


def stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on; None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return None


def name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read().decode(errors="replace").strip()
    except OSError:
        return "?"


def marker(pid: int | None = None) -> str:
    """Identifies the owner of a process, even after its ancestors have ended: namespace, reaper, the reaper's start."""
    fields = stat(os.getpid() if pid is None else pid)
    began = fields[19] if fields is not None else "0"
    return f"{os.stat('/proc/self/ns/pid').st_ino}:{os.getpid() if pid is None else pid}:{began}"


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass


def _in_child() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
