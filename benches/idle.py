"""Memory of an idle connection of each kind: `python -m benches.idle [--connections 10000] [--only HTTP/3]`.

Each connection has exchanged its first request or message and is idle. Growth is the resident memory of the server
above the level with 200 connections of the same kind; each kind has its own server.
"""

from __future__ import annotations

import argparse
import datetime
import socket
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from towline.bench.runner.agent import Agent
from towline.bench.runner.design import Cores
from towline.bench.runner.protocol import SliceSpec
from towline.bench.scenarios import catalogue, session_config
from towline.bench.subjects import Process, Server, make_certificate

from benches import memory, report
from benches.bench_servers import OURS, chosen, running
from tests.wire.http2_attacks import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GET,
    HEADERS,
    PREFACE,
    SETTINGS,
    frame,
    settings,
)

WARM = 200
BATCH = 200
"""Handshakes of QUIC at once."""
HTTP3 = "HTTP/3"
MESSAGE = b'{"seq": 1, "text": "as much as a chat says"}' * 20
HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dG93bGluZS1iZW5jaC0wMA==\r\n"
)
OFFER = b"Sec-WebSocket-Extensions: permessage-deflate\r\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benches.idle", description=__doc__.split("\n\n")[0])
    parser.add_argument("--connections", type=int, default=10_000)
    kinds = [*KINDS, HTTP3]
    parser.add_argument(
        "--only", nargs="+", choices=kinds, default=kinds, metavar="KIND", help=", ".join(kinds)
    )
    parser.add_argument("--no-save", dest="save", action="store_false", help="leave benches/results/ alone")
    options = parser.parse_args()
    memory.allow_descriptors(options.connections + WARM + 100)
    (server,) = chosen(OURS)
    entries: dict[str, Any] = {}
    for kind, exchange in KINDS.items():
        if kind not in options.only:
            continue
        with running(server, memory.APP) as subject:
            sockets = [opened(subject.port, exchange) for _ in range(WARM)]
            before = memory.resident_kib(subject)
            sockets += [opened(subject.port, exchange) for _ in range(options.connections)]
            grown = memory.resident_kib(subject) - before
            entries[kind] = entry(subject, options.connections, grown)
            for connection in sockets:
                connection.close()
        print(kind, entries[kind]["mib"], "MiB", flush=True)
    if HTTP3 in options.only:
        entries[HTTP3] = http3(server, options.connections)
        print(HTTP3, entries[HTTP3]["mib"], "MiB", flush=True)
    if options.save:
        report.save("idle", entries)
        write_tables()
    return 0


def entry(subject: Process, connections: int, grown_kib: int) -> dict[str, Any]:
    return {
        "date": datetime.date.today().isoformat(),
        "machine": report.machine(),
        "versions": report.versions(),
        "command": " ".join(subject.command),
        "connections": connections,
        "mib": round(grown_kib / 1024, 1),
        "kib_each": round(grown_kib / connections, 2),
    }


def http3(server: Server, connections: int) -> dict[str, Any]:
    """QUIC connections of the load generator, a batch of handshakes after the other, each with one request."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Agent(Cores.divided().driver) as agent,
        running(server, memory.APP, http3=make_certificate(Path(folder)).tls) as subject,
    ):

        def open_connections(name: str, count: int) -> None:
            load = session_config(
                catalogue()["hello"], subject.base_url, protocol="h3", connections=count
            ) | {"timeout_s": 30.0, "connect_timeout_s": 60.0}
            for target in load["targets"]:
                target["expect"] = {"status": 200}
            agent.open(name, load)
            found = agent.slice(name, SliceSpec(0.0, requests=count))
            if found["answered"] != count or found["live_connections"]["at_end"] != count:
                raise ValueError(f"{found['answered']} responses: {found['first_failure']}")

        open_connections("warm", WARM)
        time.sleep(1)
        before = memory.resident_kib(subject)
        for number in range(connections // BATCH):
            open_connections(f"batch {number}", BATCH)
        # Handshakes hold more until the peer has confirmed them.
        time.sleep(1)
        return entry(subject, connections, memory.resident_kib(subject) - before)


def opened(port: int, exchange: Callable[[socket.socket], None]) -> socket.socket:
    connection = memory.connect(port)
    exchange(connection)
    return connection


def http1(connection: socket.socket) -> None:
    memory.exchange(0, connection)


def http2(connection: socket.socket) -> None:
    """Sends the preface and one request, and reads the response to its end."""
    connection.sendall(PREFACE + settings() + frame(HEADERS, END_HEADERS | END_STREAM, 1, GET))
    received = b""
    while True:
        received += connection.recv(65536)
        at = 0
        while len(received) >= at + 9:
            end = at + 9 + int.from_bytes(received[at : at + 3], "big")
            if received[at + 3] == DATA and received[at + 4] & END_STREAM and len(received) >= end:
                connection.sendall(frame(SETTINGS, 1))
                return
            at = end


def websocket(connection: socket.socket, *, deflate: bool = False) -> None:
    connection.sendall(HANDSHAKE + (OFFER if deflate else b"") + b"\r\n")
    head = connection.recv(4096)
    if b" 101 " not in head or (b"permessage-deflate" in head) != deflate:
        raise ValueError(f"unexpected handshake response: {head!r}")
    packed = MESSAGE
    if deflate:
        packer = zlib.compressobj(wbits=-12)
        packed = (packer.compress(MESSAGE) + packer.flush(zlib.Z_SYNC_FLUSH))[:-4]
    length = (
        bytes([0x80 | 126]) + len(packed).to_bytes(2, "big")
        if len(packed) > 125
        else bytes([0x80 | len(packed)])
    )
    connection.sendall(bytes([0xC1 if deflate else 0x81]) + length + bytes(4) + packed)
    if connection.recv(4096)[0] != (0xC1 if deflate else 0x81):
        raise ValueError("no echo was received")


KINDS: dict[str, Callable[[socket.socket], None]] = {
    "HTTP/1.1": http1,
    "HTTP/2": http2,
    "WebSocket": websocket,
    "WebSocket with deflate": lambda connection: websocket(connection, deflate=True),
}


def write_tables() -> None:
    found = report.load("idle")
    rows = [
        [kind, f"{one['connections']:,}", f"{one['mib']:.1f}", f"{one['kib_each']:.2f}"]
        for kind, one in found.items()
    ]
    text = "Idle connections of each kind, after their first traffic, each kind to a server of its own.\n"
    about = "\n".join({report.conditions(one): None for one in found.values()}) + "\n"
    table = report.table(["kind", "connections", "MiB", "KiB each"], rows)
    report.write_markdown("idle", "Idle connections", [text, table, about], "python -m benches.idle")


if __name__ == "__main__":
    sys.exit(main())
