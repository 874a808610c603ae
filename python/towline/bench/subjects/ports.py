"""Free ports for subjects."""

from __future__ import annotations

import random
import socket
from pathlib import Path

HOST = "127.0.0.1"
ANY_HOST = "0.0.0.0"
"""Address of a subject that is reached through an emulated interface as well."""


def free_port(host: str = HOST) -> int:
    """Returns a free port of the address, outside of the range of ephemeral ports, thousands of which a load generator uses."""
    try:
        first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    except (OSError, ValueError):
        first, last = 32768, 60999
    candidates = [port for port in range(10_000, 65_000) if not first <= port <= last]
    for _ in range(200 if candidates else 0):
        port = random.SystemRandom().choice(candidates)
        if is_free(port, host):
            return port
    with socket.socket() as candidate:
        candidate.bind((host, 0))
        return int(candidate.getsockname()[1])


def is_free(port: int, host: str = HOST) -> bool:
    """Whether the port is free for TCP and for UDP, which a server of HTTP/3 uses as well."""
    with socket.socket() as candidate, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind((host, port))
            candidate.listen(1)
            datagrams.bind((host, port))
        except OSError:
            return False
    return True
