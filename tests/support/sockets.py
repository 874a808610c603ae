"""Helpers for plain sockets."""

from __future__ import annotations

import contextlib
import socket


def read_all(conn: socket.socket) -> bytes:
    """Everything up to the end of input or a reset."""
    received: list[bytes] = []
    with contextlib.suppress(ConnectionResetError):
        while chunk := conn.recv(262144):
            received.append(chunk)
    return b"".join(received)
