"""A WebSocket echo without a library (RFC 6455), right or wrong in one chosen way."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from typing import Literal

Fault = Literal["byte", "early_close", "length", "status", "close", "kind", "key", "twice"]
FAULTS: tuple[Fault, ...] = ("byte", "early_close", "length", "status", "close", "kind", "key", "twice")

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
FIN, TEXT, BINARY, CLOSE = 0x80, 0x1, 0x2, 0x8
MASKED = 0x80


async def serve(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    fields: dict[bytes, bytes],
    fault: Fault | None,
) -> None:
    """From the head of the handshake until the client closes."""
    if fault == "status":
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        return
    key = fields[b"sec-websocket-key"] + (b"x" if fault == "key" else b"")
    accept = base64.b64encode(hashlib.sha1(key + GUID).digest())
    writer.write(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
    )
    while True:
        kind, data = await received(reader)
        if kind == CLOSE:
            writer.write(frame(CLOSE, data))
            await writer.drain()
            return
        wire = respond(kind, data, fault)
        writer.write(wire)
        await writer.drain()
        if fault in ("early_close", "close"):
            return


def respond(kind: int, data: bytes, fault: Fault | None) -> bytes:
    if fault == "byte":
        data = data[:-1] + bytes([data[-1] ^ 1])
    elif fault == "length":
        data += b"x"
    elif fault == "kind":
        kind = BINARY
    elif fault == "close":
        return frame(CLOSE, (1011).to_bytes(2, "big"))
    wire = frame(kind, data)
    if fault == "twice":
        return wire + wire
    return wire[:-1] if fault == "early_close" else wire


def frame(kind: int, data: bytes) -> bytes:
    """Unfragmented and unmasked, as server frames must be."""
    size = len(data)
    length = bytes([size]) if size < 126 else bytes([126]) + size.to_bytes(2, "big")
    return bytes([FIN | kind]) + length + data


async def received(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    first, second = await reader.readexactly(2)
    size = second & 0x7F
    if size == 126:
        size = int.from_bytes(await reader.readexactly(2), "big")
    assert first & FIN
    assert second & MASKED
    mask = await reader.readexactly(4)
    data = await reader.readexactly(size)
    return first & 0xF, bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
