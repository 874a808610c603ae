"""HTTP/3 server on aioquic, independent of Towline: in a thread for tests, or as a program.

    with serving(place) as server:
        ...  # https://127.0.0.1:{server.port}, server.requests, server.connections

As a program: `python -m tests.support.http3.server PORT KEY CERT [--retry] [--early]`.

| path | response |
|---|---|
| /small, /large | those of `interop_app` |
| /echo | the body of the request |
| /headers | the fields of the request, one a line |
| /status/NNN | that status, without a body |
| /trailers | `hello`, then the trailer `x-after: yes` |
| /early-hints | 103, then `hello` |
| /slow | `hello` after 0.2 s |
| /silent | nothing |
| /reset/NNN | half a body, then RESET_STREAM with that code |
| /refuse | RESET_STREAM with H3_REQUEST_REJECTED before a response |
| /truncated | content-length 10, five bytes, FIN |
| /goaway | `hello`, after a GOAWAY that accepts no further request |
| /close/NNN | CONNECTION_CLOSE with that application code |
| /ws (CONNECT, RFC 9220) | the bytes of the stream, back |
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

from tests.support.http3.client import MAX_WAIT, Library
from tests.support.interop_app import LARGE, SMALL

H3_REQUEST_REJECTED = 0x10B
GOAWAY = 7


@dataclasses.dataclass
class Request:
    """Request as received so far. `early`: in 0-RTT. `stopped`, `reset`: codes of the client."""

    connection: int
    stream: int
    fields: dict[str, str]
    early: bool
    body: bytes = b""
    ended: bool = False
    reset: int | None = None
    stopped: int | None = None

    @property
    def path(self) -> str:
        return self.fields.get(":path", "")


class Server:
    """State that a test reads: `requests` in the order of their heads, `connections` in that of their handshakes."""

    def __init__(self) -> None:
        self.library = Library("aioquic")
        self.port = 0
        self.requests: list[Request] = []
        self.connections: list[Any] = []
        self._tickets: dict[bytes, Any] = {}

    async def start(
        self,
        key: str,
        cert: str,
        *,
        port: int = 0,
        host: str = "127.0.0.1",
        retry: bool = False,
        early: bool = False,
        **options: Any,
    ) -> Any:
        """Listens. `options`: attributes of `QuicConfiguration`, such as `max_stream_data` and `idle_timeout`."""
        library, owner = self.library, self
        configuration = library.configure(is_client=False, alpn_protocols=["h3"], **options)
        configuration.load_cert_chain(cert, key)

        class Protocol(library.protocol.QuicConnectionProtocol):  # type: ignore[name-defined,misc]
            def __init__(self, *args: Any, **named: Any) -> None:
                super().__init__(*args, **named)
                self.state = _Connection(owner, self)

            def quic_event_received(self, event: Any) -> None:
                self.state.take(event)

        def keep(ticket: Any) -> None:
            self._tickets[ticket.ticket] = ticket

        def fetch(label: bytes) -> Any:
            return self._tickets.pop(label, None)

        tickets = {"session_ticket_handler": keep, "session_ticket_fetcher": fetch} if early else {}
        listening = await library.asyncio.serve(
            host, port, configuration=configuration, create_protocol=Protocol, retry=retry, **tickets
        )
        self.port = listening._transport.get_extra_info("sockname")[1]
        return listening


class _Connection:
    """Requests of one connection."""

    def __init__(self, server: Server, protocol: Any) -> None:
        self.server = server
        self.protocol = protocol
        self.http: Any = None
        self.streams: dict[int, Request] = {}
        self.handshaken = False
        self.number = len(server.connections)
        server.connections.append(self)

    def take(self, event: Any) -> None:
        name = type(event).__name__
        if name == "HandshakeCompleted":
            self.handshaken = True
        if name == "ProtocolNegotiated":
            self.http = self.server.library.h3.H3Connection(self.protocol._quic)
        request = self.streams.get(getattr(event, "stream_id", -1))
        if request is not None and name == "StreamReset":
            request.reset = event.error_code
        if request is not None and name == "StopSendingReceived":
            request.stopped = event.error_code
        if self.http is not None:
            for message in self.http.handle_event(event):
                self.take_message(message)

    def take_message(self, message: Any) -> None:
        name = type(message).__name__
        if name == "HeadersReceived" and message.stream_id not in self.streams:
            fields = {key.decode("latin-1"): value.decode("latin-1") for key, value in message.headers}
            request = Request(self.number, message.stream_id, fields, early=not self.handshaken)
            self.streams[message.stream_id] = request
            self.server.requests.append(request)
            if fields.get(":protocol"):
                self.head(request.stream, 200, [])
        found = self.streams.get(getattr(message, "stream_id", -1))
        if found is None:
            return
        if name == "DataReceived":
            found.body += message.data
            if found.fields.get(":protocol") and message.data:
                self.http.send_data(found.stream, message.data, False)
        if getattr(message, "stream_ended", False) and not found.ended:
            found.ended = True
            if found.fields.get(":protocol"):
                self.http.send_data(found.stream, b"", True)
            else:
                self.respond(found)
        self.protocol.transmit()

    def respond(self, request: Request) -> None:
        stream, (_, name, *rest) = request.stream, [*request.path.partition("?")[0].split("/"), ""]
        quic = self.protocol._quic
        match name:
            case "small":
                self.send(stream, SMALL)
            case "large":
                self.send(stream, LARGE)
            case "echo":
                self.send(stream, request.body)
            case "headers":
                self.send(
                    stream, "\n".join(f"{key}: {value}" for key, value in request.fields.items()).encode()
                )
            case "status":
                self.head(stream, int(rest[0]), [(b"content-length", b"0")], end=True)
            case "trailers":
                self.head(stream, 200, [])
                self.http.send_data(stream, SMALL, False)
                self.http.send_headers(stream, [(b"x-after", b"yes")], True)
            case "early-hints":
                self.head(stream, 103, [(b"link", b"</style.css>; rel=preload")])
                self.send(stream, SMALL)
            case "slow":
                asyncio.get_running_loop().call_later(0.2, self.send_later, stream, SMALL)
            case "silent":
                pass
            case "reset":
                self.head(stream, 200, [(b"content-length", b"10")])
                self.http.send_data(stream, SMALL, False)
                asyncio.get_running_loop().call_later(0.05, self.reset_later, stream, int(rest[0]))
            case "refuse":
                quic.reset_stream(stream, H3_REQUEST_REJECTED)
            case "truncated":
                self.head(stream, 200, [(b"content-length", b"10")])
                self.http.send_data(stream, SMALL, True)
            case "goaway":
                payload = varint(stream + 4)
                quic.send_stream_data(
                    self.http._local_control_stream_id, varint(GOAWAY) + varint(len(payload)) + payload
                )
                self.send(stream, SMALL)
            case "close":
                quic.close(error_code=int(rest[0]), reason_phrase="as requested")
            case _:
                self.head(stream, 404, [(b"content-length", b"0")], end=True)

    def head(self, stream: int, status: int, fields: list[tuple[bytes, bytes]], *, end: bool = False) -> None:
        self.http.send_headers(stream, [(b":status", b"%d" % status), *fields], end)

    def send(self, stream: int, body: bytes) -> None:
        is_head = self.streams[stream].fields[":method"] == "HEAD"
        fields = [(b"content-length", b"%d" % len(body)), (b"x-version", b"3")]
        self.head(stream, 200, fields, end=is_head)
        if not is_head:
            self.http.send_data(stream, body, True)

    def send_later(self, stream: int, body: bytes) -> None:
        self.send(stream, body)
        self.protocol.transmit()

    def reset_later(self, stream: int, code: int) -> None:
        self.protocol._quic.reset_stream(stream, code)
        self.protocol.transmit()


def varint(value: int) -> bytes:
    """A variable-length integer (RFC 9000 16)."""
    for prefix, bits, code in ((0, 6, "!B"), (1, 14, "!H"), (2, 30, "!I"), (3, 62, "!Q")):
        if value < 1 << bits:
            return struct.pack(code, prefix << bits | value)
    raise ValueError(value)


@contextlib.contextmanager
def serving(place: Any, **options: Any) -> Iterator[Server]:
    """A server in a thread. `place` has the paths `key` and `cert`; `options` are those of `Server.start`."""
    server = Server()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="http3-server", daemon=True)
    thread.start()
    starting = asyncio.run_coroutine_threadsafe(server.start(place.key, place.cert, **options), loop)
    try:
        listening = starting.result(MAX_WAIT)
        yield server
        loop.call_soon_threadsafe(listening.close)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(MAX_WAIT)
        loop.close()


def free_port() -> int:
    """A port that is free for UDP and TCP at the moment."""
    while True:
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            tcp.bind(("127.0.0.1", 0))
            with contextlib.suppress(OSError):
                udp.bind(tcp.getsockname())
                return int(tcp.getsockname()[1])


async def main(options: argparse.Namespace) -> None:
    server = Server()
    await server.start(options.key, options.cert, port=options.port, retry=options.retry, early=options.early)
    print(f"listening on {server.port}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("port", type=int)
    parser.add_argument("key")
    parser.add_argument("cert")
    parser.add_argument("--retry", action="store_true", help="validate addresses with Retry")
    parser.add_argument("--early", action="store_true", help="accept 0-RTT")
    asyncio.run(main(parser.parse_args()))
