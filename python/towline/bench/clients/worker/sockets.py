"""Access to a client's sockets as descriptors of this process, whatever library opened them."""

from __future__ import annotations

import contextlib
import os
import socket
import stat


def shrink_send_buffers(uds: str, size_bytes: int) -> int:
    """Sets SO_SNDBUF of every connection to the unix socket `uds`; returns how many there are."""
    changed = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            descriptor = int(name)
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            # A duplicate: closing it leaves the client's descriptor open.
            with socket.socket(fileno=os.dup(descriptor)) as one:
                if one.family == socket.AF_UNIX and one.getpeername() == uds:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size_bytes)
                    changed += 1
    return changed
