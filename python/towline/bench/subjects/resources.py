"""Costs of a subject's processes: CPU time in nanoseconds, context switches, memory.

CPU time comes from the processes' own clocks (one system call each, with all threads, including ended ones), or from
/proc/PID/stat in ticks of 10 ms. It is read at the edges of a slice and never within one: a reading takes
milliseconds of the core that the generator needs. The peak of memory is the kernel's own (VmHWM). A process that
begins and ends between two readings is missed.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace

from .reaper import descendants, stat

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Usage:
    """Totals of all processes of a subject since their start. Subtract two for the cost of a slice."""

    at_s: float
    """Monotonic clock."""
    cpu_s: float
    switches: int
    """Number of times that a thread was scheduled."""
    waited_s: float
    """Time that threads were ready to run and waited for a core."""
    rss_bytes: int
    processes: int
    threads: int

    def since(self, before: Usage) -> Usage:
        """The usage since `before`; memory and counts are the present ones."""
        return replace(
            self,
            at_s=self.at_s - before.at_s,
            cpu_s=self.cpu_s - before.cpu_s,
            switches=self.switches - before.switches,
            waited_s=self.waited_s - before.waited_s,
        )


@dataclass(frozen=True)
class Peaks:
    """The highest figures since the subject was ready."""

    rss_bytes: int = 0
    """The kernel's high-water marks of its processes, summed: they may be from different moments."""
    processes: int = 0
    """Highest of the readings, like the threads."""
    threads: int = 0


@dataclass
class _ThreadTimes:
    """The last figures of one process; they stay in the sum when it has ended."""

    cpu_s: float = 0.0
    switches: int = 0
    waited_s: float = 0.0
    threads: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By thread: nanoseconds waited, times run."""


class Meter:
    """Follows the processes below `root`, without `root` itself (the reaper)."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._seen: dict[tuple[int, str], _ThreadTimes] = {}
        self._alive: list[int] = []
        self._peaks = Peaks()

    def usage(self) -> Usage:
        """A reading."""
        now, peaks = self._read(), self._peaks
        self._peaks = Peaks(
            max(peaks.rss_bytes, now.rss_bytes),
            max(peaks.processes, now.processes),
            max(peaks.threads, now.threads),
        )
        return now

    def peaks(self) -> Peaks:
        """With a new reading."""
        self.usage()
        self._peaks = replace(
            self._peaks, rss_bytes=max(self._peaks.rss_bytes, high_water_bytes(self._alive))
        )
        return self._peaks

    def reset_peaks(self) -> None:
        """Restarts from the present level."""
        self._alive = self.processes()
        reset_high_water(self._alive)
        self._peaks = Peaks()

    def pids(self) -> list[int]:
        """As of the last reading."""
        return list(self._alive)

    def outside(self, group: int) -> list[int]:
        """Processes that are not in this process group, as of the last reading."""
        return [pid for pid in self._alive if _group(pid) != group]

    # --- reading ----------------------------------------------------------------------------------------

    def processes(self) -> list[int]:
        """Ids of the processes that are followed."""
        return descendants(self._root)

    def _read(self) -> Usage:
        self._alive = self.processes()
        rss = threads = 0
        for pid in self._alive:
            fields = stat(pid)
            if fields is None:
                continue
            seen = self._seen.setdefault((pid, fields[19]), _ThreadTimes())
            seen.cpu_s = max(seen.cpu_s, _cpu_s(pid, fields))
            _read_threads(pid, seen)
            rss += int(fields[21]) * _PAGE_BYTES
            threads += int(fields[17])
        every = self._seen.values()
        return Usage(
            time.monotonic(),
            sum(one.cpu_s for one in every),
            sum(one.switches for one in every),
            sum(one.waited_s for one in every),
            rss,
            len(self._alive),
            threads,
        )


def waited_s(pid: int) -> float:
    """Time since its start that the threads of a process, those alive, were ready to run and waited for a core."""
    seen = _ThreadTimes()
    _read_threads(pid, seen)
    return seen.waited_s


def pss_bytes(pids: list[int]) -> int | None:
    """Proportional set size: pages that processes share are counted once among them. None where it cannot be read."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
                total += next(int(line.split()[1]) for line in file if line.startswith(b"Pss:")) * 1024
        except FileNotFoundError:
            continue
        except (OSError, StopIteration):
            return None
    return total


def high_water_bytes(pids: list[int]) -> int:
    """Peak resident size of each process since its start, or since `reset_high_water`, summed."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/status", "rb") as file:
                total += sum(int(line.split()[1]) for line in file if line.startswith(b"VmHWM:")) * 1024
        except OSError:
            continue
    return total


def reset_high_water(pids: list[int]) -> None:
    """Restarts from the present level (proc(5), clear_refs)."""
    for pid in pids:
        try:
            with open(f"/proc/{pid}/clear_refs", "w") as file:
                file.write("5")
        except OSError:
            continue


def _cpu_s(pid: int, fields: list[str]) -> float:
    try:
        # The clock of another process, as clock_getcpuclockid(3) computes its id.
        return time.clock_gettime_ns((~pid << 3) | 2) / 1e9
    except OSError:
        return (int(fields[11]) + int(fields[12])) / _TICKS


def _read_threads(pid: int, seen: _ThreadTimes) -> None:
    """/proc/PID/task/TID/schedstat: time on a core, time waiting for one, times run."""
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as file:
                _, waited, times = file.read().split()
            seen.threads[thread] = (int(waited), int(times))
    except (OSError, ValueError):
        pass  # it has just ended, or this kernel keeps no such figures
    seen.waited_s = sum(one[0] for one in seen.threads.values()) / 1e9
    seen.switches = sum(one[1] for one in seen.threads.values())


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except OSError:
        return 0
