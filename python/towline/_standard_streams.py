"""stdin, stdout and stderr of a process that was started without them, as a daemon may be."""

from __future__ import annotations

import os
import sys


def open_standard_streams() -> None:
    """Open /dev/null in place of closed ones: otherwise a socket gets the number of stderr, and lines go there."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            # The lowest free descriptor is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w" if fd else "r", encoding="utf-8"))  # noqa: SIM115
