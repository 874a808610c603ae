"""Clients that keep their connections and never send a request twice: a request without a response is lost."""

from __future__ import annotations

import random
import socket
import threading
import time

from tests.support.process import MAX_WAIT, Conn, eventually

MAX_LOST = 20
"""Lost requests after which a client stops: the test has failed, and its message has room for a few."""


class Posting:
    """Threads that POST on keep-alive connections until the end of the `with` block.

    `think_time`: mean pause in seconds between a response and the next request of a client, from half of it to one
    and a half.
    """

    def __init__(self, port: int, clients: int, think_time: float, body: bytes = b"body") -> None:
        self.port, self.clients, self.think_time = port, clients, think_time
        head = f"POST /pid HTTP/1.1\r\nhost: test\r\ncontent-length: {len(body)}\r\n\r\n"
        self._request = head.encode() + body
        self.responses = 0
        self.connections = 0
        self.lost: list[str] = []
        self._started = time.monotonic()
        self._counting = threading.Lock()
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(clients)]

    def __enter__(self) -> Posting:
        for thread in self._threads:
            thread.start()
        self.more()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(MAX_WAIT)

    def more(self) -> None:
        """Wait until each client has had one more response, on average."""
        target = self.responses + self.clients
        eventually(lambda: self.responses > target or self.lost, f"{self.clients} responses")

    def _run(self) -> None:
        conn: Conn | None = None
        exchanges = 0
        while not self._stopped.is_set() and len(self.lost) < MAX_LOST:
            is_over = True
            try:
                if conn is None:
                    conn, exchanges = self._connect(), 0
                conn.sock.sendall(self._request)
                response = conn.response()
                assert response.status == 200, response
                exchanges += 1
                is_over = response.closes
                with self._counting:
                    self.responses += 1
            except (OSError, AssertionError) as error:
                after = f"{time.monotonic() - self._started:.3f} s, {exchanges} on this connection"
                self.lost.append(f"{error!r} after {after}")
            if is_over and conn is not None:
                conn.sock.close()
                conn = None
            if self.think_time:
                time.sleep(random.uniform(0.5, 1.5) * self.think_time)
        if conn is not None:
            conn.sock.close()

    def _connect(self) -> Conn:
        sock = socket.create_connection(("127.0.0.1", self.port), MAX_WAIT)
        with self._counting:
            self.connections += 1
        return Conn(sock)
