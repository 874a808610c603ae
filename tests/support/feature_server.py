"""One application in both interfaces, served with options, and raw requests to it."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from towline.testing import Running, serve

TEXT = b"the quick brown fox jumps over the lazy dog\n" * 100
"""Body of `/text`: 4,400 bytes that compress well."""


async def asgi_app(scope: Any, receive: Any, send: Any) -> None:
    """Body by path: `/text` is TEXT, `/stream` three events, `/client` the client of the scope, others the path."""
    assert scope["type"] == "http"
    path = scope["path"]
    headers = [(b"content-type", b"text/plain"), (b"etag", b'"tag"'), (b"x-app", b"yes")]
    if path == "/stream":
        headers[0] = (b"content-type", b"text/event-stream")
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for number in range(3):
            more = {"type": "http.response.body", "body": b"data: %d\n\n" % number, "more_body": True}
            await send(more)
        await send({"type": "http.response.body", "body": b""})
        return
    body = path.encode()
    if path == "/text":
        body = TEXT
    elif path == "/client":
        host, port = scope["client"] or ("-", 0)
        body = f"{scope['scheme']} {host} {port}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def wsgi_app(environ: dict[str, Any], start_response: Any) -> Any:
    """The application for WSGI."""
    path = environ["PATH_INFO"]
    headers = [("content-type", "text/plain"), ("etag", '"tag"'), ("x-app", "yes")]
    if path == "/stream":
        headers[0] = ("content-type", "text/event-stream")
        start_response("200 OK", headers)
        return (b"data: %d\n\n" % number for number in range(3))
    start_response("200 OK", headers)
    if path == "/text":
        return [TEXT]
    if path == "/client":
        client = f"{environ.get('REMOTE_ADDR', '-')} {environ.get('REMOTE_PORT') or 0}"
        return [f"{environ['wsgi.url_scheme']} {client}".encode()]
    return [path.encode()]


KINDS: dict[str, dict[str, Any]] = {
    "asgi": {"app": asgi_app, "interface": "asgi"},
    "wsgi": {"app": wsgi_app, "interface": "wsgi"},
    "wsgi-threads": {"app": wsgi_app, "interface": "wsgi", "threads": 2},
}

every_kind = pytest.mark.parametrize("kind", KINDS)


@contextmanager
def serving(kind: str, app: Any = None, **options: Any) -> Iterator[Running]:
    """Serves `app`, or the application of this module, as `asgi`, `wsgi` or `wsgi-threads`."""
    described = dict(KINDS[kind])
    own = described.pop("app")
    if app is not None:
        described["lifespan"] = "off"
    with serve(own if app is None else app, **{**described, **options}) as running:
        yield running


@dataclasses.dataclass(frozen=True)
class Response:
    status: int
    fields: list[tuple[str, str]]
    body: bytes

    def field(self, name: str) -> str | None:
        """Value of a field, which must occur at most once."""
        values = [value for other, value in self.fields if other == name]
        assert len(values) <= 1, f"{name} occurs {len(values)} times"
        return values[0] if values else None


def fetch(server: Running, target: str, *fields: str, method: str = "GET", before: bytes = b"") -> Response:
    """One request on a new connection. `before`: bytes sent first, such as a PROXY header."""
    request = f"{method} {target} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n"
    request += "".join(f"{field}\r\n" for field in fields) + "\r\n"
    return exchange((server.host, server.port), before + request.encode("latin-1"))


def exchange(address: tuple[str, int], data: bytes) -> Response:
    with socket.create_connection(address, timeout=10) as client:
        client.sendall(data)
        received = b""
        while part := client.recv(65536):
            received += part
    return parse(received)


def parse(data: bytes) -> Response:
    assert data, "closed without a response"
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    fields = [(line.split(":", 1)[0].lower(), line.split(":", 1)[1].strip()) for line in lines]
    if ("transfer-encoding", "chunked") in fields:
        body = unchunked(body)
    return Response(int(first.split(" ")[1]), fields, body)


def unchunked(data: bytes) -> bytes:
    content = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        if length == 0:
            assert data == b"\r\n"
            return content
        content += data[:length]
        assert data[length : length + 2] == b"\r\n"
        data = data[length + 2 :]
    raise AssertionError("the chunked body has no last chunk")


def samples(page: str) -> dict[str, float]:
    """Values by series of a page of metrics."""
    lines = [line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#")]
    return {series: float(value) for series, value in lines}
