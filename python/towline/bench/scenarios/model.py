"""What a scenario is: requests to the byte, the answer each must get, and what distinguishes the load.

Data only. `loader` reads it from TOML, `session` hands it to the generator.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Kind = Literal["server", "client", "webhooks", "llm"]
"""What is measured: servers, clients, an application that forwards webhooks, a language model endpoint."""

Protocol = Literal["h1", "h2"]
PROTOCOLS: tuple[Protocol, ...] = ("h1", "h2")
Interface = Literal["asgi", "wsgi"]

Fields = tuple[tuple[str, str], ...]
"""Names and values, in the order in which they leave."""

OF_CONNECTIONS = frozenset({"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"})
"""Fields that HTTP/2 does not have (RFC 9113 8.2.2)."""


@dataclass(frozen=True)
class Body:
    """Bytes, written as `count` times `unit` so that a mebibyte of x stays small; or a file's."""

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
        """As the generator's agent takes it."""
        if self.path is not None:
            return {"file": str(self.path)}
        try:
            text = self.unit.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(self.whole()).decode()}
        return {"text": text} if self.count == 1 else {"repeat": text, "count": self.count}


@dataclass(frozen=True)
class Expect:
    """What must come back. Everything that is given is verified."""

    status: int | None = 200
    """None: any of 2xx and 3xx."""
    body: Body | None = Body()
    """Decoded where a coding is given; None: any."""
    fields: Fields = ()
    """Those that matter, their values whole."""
    coding: str | None = None
    """Content-Encoding that the answer must have."""
    interim: tuple[int, ...] = ()
    """Statuses that come before it."""
    closes: bool | None = None
    """Whether the server closes afterwards; None: as it likes. One that says so may close in any case."""
    delay_ms: float = 0.0
    """For scenarios of clients: how long the responder waits."""
    pieces: int = 1
    """For streamed answers: of how many writes the application makes it."""


@dataclass(frozen=True)
class SendMode:
    """How the request leaves. At most one of these is set."""

    pieces: int = 1
    """In so many, `gap_ms` apart."""
    gap_ms: float = 0.0
    await_continue: bool = False
    """The body waits for 100."""
    drop_after_bytes: int | None = None
    """The connection is closed after so much of the body; the same request whole must then succeed."""

    def plain(self) -> Any:
        """As the generator's agent takes it."""
        if self.await_continue:
            return "await_continue"
        if self.drop_after_bytes is not None:
            return {"drop_after_bytes": self.drop_after_bytes}
        return {"pieces": self.pieces, "gap_ms": self.gap_ms} if self.pieces > 1 else "whole"


@dataclass(frozen=True)
class Request:
    """One request and its answer."""

    target: str
    method: str = "GET"
    fields: Fields = ()
    body: Body | None = None
    """Before chunk framing."""
    chunk_bytes: int | None = None
    """Sent chunked, so many bytes a chunk."""
    send_mode: SendMode = SendMode()
    weight: int = 1
    """Relative frequency where requests are mixed at random."""
    expect: Expect = Expect()

    def fields_over(self, protocol: Protocol) -> Fields:
        """Those that leave: HTTP/2 says with its frames what some of them say."""
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
        """The request as it is sent over HTTP/1.1, to the byte."""
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
    """Somebody else's figures from their machine: context, never our result."""

    figures: tuple[tuple[str, float], ...]
    """By subject."""
    unit: str = "requests/s"
    machine: str = ""
    protocol: str = "h1"


@dataclass(frozen=True)
class Limits:
    """What a server is told for the scenario."""

    requests_per_connection: int | None = None
    concurrency: int | None = None
    needed: bool = True
    """Without such an option a server is skipped. False: the load does without."""

    def plain(self) -> dict[str, int]:
        """Those that are set."""
        found = {"requests_per_connection": self.requests_per_connection, "concurrency": self.concurrency}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class Load:
    """One load of a scenario that is measured from the client's side."""

    name: str = ""
    concurrency: int = 1
    """Tasks, threads or connections under way together."""
    count: int | None = None
    """Requests in all; None: for a time."""
    batch: int = 1
    """Requests that are awaited together and count as one iteration."""
    body_bytes: int = 0
    pool: int = 100
    """Connections that the client may have."""
    origins: int = 1
    gap_s: float = 0.0
    """Between one batch and the next."""
    floor_s: float | None = None
    """The arithmetic of the load: nobody can be faster."""


@dataclass(frozen=True)
class Scenario:
    """One entry of the catalogue."""

    name: str
    section: str
    title: str
    source: str
    kind: Kind = "server"
    app: str = "app"
    """The callable of the fixture files (bench/apps) that answers it."""
    interfaces: tuple[Interface, ...] = ("asgi", "wsgi")
    protocols: tuple[Protocol, ...] = ("h1",)
    tls: bool = False
    """Over TLS, whatever the run says."""
    requests: tuple[Request, ...] = ()
    mix: Literal["in_turn", "at_random"] = "in_turn"
    connections: int = 50
    count: int | None = None
    """Requests of a run in the source; ours lasts as long as its statistics need."""
    pipeline: int = 1
    """HTTP/1.1: requests under way on each connection."""
    streams: int = 1
    """HTTP/2: the same."""
    requests_per_connection: int | None = None
    barrier: bool = False
    """All connections are made, and ask, at the same moment."""
    admits: int | None = None
    """How many the server admits at once: refusals are counted apart."""
    limits: Limits = Limits()
    message: Body | None = None
    """The load is messages: each connection is a WebSocket, and this text goes there and comes back."""
    call: str | None = None
    """Of a client's scenario: the load function that the client runs."""
    backends: tuple[Literal["async", "sync"], ...] = ()
    loads: tuple[Load, ...] = ()
    refusals: tuple[int, ...] = ()
    """Statuses that say no cleanly."""
    timeout_s: float = 5.0
    quick: bool = False
    tags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    published: tuple[Published, ...] = ()

    def concurrency(self, protocol: Protocol) -> int:
        """Requests under way on each connection."""
        return self.pipeline if protocol == "h1" else self.streams


@dataclass(frozen=True)
class Section:
    """A part of the catalogue: where its scenarios come from and how its source measured."""

    letter: str
    title: str
    source: str
    machine: str = ""
    contract: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    scenarios: tuple[Scenario, ...] = field(default=(), repr=False)
