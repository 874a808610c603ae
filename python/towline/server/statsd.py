"""Metrics for a StatsD server, sent by the supervisor once a second for all workers together.

The names after the prefix are those of gunicorn and hypercorn:

| name                    | type    | meaning                                                                 |
|-------------------------|---------|-------------------------------------------------------------------------|
| `requests`              | counter | completed requests                                                      |
| `request.status.STATUS` | counter | the same by status (`200`; `4xx` for an unregistered one)               |
| `request.duration`      | timer   | duration in milliseconds: the middle of the bucket of the histogram     |
| `workers`               | gauge   | workers, also those that start or drain                                 |
| `requests_in_flight`    | gauge   | requests in flight                                                      |
| `connections_open`      | gauge   | open connections                                                        |

A timer's line stands for all requests of its bucket, by the sample rate. Datagrams that the system does not take at
once are lost, as StatsD intends: metrics never delay the server.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

from .. import _native
from .._values import statsd_target
from ..config import ServerConfig
from ..errors import StartupError

PERIOD = 1.0
"""Seconds between two sends."""
DATAGRAM_BYTES = 1432
"""Bytes of a datagram that fits into one Ethernet frame over IPv6 with extension headers, as StatsD's documentation
recommends."""


class Statsd:
    """Sends the change of the counters since the last send. Raises `StartupError` if the address cannot be resolved or connected to."""

    def __init__(self, address: str, prefix: str, tags: tuple[str, ...]) -> None:
        self.due = 0.0
        """Time of the next send, of `time.monotonic()`."""
        self._prefix = f"{prefix.rstrip('.')}." if prefix else ""
        self._tags = f"|#{','.join(tags)}" if tags else ""
        self._before: dict[str, int] = {}
        self._socket = _connect(address)

    @classmethod
    def of(cls, config: ServerConfig) -> Statsd | None:
        """The sender of a configuration; `None` without `--statsd`."""
        if config.statsd is None:
            return None
        return cls(config.statsd, config.statsd_prefix, config.statsd_tags)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def send_due(self, stats: _native.SharedStats, workers: int, now: float) -> None:
        """Send if a second has passed since the last time."""
        if now >= self.due:
            self.due = now + PERIOD
            self.send(stats, workers)

    def send(self, stats: _native.SharedStats, workers: int) -> None:
        datagram = b""
        for line in self._lines(stats, workers):
            encoded = f"{self._prefix}{line}{self._tags}".encode()
            if datagram and len(datagram) + 1 + len(encoded) > DATAGRAM_BYTES:
                self._send(datagram)
                datagram = encoded
            else:
                datagram += b"\n" + encoded if datagram else encoded
        self._send(datagram)

    def _lines(self, stats: _native.SharedStats, workers: int) -> Iterator[str]:
        statuses, durations, in_flight, connections = stats.totals()
        yield f"workers:{workers}|g"
        yield f"requests_in_flight:{in_flight}|g"
        yield f"connections_open:{connections}|g"
        requests = self._change("requests", sum(count for _, count in statuses))
        if requests:
            yield f"requests:{requests}|c"
        for status, total in statuses:
            count = self._change(f"request.status.{status}", total)
            if count:
                yield f"request.status.{status}:{count}|c"
        for low, high, total in durations:
            count = self._change(f"request.duration.{low}.{high}", total)
            if count:
                middle = f"{(low + high) * 500:.3f}".rstrip("0").rstrip(".")
                # Not in the notation with an exponent, which some servers do not read.
                rate = "" if count == 1 else f"|@{1 / count:.12f}".rstrip("0")
                yield f"request.duration:{middle}|ms{rate}"

    def _change(self, name: str, total: int) -> int:
        before = self._before.get(name, 0)
        self._before[name] = total
        return total - before

    def _send(self, datagram: bytes) -> None:
        try:
            self._socket.send(datagram)
        except OSError:
            pass  # nobody listens, or the queue is full


def _connect(address: str) -> socket.socket:
    """A connected socket that never blocks."""
    target = statsd_target(address)
    try:
        if isinstance(target, str):
            return _connected(socket.AF_UNIX, target)
        host, port = target
        family, _, _, _, resolved = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        return _connected(family, resolved)
    except OSError as error:
        raise StartupError(f"--statsd {address}: {error.strerror or error}") from None


def _connected(family: int, target: object) -> socket.socket:
    connected = socket.socket(family, socket.SOCK_DGRAM)
    try:
        connected.connect(target)  # type: ignore[arg-type] # of the family, from getaddrinfo
    except OSError:
        connected.close()
        raise
    connected.setblocking(False)
    return connected
