"""Kills subjects whose bench and reaper were both killed, found by a mark in their environment."""

from __future__ import annotations

import os
import signal
import time

from .reaper import KILL_TIMEOUT_S, MARKER, marker, name, stat


def orphans() -> list[int]:
    """Processes of this user with the mark of a reaper that has ended."""
    mark = f"{MARKER}=".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                marks = [
                    one[len(mark) :].decode() for one in file.read().split(b"\0") if one.startswith(mark)
                ]
        except (OSError, UnicodeDecodeError):
            continue  # belongs to another user, or has exited
        fields = stat(int(entry))
        if marks and fields is not None and fields[0] not in "ZX" and not _kept(marks[0]):
            found.append(int(entry))
    return found


def kill_orphans() -> list[str]:
    """Kills what earlier runs left behind; returns the names. To be called before the first start of a run."""
    names: list[str] = []
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while (found := orphans()) and time.monotonic() < deadline:
        for pid in found:
            names.append(name(pid))
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        time.sleep(0.02)
    return sorted(set(names))


def _kept(mark: str) -> bool:
    """Whether its reaper lives. Marks of another process namespace count as living."""
    parts = mark.split(":")
    if len(parts) != 3 or not parts[1].isdigit() or parts[0] != marker().split(":")[0]:
        return True
    return stat(int(parts[1])) is not None and marker(int(parts[1])) == mark
