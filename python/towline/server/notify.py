"""Notifications for systemd (`Type=notify`, `Type=notify-reload`, `WatchdogSec=`), as sd_notify(3) describes them.

| message                     | sent                                                       |
|-----------------------------|------------------------------------------------------------|
| READY=1                     | all workers serve; again at the end of a reload            |
| RELOADING=1, MONOTONIC_USEC | a reload begins                                            |
| STOPPING=1                  | the server begins to stop; with `--drain-delay` twice      |
| WATCHDOG=1                  | twice within each WATCHDOG_USEC, while the supervisor runs |
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import MutableMapping

SEND_TIMEOUT = 1.0
"""Seconds that the supervisor waits for a full queue of the receiver."""


class Notifier:
    """Sends to the socket that the environment names; without one it does nothing.

    The variables are removed: processes of the application must not send in the server's name.
    """

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        address = environment.pop("NOTIFY_SOCKET", "")
        timeout = environment.pop("WATCHDOG_USEC", "")
        for_process = environment.pop("WATCHDOG_PID", str(os.getpid()))
        self._socket: socket.socket | None = None
        self.interval: float | None = None
        """Seconds between two WATCHDOG=1; half of the time after which systemd restarts the server."""
        self._due = 0.0
        if not address.startswith(("/", "@")):
            return  # none, or of a family that only virtual machines have
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(SEND_TIMEOUT)
        self._address = "\0" + address[1:] if address[0] == "@" else address
        if timeout.isdigit() and int(timeout) > 0 and for_process == str(os.getpid()):
            self.interval = int(timeout) / 2e6

    def descriptors(self) -> tuple[int, ...]:
        """The descriptors of the socket, which children close."""
        return () if self._socket is None else (self._socket.fileno(),)

    def ready(self, status: str) -> None:
        self._send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", "STATUS=reloading")

    def stopping(self, status: str) -> None:
        self._send("STOPPING=1", f"STATUS={status}")

    def watchdog(self, now: float) -> float | None:
        """Send WATCHDOG=1 if it is due; returns when the next one is."""
        if self.interval is None:
            return None
        if now >= self._due:
            self._due = now + self.interval
            self._send("WATCHDOG=1")
        return self._due

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *lines: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            pass  # the receiver is gone or full: the server serves all the same
