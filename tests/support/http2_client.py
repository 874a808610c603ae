"""HTTP/2 client on a socket, built on the package `h2`: independent of Towline, with control over flow-control credit."""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings

from tests.support.exchange import Exchange
from tests.support.feature_server import serving
from tests.support.patience import PATIENCE

MAX_WAIT = 20.0 * PATIENCE
"""Seconds that anything may take on a busy machine."""


class Connection(h2.connection.H2Connection):
    """Connection that keeps streams up to GOAWAY's last one open (RFC 9113 6.8); `h2` closes the connection."""

    def _receive_goaway_frame(self, frame: Any) -> Any:
        received = super()._receive_goaway_frame(frame)
        self.state_machine.state = h2.connection.ConnectionState.CLIENT_OPEN
        return received


class Client:
    """One connection. `reads`: streams whose data is acknowledged; None: all of them."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        tls: ssl.SSLContext | None = None,
        settings: dict[Any, int] | None = None,
        before: bytes = b"",
    ) -> None:
        self.socket: socket.socket = socket.create_connection(address, timeout=MAX_WAIT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(before)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=address[0])
        config = h2.config.H2Configuration(client_side=True, header_encoding="latin-1")
        self.conn = Connection(config=config)
        self.exchanges: dict[int, Exchange] = {}
        self.reads: set[int] | None = None
        self.unread: dict[int, int] = {}
        self.goaway: list[tuple[int, int]] = []
        self.closed = False
        self.pongs = 0
        self.scheme = "https" if tls is not None else "http"
        if settings:
            self.conn.local_settings = h2.settings.Settings(client=True, initial_values=settings)
        self.conn.initiate_connection()
        self.flush()

    def close(self) -> None:
        self.socket.close()

    def disconnect(self) -> None:
        """Closes by a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Sending.

    def flush(self) -> None:
        data = self.conn.data_to_send()
        if data:
            self.socket.sendall(data)

    def begin(self, method: str, path: str, headers: Any = (), *, end: bool = True, send: bool = True) -> int:
        stream: int = self.conn.get_next_available_stream_id()
        head = [(":method", method), (":path", path), (":scheme", self.scheme), (":authority", "test")]
        self.conn.send_headers(stream, [*head, *headers], end_stream=end)
        self.exchanges[stream] = Exchange()
        if send:
            self.flush()
        return stream

    def write(self, stream: int, data: bytes, *, end: bool = False) -> None:
        """Sends all of `data` as the server gives credit; stops after a reset."""
        view = memoryview(data)
        while view:
            window = min(
                self.conn.local_flow_control_window(stream), self.conn.max_outbound_frame_size, len(view)
            )
            if window <= 0:
                assert self.take(), "closed in the middle of a body"
                if self.exchanges[stream].reset is not None:
                    return
                continue
            self.conn.send_data(stream, bytes(view[:window]))
            view = view[window:]
            self.flush()
        if end:
            self.conn.end_stream(stream)
            self.flush()

    def reset(self, stream: int, code: int = 8) -> None:
        self.conn.reset_stream(stream, code)
        self.flush()

    def read(self, stream: int) -> None:
        """Acknowledges the received data of a stream, and all later data."""
        if self.reads is not None:
            self.reads.add(stream)
        unread = self.unread.pop(stream, 0)
        if unread and not self.exchanges[stream].over:
            self.conn.increment_flow_control_window(unread, stream)
        self.flush()

    # Receiving.

    def take(self, timeout: float = MAX_WAIT) -> bool:
        """Reads once; False at the end."""
        self.socket.settimeout(timeout)
        try:
            data = self.socket.recv(262144)
        except ConnectionResetError:
            data = b""
        if not data:
            self.closed = True
            return False
        for event in self.conn.receive_data(data):
            self.note(event)
        self.flush()
        return True

    def note(self, event: Any) -> None:
        if isinstance(event, h2.events.ConnectionTerminated):
            self.goaway.append((event.last_stream_id or 0, int(event.error_code or 0)))
            return
        self.pongs += isinstance(event, h2.events.PingAckReceived)
        stream = getattr(event, "stream_id", None)
        exchange = self.exchanges.get(stream) if stream is not None else None
        if exchange is None:
            return
        assert isinstance(stream, int)
        match event:
            case h2.events.ResponseReceived():
                fields = texts(event.headers)
                exchange.status = int(fields.pop(":status"))
                exchange.fields = fields
            case h2.events.InformationalResponseReceived():
                fields = texts(event.headers)
                exchange.interim.append((int(fields.pop(":status")), fields))
            case h2.events.DataReceived():
                exchange.body += event.data
                self.credit(stream, event.flow_controlled_length or 0)
            case h2.events.TrailersReceived():
                exchange.trailers = texts(event.headers)
            case h2.events.StreamEnded():
                exchange.ended = True
            case h2.events.StreamReset():
                exchange.reset = int(event.error_code)

    def credit(self, stream: int, length: int) -> None:
        if self.reads is None or stream in self.reads:
            self.conn.acknowledge_received_data(length, stream)
        elif length:
            self.unread[stream] = self.unread.get(stream, 0) + length
            self.conn.increment_flow_control_window(length)

    def until(self, condition: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + MAX_WAIT
        while not (value := condition()):
            assert time.monotonic() < deadline, (self.exchanges, self.goaway)
            assert self.take(), ("closed", self.exchanges, self.goaway)
        return value

    def until_read(self) -> None:
        """Waits until the server has read everything sent so far."""
        pongs = self.pongs
        self.conn.ping(bytes(8))
        self.flush()
        self.until(lambda: self.pongs > pongs)

    def finish(self, *streams: int) -> list[Exchange]:
        """Waits until the streams have ended, and returns their exchanges."""
        self.until(lambda: all(self.exchanges[stream].over for stream in streams))
        return [self.exchanges[stream] for stream in streams]

    def until_body(self, stream: int, length: int) -> None:
        self.until(lambda: len(self.exchanges[stream].body) == length)

    def fetch(self, method: str = "GET", path: str = "/", body: bytes = b"", headers: Any = ()) -> Exchange:
        stream = self.begin(method, path, headers, end=not body)
        if body:
            self.write(stream, body, end=True)
        return self.finish(stream)[0]

    def until_closed(self) -> None:
        while self.take():
            pass


WEBSOCKET = [(":protocol", "websocket"), ("sec-websocket-version", "13")]


def open_websocket(client: Client, path: str = "/", *headers: tuple[str, str]) -> int:
    """Opens a WebSocket stream (RFC 8441) and returns its number once the response head has come."""
    # SETTINGS_ENABLE_CONNECT_PROTOCOL must be received first (RFC 8441 3).
    client.until(lambda: client.conn.remote_settings.get(8))
    stream = client.begin("CONNECT", path, [*WEBSOCKET, *headers], end=False)
    client.until(lambda: client.exchanges[stream].status)
    return stream


def texts(headers: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in headers}


@contextmanager
def connected_client(kind: str, app: Any, **options: Any) -> Iterator[Client]:
    with serving(kind, app, **options) as server, Client((server.host, server.port)) as client:
        yield client
