"""Server with the responses of a scenario, correct or with one chosen fault.

It is built from the catalogue alone, so that none of Towline's HTTP code is on both sides.
"""

from __future__ import annotations

import asyncio
import gzip
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded
from towline.bench.scenarios import Protocol, Request, Scenario

from . import faulty_websocket

Fault = Literal["byte", "early_close", "length", "status", "reset"]
FAULTS: dict[Protocol, tuple[Fault, ...]] = {
    "h1": ("byte", "early_close", "length", "status"),
    "h2": ("byte", "early_close", "length", "status", "reset"),
}


@dataclass(frozen=True)
class FaultyResponse:
    """A response before framing."""

    status: int
    fields: tuple[tuple[str, str], ...]
    body: bytes
    stray: bytes
    """Bytes after the end of the body, where there must be none."""
    is_cut: bool
    """The last byte is missing, and the connection ends there."""
    is_reset: bool
    """The last byte is missing, and the stream is reset there."""


def faulty_response(request: Request, fault: Fault | None) -> FaultyResponse:
    expected = request.expect
    assert expected.body is not None
    status = expected.status if fault != "status" else 500
    assert status is not None
    fields, body = dict(expected.fields), expected.body.whole()
    is_empty = request.method == "HEAD" or status in (204, 304)
    if fault == "byte" and body:
        body = body[:-1] + bytes([body[-1] ^ 1])
    elif fault == "byte":
        name, value = next(iter(fields.items()))
        fields[name] = value[:-1] + chr(ord(value[-1]) ^ 1)
    stray = b"x" if fault == "length" and is_empty else b""
    if fault == "length" and not is_empty:
        body += b"x"
    if expected.coding == "gzip":
        fields["Content-Encoding"], body = "gzip", gzip.compress(body, mtime=0)
    if not is_empty:
        fields["Content-Length"] = str(len(body))
    return FaultyResponse(
        status,
        tuple(fields.items()),
        b"" if is_empty else body,
        stray,
        fault == "early_close",
        fault == "reset",
    )


class Faulty:
    """Server whose responses can be changed between requests."""

    def __init__(self, protocol: Protocol = "h1") -> None:
        self.protocol = protocol
        self.responses: dict[tuple[bytes, bytes], FaultyResponse] = {}
        self.fault_of_messages: faulty_websocket.Fault | None = None
        self.port = 0
        self.secure_port = 0

    def play(self, scenario: Scenario, fault: Fault | None) -> str:
        """Serves `scenario` from now on; returns the base URL."""
        if scenario.message is not None:
            return self.play_messages(None)
        self.responses = {
            (request.method.encode(), request.target.encode()): faulty_response(request, fault)
            for request in scenario.requests
        }
        return f"https://127.0.0.1:{self.secure_port}" if scenario.tls else f"http://127.0.0.1:{self.port}"

    def play_messages(self, fault: faulty_websocket.Fault | None) -> str:
        """Serve WebSockets with this fault; they have faults of their own."""
        self.fault_of_messages = fault
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.protocol == "h2":
                await OverHttp2(self.responses, reader, writer).serve()
            else:
                while await self.exchange(reader, writer):
                    pass
        except (OSError, EOFError):
            pass
        finally:
            writer.close()

    async def exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Handles one request; returns whether there may be another."""
        first, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
        fields = {name.lower(): value for name, _, value in (line.partition(b": ") for line in lines)}
        if b"expect" in fields:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if b"transfer-encoding" in fields:
            await reader.readuntil(b"\r\n0\r\n\r\n")
        remaining = int(fields.get(b"content-length", b"0"))
        while remaining:
            data = await reader.read(min(remaining, 1 << 20))
            if not data:
                raise EOFError
            remaining -= len(data)
        method, target, _ = first.split(b" ")
        if b"upgrade" in fields:
            await faulty_websocket.serve(reader, writer, fields, self.fault_of_messages)
            return False
        one = self.responses[method, target]
        # The generator announces a connection's last request itself.
        closes = fields.get(b"connection") == b"close"
        writer.write(over_http1(one, closes=closes))
        await writer.drain()
        return not one.is_cut and not closes


def over_http1(one: FaultyResponse, *, closes: bool) -> bytes:
    fields = [*one.fields, *([("Connection", "close")] if closes else [])]
    lines = [f"HTTP/1.1 {one.status} Said", *(f"{name}: {value}" for name, value in fields), "", ""]
    wire = "\r\n".join(lines).encode() + one.body + one.stray
    return wire[:-1] if one.is_cut else wire


class OverHttp2:
    """One connection, with the frames of an independent implementation."""

    def __init__(
        self,
        responses: dict[tuple[bytes, bytes], FaultyResponse],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.responses, self.reader, self.writer = responses, reader, writer
        # Allows frames that a correct server would not send.
        config = H2Configuration(client_side=False, validate_outbound_headers=False, header_encoding=None)
        self.frames = H2Connection(config)
        self.requests: dict[int, tuple[bytes, bytes]] = {}
        self.unsent: dict[int, FaultyResponse] = {}

    async def serve(self) -> None:
        self.frames.initiate_connection()
        self.writer.write(self.frames.data_to_send())
        while data := await self.reader.read(1 << 16):
            for event in self.frames.receive_data(data):
                if isinstance(event, RequestReceived):
                    named = dict(event.headers)
                    self.requests[event.stream_id] = named[b":method"], named[b":path"]
                elif isinstance(event, DataReceived):
                    self.frames.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, StreamEnded):
                    self.unsent[event.stream_id] = self.responses[self.requests.pop(event.stream_id)]
            closes = False
            while self.unsent:
                closes |= self.respond(*self.unsent.popitem())
            self.writer.write(self.frames.data_to_send())
            await self.writer.drain()
            if closes:
                return

    def respond(self, stream: int, one: FaultyResponse) -> bool:
        """The client's windows are larger than all these responses. Returns whether the connection ends."""
        body = one.body + one.stray
        fields = [(name.lower(), value) for name, value in one.fields]
        complete = not (one.is_cut or one.is_reset)
        if body or complete:
            self.frames.send_headers(stream, [(":status", str(one.status)), *fields], end_stream=not body)
        sent, step = body if complete else body[:-1], self.frames.max_outbound_frame_size
        for at in range(0, len(sent), step):
            self.frames.send_data(stream, sent[at : at + step])
        if one.is_reset or (one.is_cut and not body):
            self.frames.reset_stream(stream)
        elif body and complete:
            self.frames.end_stream(stream)
        return one.is_cut


@contextmanager
def faulty(pem: tuple[Path, Path], protocol: Protocol = "h1") -> Iterator[Faulty]:
    """Runs the server on its own thread, in plain text and over TLS."""
    server, ready = Faulty(protocol), threading.Event()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pem)
    context.set_alpn_protocols(["h2" if protocol == "h2" else "http/1.1"])
    loop = asyncio.new_event_loop()

    async def start() -> None:
        plain = await asyncio.start_server(server.serve, "127.0.0.1", 0, limit=1 << 22)
        secure = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context)
        server.port, server.secure_port = (one.sockets[0].getsockname()[1] for one in (plain, secure))
        ready.set()

    async def end() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def run() -> None:
        loop.run_until_complete(start())
        loop.run_forever()
        loop.run_until_complete(end())
        loop.close()

    thread = threading.Thread(target=run, name="faulty")
    thread.start()
    assert ready.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
