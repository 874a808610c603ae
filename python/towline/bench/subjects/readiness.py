"""The readiness request, bounded in time and bytes."""

from __future__ import annotations

import re
import socket
import ssl
import time

from . import readiness_h2

MAX_HEAD_BYTES = 64 * 1024
STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: |\r?\n)")


class BadReply(Exception):
    """A response that is not HTTP."""


def readiness_status(
    host: str, port: int, path: str, timeout_s: float, *, tls: bool = False, protocol: str = "h1"
) -> int:
    """Returns the status of a GET. Raises OSError (TimeoutError when the whole took longer), or `BadReply`."""
    due = time.monotonic() + timeout_s
    with socket.create_connection((host, port), timeout_s) as plain:
        connection = _handshake(plain, due, protocol) if tls else plain
        with connection:
            of = _status_over_h2 if protocol == "h2" else _status_over_h1
            return of(connection, f"{host}:{port}", path, due)


def _status_over_h1(connection: socket.socket, authority: str, path: str, due: float) -> int:
    request = f"GET {path} HTTP/1.1\r\nHost: {authority}\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    connection.sendall(request.encode("ascii"))
    head = b""
    while b"\r\n\r\n" not in head:
        piece = _received(connection, due)
        if not piece:
            break
        head += piece
        if not _may_be_status(head) or len(head) > MAX_HEAD_BYTES:
            raise BadReply(f"its response is not HTTP: {head[:60]!r}")
    if not head:
        raise ConnectionResetError("the connection was closed without a response")
    found = STATUS_LINE.match(head)
    if found is None or b"\r\n\r\n" not in head:
        raise BadReply(f"its response is not HTTP: {head[:60]!r}")
    return int(found[1])


def _status_over_h2(connection: socket.socket, authority: str, path: str, due: float) -> int:
    connection.sendall(readiness_h2.request(authority, path, secure=isinstance(connection, ssl.SSLSocket)))
    received = b""
    while len(received) <= MAX_HEAD_BYTES:
        piece = _received(connection, due)
        if not piece:
            raise ConnectionResetError("the connection was closed without a response")
        received += piece
        try:
            status = readiness_h2.status(received)
        except ValueError as error:
            raise BadReply(str(error)) from None
        if status is not None:
            return status
    raise BadReply("no response among its HTTP/2 frames")


def _received(connection: socket.socket, due: float) -> bytes:
    left = due - time.monotonic()
    if left <= 0:  # single bytes at long intervals must not prolong the wait
        raise TimeoutError
    connection.settimeout(left)
    return connection.recv(16384)


def _may_be_status(head: bytes) -> bool:
    start = b"HTTP/1."
    return STATUS_LINE.match(head) is not None or (
        head[: len(start)] == start[: len(head)] and len(head) < len("HTTP/1.1 200 ")
    )


def _handshake(plain: socket.socket, due: float, protocol: str) -> ssl.SSLSocket:
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    if protocol == "h2":
        trusting.set_alpn_protocols(["h2"])
    plain.settimeout(max(due - time.monotonic(), 0.001))
    return trusting.wrap_socket(plain)
