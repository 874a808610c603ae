"""Clients of HTTP/3 alone, and an origin over TCP that advertises it."""

from __future__ import annotations

import ssl
from typing import Any

import towline

from tests.support.client_fixtures import Make
from tests.support.http1_peer import Listener, Peer


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


def alone(port: int, ca: str) -> dict[str, Any]:
    """Options of a client that has HTTP/3 alone."""
    verify = towline.TLS(trust=ca)
    return {"http1": False, "http3": True, "verify": verify, "base_url": f"https://127.0.0.1:{port}"}


def http3_only(make: Make, port: int, ca: str, **options: Any) -> Any:
    return make(**{**alone(port, ca), **options})
