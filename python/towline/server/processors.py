"""The processors that this process may use: its affinity, and the CPU quota of its control groups (cgroups(7))."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

from .logs import counted


def usable(*, most: int, root: str = "/") -> tuple[int, str]:
    """Their number, from 1 to `most`, and the reason for it. A part of a processor counts as one.

    `root`: the directory with `proc` and `sys`.
    """
    # macOS has no affinity.
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count, reason = affinity, f"this process may run on {counted(affinity, 'processor')}"
    quota = min(_quotas(root), default=math.inf)
    if quota < affinity:
        count = max(1, math.ceil(quota))
        reason = f"the CPU quota of the control group is {quota:g} of {counted(affinity, 'processor')}"
    return min(count, most), reason


def _quotas(root: str) -> Iterator[float]:
    """The quota of each control group of this process, from its own to the root, in processors."""
    groups = os.path.join(root, "sys/fs/cgroup")
    for line in _read(os.path.join(root, "proc/self/cgroup")).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            mount, files = groups, ["cpu.max"]
        elif "cpu" in controllers.split(","):
            mount, files = os.path.join(groups, controllers), ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        else:
            continue
        names = path.strip("/").split("/")
        # A container may see the path outside of it, and its own group at the root.
        for depth in range(len(names), -1, -1):
            folder = os.path.join(mount, *names[:depth])
            words = " ".join(_read(os.path.join(folder, file)) for file in files).split()
            # "max" and -1 are no quota.
            if len(words) == 2 and words[0].isdigit() and words[1].isdigit():
                yield int(words[0]) / int(words[1])


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
