"""The model of a scenario: requests to the byte, the expected responses, and the load.

Data only. `loader` reads it from TOML, `session` passes it to the generator.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Kind = Literal["server", "client", "webhooks", "llm"]
"""The subject: servers, clients, an application that forwards webhooks, a language model endpoint."""

Protocol = Literal["h1", "h2", "h3"]
PROTOCOLS: tuple[Protocol, ...] = ("h1", "h2", "h3")
VERSIONS: dict[str, str] = {"h1": "HTTP/1.1", "h2": "HTTP/2", "h3": "HTTP/3"}
"""Names of the versions for readers."""
Interface = Literal["asgi", "wsgi"]

Fields = tuple[tuple[str, str], ...]
"""Names and values, in the order in which they are sent."""

OF_CONNECTIONS = frozenset({"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"})
"""Headers that HTTP/2 and HTTP/3 do not have (RFC 9113 8.2.2, RFC 9114 4.2)."""


@dataclass(frozen=True)
class Body:
    """Bytes, given as `count` times `unit` so that a mebibyte of x stays small; or those of a file."""

    unit: bytes = b""
    count: int = 1
    path: Path | None = None

    @property
    def length(self) -> int:
        return len(self.unit) * self.count if self.path is None else self.path.stat().st_size

    def whole(self) -> bytes:
        return self.unit * self.count if self.path is None else self.path.read_bytes()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.whole()).hexdigest()

    def plain(self) -> dict[str, Any]:
        """Returns the form that the generator's agent reads."""
        if self.path is not None:
            return {"file": str(self.path)}
        try:
            text = self.unit.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(self.whole()).decode()}
        return {"text": text} if self.count == 1 else {"repeat": text, "count": self.count}


@dataclass(frozen=True)
class Expect:
    """The expected response. Everything that is given is verified."""

    status: int | None = 200
    """None: any of 2xx and 3xx."""
    body: Body | None = Body()
    """Decoded if a coding is given; None: any."""
    fields: Fields = ()
    """Required headers with their whole values."""
    coding: str | None = None
    """The required Content-Encoding."""
    interim: tuple[int, ...] = ()
    """Statuses of the interim responses."""
    trailers: Fields = ()
    """Required trailers with their whole values."""
    closes: bool | None = None
    """Whether the server closes afterwards; None: either. A server that announces a close may always do so."""
    delay_ms: float = 0.0
    """For client scenarios: delay of the responder."""
    pieces: int = 1
    """For streamed responses: the number of writes of the application."""


@dataclass(frozen=True)
class SendMode:
    """The way a request is sent. At most one of these is set."""

    pieces: int = 1
    """The number of pieces, sent `gap_ms` apart."""
    gap_ms: float = 0.0
    await_continue: bool = False
    """The body is sent after 100 Continue."""
    drop_after_bytes: int | None = None
    """The connection is closed after this much of the body; the same request, whole, must then succeed."""

    def plain(self) -> Any:
        """Returns the form that the generator's agent reads."""
        if self.await_continue:
            return "await_continue"
        if self.drop_after_bytes is not None:
            return {"drop_after_bytes": self.drop_after_bytes}
        return {"pieces": self.pieces, "gap_ms": self.gap_ms} if self.pieces > 1 else "whole"


@dataclass(frozen=True)
class Request:
    """One request and the expected response."""

    target: str
    method: str = "GET"
    fields: Fields = ()
    body: Body | None = None
    """Before chunk framing."""
    chunk_bytes: int | None = None
    """Sent in chunks of this size."""
    send_mode: SendMode = SendMode()
    weight: int = 1
    """Relative frequency in a random mix."""
    expect: Expect = Expect()

    def fields_over(self, protocol: Protocol) -> Fields:
        """The headers to send: HTTP/2 and HTTP/3 express some of them in its frames."""
        if protocol == "h1":
            return self.fields
        return tuple(pair for pair in self.fields if pair[0].lower() not in OF_CONNECTIONS)

    def head(self) -> bytes:
        lines = [
            f"{self.method} {self.target} HTTP/1.1",
            *(f"{name}: {value}" for name, value in self.fields),
        ]
        return "\r\n".join([*lines, "", ""]).encode()

    def wire(self) -> bytes:
        """The request as sent over HTTP/1.1, to the byte."""
        body = self.body.whole() if self.body is not None else b""
        if self.chunk_bytes is None:
            return self.head() + body
        step = self.chunk_bytes
        chunks = [body[at : at + step] for at in range(0, len(body), step)]
        framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
        return self.head() + framed + b"0\r\n\r\n"

    @property
    def wire_bytes(self) -> int:
        if self.chunk_bytes is not None or self.body is None:
            return len(self.wire())
        return len(self.head()) + self.body.length


