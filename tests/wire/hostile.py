"""The corpus of hostile requests, and applications that write down what reached them."""

from __future__ import annotations

import dataclasses
import json
import socket
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parents[2] / "conformance" / "corpus" / "h1_hostile.json"

# A refusal closes at once; this is how long an open connection is watched before it counts as kept.
QUIET_SECONDS = 0.4
CLOSE_SECONDS = 4.0


@dataclasses.dataclass(frozen=True)
class Case:
    id: str
    expect: str
    max: int
    must_close: bool
    shut: bool
    wire: bytes


def cases() -> list[Case]:
    """Every case, with its bytes put together."""
    return [
        Case(
            id=raw["id"],
            expect=raw["expect"],
            max=raw["max"],
            must_close=raw.get("must_close", False),
            shut=raw.get("shut", False),
            wire=wire_of(raw),
        )
        for raw in json.loads(CORPUS.read_text())["cases"]
    ]


def wire_of(raw: dict[str, Any]) -> bytes:
    """The bytes of a case: as they are, or from its repeated parts."""
    if "raw" in raw:
        return str(raw["raw"]).encode("latin-1")
    parts = (text.replace("{i}", str(i)) for text, count in raw["parts"] for i in range(count))
    return "".join(parts).encode("latin-1")


@dataclasses.dataclass(frozen=True)
class Request:
    """A request that an application has read to its end."""

    method: str
    target: str
    body: bytes


class Recorder:
    """Requests that the applications completed, by the client's port: each case has a connection of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_port: dict[int, list[Request]] = defaultdict(list)

    def add(self, port: int, request: Request) -> None:
        with self._lock:
            self._by_port[port].append(request)

    def forget(self, port: int) -> None:
        """A new connection has it: on the loopback a port comes back soon."""
        with self._lock:
            self._by_port.pop(port, None)

    def of(self, port: int) -> list[Request]:
        with self._lock:
            return list(self._by_port[port])

    async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
        """Reads the body, except for /noread, then counts and answers."""
        if scope["type"] != "http":
            raise RuntimeError(f"no {scope['type']} here")
        body = b""
        more = not scope["path"].endswith("/noread")
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        target = scope["raw_path"].decode("latin-1")
        if scope["query_string"]:
            target += "?" + scope["query_string"].decode("latin-1")
        self.add(scope["client"][1], Request(scope["method"], target, body))
        fields = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": fields})
        await send({"type": "http.response.body", "body": b"ok"})

    def wsgi(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        """Count for WSGI. A truncated body raises in `read`, so it is never counted."""
        body = b"" if environ["PATH_INFO"].endswith("/noread") else environ["wsgi.input"].read()
        target = environ["PATH_INFO"]
        if environ.get("QUERY_STRING"):
            target += "?" + environ["QUERY_STRING"]
        self.add(int(environ["REMOTE_PORT"]), Request(environ["REQUEST_METHOD"], target, body))
        start_response("200 OK", [("Content-Length", "2")])
        return [b"ok"]


@dataclasses.dataclass(frozen=True)
class Response:
    """Response bytes of one connection."""

    requests: list[Request]
    data: bytes
    closed: bool


def send_case(
    address: tuple[str, int],
    recorder: Recorder,
    case: Case,
    pieces: list[bytes],
    quiet_seconds: float = QUIET_SECONDS,
) -> Response:
    """Sends a case over a connection of its own and reads until the server closes or stays quiet."""
    with socket.create_connection(address, timeout=CLOSE_SECONDS) as conn:
        own_port = conn.getsockname()[1]
        recorder.forget(own_port)
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for piece in pieces:
                conn.sendall(piece)
                if len(pieces) > 1:
                    time.sleep(0.002)
            if case.shut:
                conn.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            pass  # refused before everything was sent
        must_close = case.expect == "R" or case.must_close
        conn.settimeout(CLOSE_SECONDS if must_close else quiet_seconds)
        data, closed = read_response(conn)
        return Response(recorder.of(own_port), data, closed)


def read_response(conn: socket.socket) -> tuple[bytes, bool]:
    """Bytes received, and whether the server has closed."""
    data = b""
    while True:
        try:
            piece = conn.recv(65536)
        except TimeoutError:
            return data, False
        except ConnectionResetError:
            return data, True
        if not piece:
            return data, True
        data += piece
