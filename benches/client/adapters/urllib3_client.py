"""urllib3.PoolManager."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import urllib3

from .base import PIECE_BYTES, Answer, SyncAdapter, check


class Sync(SyncAdapter):
    def open(self) -> None:
        self.client = urllib3.PoolManager(maxsize=self.pool, block=True)

    def close(self) -> None:
        self.client.clear()

    def get(self, path: str) -> Answer:
        response = self.client.request("GET", self.base + path)
        return response.status, response.data

    def upload(self, path: str, body: bytes) -> Answer:
        response = self.client.request("POST", self.base + path, body=body)
        return response.status, response.data

    def post_json(self, path: str, value: Any) -> Any:
        return self.client.request("POST", self.base + path, json=value).json()

    def pieces(self, path: str, size: int | None = PIECE_BYTES) -> Iterator[bytes]:
        response = self.client.request("GET", self.base + path, preload_content=False)
        check(response.status)
        if size is None:
            while piece := response.read1(PIECE_BYTES):
                yield piece
        else:
            yield from response.stream(size)
        response.release_conn()
