"""UDP proxy between a client and a server: loses, delays and repeats datagrams, falls silent, changes its address.

with DatagramProxy(server_port) as proxy:
    ...  # the client connects to proxy.port
    proxy.rebind()   # the server sees another address: NAT rebinding
    proxy.silent = True   # a black hole
    proxy.deaf = True   # a black hole for datagrams of the server
"""

from __future__ import annotations

import heapq
import random
import selectors
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

STEP_S = 0.01


class DatagramProxy:
    """`loss`, `duplicates`: shares of datagrams; `delay`: seconds, up to `jitter` more (which reorders). Seeded."""

    def __init__(
        self,
        port: int,
        *,
        loss: float = 0.0,
        duplicates: float = 0.0,
        delay: float = 0.0,
        jitter: float = 0.0,
        silent: bool = False,
        seed: int = 9000,
    ) -> None:
        self.loss, self.duplicates, self.delay, self.jitter, self.silent = (
            loss,
            duplicates,
            delay,
            jitter,
            silent,
        )
        self.deaf = False
        self.passed = 0
        self.dropped = 0
        self._server = ("127.0.0.1", port)
        self._random = random.Random(seed)
        self._socket = _bound()
        self._paths: dict[Any, socket.socket] = {}
        self._old: list[socket.socket] = []
        self._queue: list[tuple[float, int, socket.socket, bytes, Any]] = []
        self._number = 0
        self._rebinding = threading.Event()
        self._ending = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="datagram-proxy", daemon=True)

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending = True
        self._thread.join()
        self._selector.close()
        for sock in (self._socket, *self._paths.values(), *self._old):
            sock.close()

    def rebind(self) -> None:
        """Datagrams of clients come from new addresses from now on; the old ones are no longer read."""
        self._rebinding.set()

    def _run(self) -> None:
        while not self._ending:
            if self._rebinding.is_set():
                self._rebinding.clear()
                for path in self._paths.values():
                    self._selector.unregister(path)
                    self._old.append(path)
                self._paths.clear()
            wait = min(STEP_S, max(0.0, self._queue[0][0] - time.monotonic())) if self._queue else STEP_S
            for key, _ in self._selector.select(wait):
                self._read(key.fileobj, key.data)
            while self._queue and self._queue[0][0] <= time.monotonic():
                _, _, sock, data, to = heapq.heappop(self._queue)
                _send(sock, data, to)

    def _read(self, sock: Any, client: Any) -> None:
        for _ in range(64):
            try:
                data, source = sock.recvfrom(65_536)
            except (BlockingIOError, ConnectionRefusedError):
                return
            if client is not None:
                self._pass(self._socket, data, client)
                continue
            path = self._paths.get(source)
            if path is None:
                path = self._paths[source] = _bound()
                self._selector.register(path, selectors.EVENT_READ, source)
            self._pass(path, data, self._server)

    def _pass(self, sock: socket.socket, data: bytes, to: Any) -> None:
        is_lost = self.silent or (self.deaf and sock is self._socket)
        if is_lost or self._random.random() < self.loss:
            self.dropped += 1
            return
        self.passed += 1
        copies = 1 + (self._random.random() < self.duplicates)
        for _ in range(copies):
            if self.delay or self.jitter:
                at = time.monotonic() + self.delay + self._random.random() * self.jitter
                self._number += 1
                heapq.heappush(self._queue, (at, self._number, sock, data, to))
            else:
                _send(sock, data, to)


def _bound() -> socket.socket:
    sock = socket.socket(type=socket.SOCK_DGRAM)
    sock.setblocking(False)
    sock.bind(("127.0.0.1", 0))
    return sock


def _send(sock: socket.socket, data: bytes, to: Any) -> None:
    try:
        sock.sendto(data, to)
    except OSError:
        return