@dataclass(frozen=True)
class Published:
    """Published figures from another machine: context, never a result of this project."""

    figures: tuple[tuple[str, float], ...]
    """By subject."""
    unit: str = "requests/s"
    machine: str = ""
    protocol: str = "h1"


@dataclass(frozen=True)
class Limits:
    """Options of the server for the scenario."""

    requests_per_connection: int | None = None
    concurrency: int | None = None
    needed: bool = True
    """A server without such an option is skipped. False: it is measured without it."""

    def plain(self) -> dict[str, int]:
        """The limits that are set."""
        found = {"requests_per_connection": self.requests_per_connection, "concurrency": self.concurrency}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class Load:
    """One load of a client scenario."""

    name: str = ""
    concurrency: int = 1
    """Concurrent tasks, threads or connections."""
    count: int | None = None
    """Total requests; None: for a time."""
    batch: int = 1
    """Concurrent requests that count as one iteration."""
    body_bytes: int = 0
    pool: int = 100
    """Connections that the client may have."""
    origins: int = 1
    gap_s: float = 0.0
    """Pause between batches."""
    floor_s: float | None = None
    """Minimum duration, by arithmetic."""


@dataclass(frozen=True)
class Scenario:
    """One entry of the catalogue."""

    name: str
    section: str
    title: str
    source: str
    kind: Kind = "server"
    app: str = "app"
    """The callable of the fixture files (bench/apps) that serves it; or `module:callable` of another file there."""
    interfaces: tuple[Interface, ...] = ("asgi", "wsgi")
    protocols: tuple[Protocol, ...] = ("h1",)
    tls: bool = False
    """Over TLS, whatever the run's options."""
    requests: tuple[Request, ...] = ()
    mix: Literal["in_turn", "at_random", "per_connection"] = "in_turn"
    """`per_connection`: a connection repeats one request, and the connection that replaces it the next one."""
    data: Path | None = None
    """Rows of values for `{{name}}` in the requests (CSV, JSON lines): the next one for each request."""
    connections: int = 50
    more_connections: tuple[int, ...] = ()
    """Other numbers of connections with which the scenario is measured as well."""
    h1_connections: int | None = None
    """HTTP/1.1: in place of `connections`."""
    count: int | None = None
    """Requests of a run in the source; the bench runs as long as its statistics need."""
    pipeline: int = 1
    """HTTP/1.1: concurrent requests on each connection."""
    streams: int = 1
    """HTTP/2 and HTTP/3: the same."""
    requests_per_connection: int | None = None
    says_close: bool = True
    """HTTP/1.1: the last request of a connection has `Connection: close`."""
    barrier: bool = False
    """All connections are opened, and send, at the same moment."""
    page: int | None = None
    """The load consists of pages: so many requests on new connections, timed from the first attempt to connect to the
    last byte."""
    admits: int | None = None
    """Requests that the server admits at once: refusals are counted apart."""
    limits: Limits = Limits()
    message: Body | None = None
    """The load consists of messages: each connection is a WebSocket, and this text must be echoed."""
    call: str | None = None
    """For client scenarios: the load function that the client runs."""
    backends: tuple[Literal["async", "sync"], ...] = ()
    loads: tuple[Load, ...] = ()
    refusals: tuple[int, ...] = ()
    """Statuses that count as refusals."""
    http_1_0: bool = False
    """Over HTTP/1.1 a server may respond with HTTP/1.0."""
    timeout_s: float = 5.0
    quick: bool = False
    tags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    published: tuple[Published, ...] = ()

    def fixture(self, interface: str) -> str:
        """Module and callable of its fixture application."""
        return self.app if ":" in self.app else f"{interface}:{self.app}"

    def connections_over(self, protocol: Protocol) -> int:
        """The connections of the load."""
        return self.h1_connections or self.connections if protocol == "h1" else self.connections

    def concurrency(self, protocol: Protocol) -> int:
        """Concurrent requests on each connection."""
        return self.pipeline if protocol == "h1" else self.streams


@dataclass(frozen=True)
class Section:
    """A part of the catalogue: the source of its scenarios and its method."""

    name: str
    """The published comparison that it repeats."""
    title: str
    source: str
    machine: str = ""
    contract: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    scenarios: tuple[Scenario, ...] = field(default=(), repr=False)
