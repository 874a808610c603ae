"""urllib3.PoolManager."""

from __future__ import annotations

import socket
from collections.abc import Generator
from typing import Any

import urllib3

from .base import PIECE_BYTES, Response, SyncAdapter, check


def over(uds: str, manager: Any) -> Any:
    """A manager with connections of another kind, as users of unix sockets make it: only `_new_conn` differs."""

    class Connection(urllib3.connection.HTTPConnection):
        def _new_conn(self) -> socket.socket:
            found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            found.connect(uds)
            return found

    class Pool(urllib3.HTTPConnectionPool):
        ConnectionCls = Connection

    manager.pool_classes_by_scheme = manager.pool_classes_by_scheme | {"http": Pool}
    return manager


class Sync(SyncAdapter):
    unix_sockets = True

    def open(self) -> None:
        self.client = urllib3.PoolManager(num_pools=100, maxsize=self.pool, block=True)
        if self.uds is not None:
            self.client = over(self.uds, self.client)

    def close(self) -> None:
        self.client.clear()

    def get(self, path: str) -> Response:
        response = self.client.request("GET", self.base + path)
        return response.status, response.data

    def upload(self, path: str, body: bytes) -> Response:
        response = self.client.request("POST", self.base + path, body=body)
        return response.status, response.data

    def post_json(self, path: str, value: Any) -> Any:
        return self.client.request("POST", self.base + path, json=value).json()

    def pieces(self, path: str, size: int | None = PIECE_BYTES) -> Generator[bytes, None, None]:
        response = self.client.request("GET", self.base + path, preload_content=False)
        check(response.status)
        if size is None:
            while piece := response.read1(PIECE_BYTES):
                yield piece
        else:
            yield from response.stream(size)
        response.release_conn()
