"""Backends of `client_backends` for HTTP/3, and an origin over TCP that advertises it."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest
import towline

from tests.support.client_backends import BACKENDS
from tests.support.http1_peer import Listener, Peer

Make: TypeAlias = Callable[..., Any]


class Origin:
    """HTTP/1.1 over TLS; `alt_svc` is the value of the header that it sends. `targets`: those of its requests."""

    def __init__(self, context: ssl.SSLContext, alt_svc: str = "") -> None:
        self.alt_svc = alt_svc
        self.targets: list[bytes] = []
        self._listener = Listener(self._serve, tls=context)
        self.url = self._listener.url

    @property
    def connections(self) -> int:
        return self._listener.connections

    def _serve(self, peer: Peer) -> None:
        while head := peer.head():
            self.targets.append(head.split(b" ")[1])
            field = f"Alt-Svc: {self.alt_svc}\r\n" if self.alt_svc else ""
            peer.sock.sendall(b"HTTP/1.1 200 OK\r\n" + field.encode() + b"Content-Length: 5\r\n\r\nhello")

    def __enter__(self) -> Origin:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._listener.close()


def server_context(key: str, cert: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes blocking and asynchronous clients, and closes them."""
    backends: list[Any] = []

    def make(**options: Any) -> Any:
        backends.append(BACKENDS[request.param](**options))
        return backends[-1]

    yield make
    for created in backends:
        created.close()


def http3_only(make: Make, port: int, ca: str, **options: Any) -> Any:
    """A client that has HTTP/3 alone."""
    verify = towline.TLS(trust=ca)
    base_url = f"https://127.0.0.1:{port}"
    return make(**{"http1": False, "http3": True, "verify": verify, "base_url": base_url, **options})
