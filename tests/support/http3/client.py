"""HTTP/3 client on aioquic or qh3, blocking and independent of Towline, with control over streams, credit and addresses.

The connection runs in a thread of its own; methods may be called from any other thread and wait for at most `MAX_WAIT`.

    with Client(("127.0.0.1", port), ca="ca.pem") as client:
        assert client.fetch("GET", "/small").body == b"hello"
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.support.exchange import Exchange
from tests.support.patience import PATIENCE

MAX_WAIT = 20.0 * PATIENCE
"""Seconds that anything may take on a busy machine."""

LIBRARIES = ("aioquic", "qh3")
HAS_INTERIM = sys.version_info >= (3, 11)
"""Whether aioquic has interim responses: its last version for CPython 3.10 refuses them."""
CONTROL_STREAM, GOAWAY = 0x00, 0x07
"""Kind of a unidirectional stream, and of a frame (RFC 9114 6.2.1, 7.2.6)."""
Fields = Iterable[tuple[str, str]]


class Library:
    """Modules of aioquic, or of qh3, which descends from it and has the same names."""

    def __init__(self, name: str) -> None:
        pytest.importorskip(name, reason=f"{name} is not installed")
        self.name = name
        self.asyncio = importlib.import_module(f"{name}.asyncio")
        self.protocol = importlib.import_module(f"{name}.asyncio.protocol")
        self.configuration = importlib.import_module(f"{name}.quic.configuration")
        self.h3 = importlib.import_module(f"{name}.h3.connection")

    def configure(self, **options: Any) -> Any:
        """A `QuicConfiguration` with these attributes."""
        configuration = self.configuration.QuicConfiguration()
        if self.name == "qh3":
            # qh3 always announces HTTP datagrams, which need this transport parameter (RFC 9297 2.1.1).
            options.setdefault("max_datagram_frame_size", 65_536)
        for name, value in options.items():
            assert hasattr(configuration, name), name
            setattr(configuration, name, value)
        return configuration


@dataclasses.dataclass
class Closed:
    """End of the connection, by either side."""

    code: int
    reason: str
    application: bool


class Client:
    """One connection.

    `ca`: file of the trusted authority; None trusts any certificate. `ticket`: of an earlier connection (`tickets`), for
    resumption; with `early` requests begin before the handshake is over (0-RTT). `wait=False` does not wait for the
    handshake. `options`: attributes of the library's `QuicConfiguration`.
    """

    def __init__(
        self,
        address: tuple[str, int],
        *,
        library: str = "aioquic",
        ca: str | None = None,
        server_name: str = "127.0.0.1",
        alpn: tuple[str, ...] = ("h3",),
        ticket: Any = None,
        early: bool = False,
        wait: bool = True,
        authority: str | None = None,
        **options: Any,
    ) -> None:
        self.library = Library(library)
        self.address = address
        self.authority = authority or f"{server_name}:{address[1]}"
        self.exchanges: dict[int, Exchange] = {}
        self.tickets: list[Any] = []
        self.closed: Closed | None = None
        self.handshake: Any = None
        self.goaway: int | None = None
        """Last GOAWAY of the server: its first request stream that is not served (RFC 9114 5.2)."""
        self.was_reset = False
        """A stateless reset has come."""
        self.alive = threading.Event()
        self._unidirectional: dict[int, bytes] = {}
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="http3-client", daemon=True)
        self._stack = contextlib.AsyncExitStack()
        configuration = self.library.configure(
            alpn_protocols=list(alpn), server_name=server_name, session_ticket=ticket, **options
        )
        if ca is None:
            configuration.verify_mode = ssl.CERT_NONE
        else:
            configuration.load_verify_locations(ca)
        self._thread.start()
        try:
            self._run(self._connect(configuration, wait=wait, early=early))
        except BaseException:
            self._stop()
            raise

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- requests ------------------------------------------------------------------------------

    def fetch(
        self, method: str = "GET", path: str = "/", body: bytes = b"", headers: Fields = ()
    ) -> Exchange:
        """A whole exchange."""
        stream = self.begin(method, path, headers, end=not body)
        if body:
            self.write(stream, body, end=True)
        return self.finish(stream)[0]

    def begin(self, method: str = "GET", path: str = "/", headers: Fields = (), *, end: bool = True) -> int:
        """Sends a request head and returns the number of its stream."""
        pseudo = [(":method", method), (":scheme", "https"), (":authority", self.authority), (":path", path)]
        return self.begin_raw([*pseudo, *headers], end=end)

    def begin_raw(self, fields: Fields, *, end: bool = True) -> int:
        """Sends a request head with pseudo-headers as given, and returns the number of its stream."""
        return self.on_loop(lambda: self._begin(fields, end))

    def begin_many(self, count: int, method: str = "GET", path: str = "/", headers: Fields = ()) -> list[int]:
        """Several requests in one flight."""
        pseudo = [(":method", method), (":scheme", "https"), (":authority", self.authority), (":path", path)]
        fields = [*pseudo, *headers]
        return self.on_loop(lambda: [self._begin(fields, end=True) for _ in range(count)])

    def write(self, stream: int, data: bytes, *, end: bool = False) -> None:
        """Sends bytes of a body, as one DATA frame."""
        self.on_loop(lambda: self.http.send_data(stream, data, end))

    def trailers(self, stream: int, headers: Fields) -> None:
        self.on_loop(lambda: self.http.send_headers(stream, encoded(headers), True))

    def write_raw(self, stream: int, data: bytes, *, end: bool = False) -> None:
        """Sends bytes of a QUIC stream without framing."""
        self.on_loop(lambda: self.quic.send_stream_data(stream, data, end))

    def open_raw(self, *, unidirectional: bool) -> int:
        """The number of the next stream of a kind; `write_raw` opens it."""
        return int(self.on_loop(lambda: self.quic.get_next_available_stream_id(unidirectional)))

    def reset(self, stream: int, code: int = 0x10C) -> None:
        """Sends RESET_STREAM (H3_REQUEST_CANCELLED)."""
        self.on_loop(lambda: self.quic.reset_stream(stream, code))

    def stop(self, stream: int, code: int = 0x10C) -> None:
        """Sends STOP_SENDING (H3_REQUEST_CANCELLED)."""
        self.on_loop(lambda: self.quic.stop_stream(stream, code))

    def finish(self, *streams: int) -> list[Exchange]:
        """Waits until the streams have ended, and returns their exchanges."""
        self.until(lambda: all(self.exchanges[stream].over for stream in streams) or self.closed)
        assert all(self.exchanges[stream].over for stream in streams), (self.closed, self.exchanges)
        return [self.exchanges[stream] for stream in streams]

    def open_websocket(self, path: str = "/", headers: Fields = ()) -> int:
        """Opens a WebSocket stream (RFC 9220); returns its number once the response head has come.

        Frames are bytes of DATA: `write` sends them, `exchanges[stream].body` has those received.
        """
        self.until(lambda: (self.http.received_settings or {}).get(8))
        pseudo = [(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "https")]
        rest = [(":authority", self.authority), (":path", path), ("sec-websocket-version", "13")]
        stream = self.begin_raw([*pseudo, *rest, *headers], end=False)
        self.until(lambda: self.exchanges[stream].status or self.exchanges[stream].over)
        return stream

    # --- connection ----------------------------------------------------------------------------

    @property
    def early_data_accepted(self) -> bool:
        return bool(self.handshake and self.handshake.early_data_accepted)

    @property
    def resumed(self) -> bool:
        return bool(self.handshake and self.handshake.session_resumed)

    @property
    def settings(self) -> dict[int, int]:
        """Settings of the server, once they have come."""
        return dict(self.until(lambda: self.http.received_settings))

    def ping(self) -> None:
        """Waits until the server has acknowledged a PING."""
        self._run(asyncio.wait_for(self.protocol.ping(), MAX_WAIT))

    def update_keys(self) -> None:
        """Changes the keys of 1-RTT packets (RFC 9001 6)."""
        self.on_loop(self.protocol.request_key_update)

    def change_connection_id(self) -> None:
        self.on_loop(self.protocol.change_connection_id)

    def migrate(self) -> None:
        """Continues from another local port, with another connection id (RFC 9000 9)."""
        self._run(self._rebind())
        self.change_connection_id()

    def withhold_credit(self) -> None:
        """Sends no more MAX_DATA and MAX_STREAM_DATA: the server may send only what its credit allows."""

        def patch() -> None:
            self.quic._write_stream_limits = lambda *_, **__: None
            self.quic._write_connection_limits = lambda *_, **__: None

        self.on_loop(patch)

    def until_closed(self) -> Closed:
        return self.until(lambda: self.closed)

    def until(self, condition: Callable[[], Any]) -> Any:
        """Waits for a condition, which events of the connection make true. It must not send: that needs the lock held here."""
        deadline = time.monotonic() + MAX_WAIT
        with self._changed:
            while not (value := condition()):
                assert time.monotonic() < deadline, (self.closed, self.exchanges)
                self._changed.wait(0.05)
        return value

    def on_loop(self, function: Callable[[], Any]) -> Any:
        """Calls a function in the connection's thread, and sends its effects."""

        async def call() -> Any:
            value = function()
            self.protocol.transmit()
            return value

        return self._run(call())

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._run(asyncio.wait_for(self._stack.aclose(), 5))
        self._stop()

    def abort(self) -> None:
        """Ends without CONNECTION_CLOSE."""
        self._loop.call_soon_threadsafe(self.protocol._transport.abort)
        self._stop()

    # --- in the connection's thread ------------------------------------------------------------

    def _begin(self, fields: Fields, end: bool) -> int:
        stream = self.quic.get_next_available_stream_id()
        self.exchanges[stream] = Exchange()
        self.http.send_headers(stream, encoded(fields), end)
        return int(stream)

    async def _connect(self, configuration: Any, *, wait: bool, early: bool) -> None:
        library, owner = self.library, self

        class Protocol(library.protocol.QuicConnectionProtocol):  # type: ignore[name-defined,misc]
            def quic_event_received(self, event: Any) -> None:
                owner._take(event)

            def datagram_received(self, data: Any, addr: Any) -> None:
                owner._check_reset(self._quic, bytes(data))
                super().datagram_received(data, addr)

        connecting = library.asyncio.connect(
            *self.address,
            configuration=configuration,
            create_protocol=Protocol,
            session_ticket_handler=self.tickets.append,
            wait_connected=False,
        )
        self.protocol = await self._stack.enter_async_context(connecting)
        self.quic = self.protocol._quic
        if early:
            return  # the first request begins the handshake
        self.protocol.transmit()
        if wait:
            await asyncio.wait_for(self.protocol.wait_connected(), MAX_WAIT)

    @property
    def http(self) -> Any:
        if not hasattr(self, "_http"):
            self._http = self.library.h3.H3Connection(self.quic)
        return self._http

    def _take(self, event: Any) -> None:
        name = type(event).__name__
        with self._changed:
            if name == "HandshakeCompleted":
                self.handshake = event
            elif name == "ConnectionTerminated":
                self.closed = Closed(event.error_code, event.reason_phrase, event.frame_type is None)
            elif name == "StreamReset" and event.stream_id in self.exchanges:
                self.exchanges[event.stream_id].reset = event.error_code
            elif name == "StopSendingReceived" and event.stream_id in self.exchanges:
                self.exchanges[event.stream_id].stopped = event.error_code
            elif name != "ProtocolNegotiated" and hasattr(self, "quic"):
                if name == "StreamDataReceived" and event.stream_id % 4 == 3:
                    self._take_unidirectional(event.stream_id, event.data)
                for message in self.http.handle_event(event):
                    self._take_message(message)
            self._changed.notify_all()

    def _check_reset(self, quic: Any, data: bytes) -> None:
        """Notes a stateless reset (RFC 9000 10.3): the libraries take it for an invalid packet."""
        ids = [quic._peer_cid, *quic._peer_cid_available]
        if data[-16:] in [known.stateless_reset_token for known in ids if known.stateless_reset_token]:
            with self._changed:
                self.was_reset = True
                self._changed.notify_all()

    def _take_unidirectional(self, stream: int, data: bytes) -> None:
        """Looks for GOAWAY in the control stream: the libraries ignore it."""
        received = self._unidirectional[stream] = self._unidirectional.get(stream, b"") + data
        kind, rest = varint(received)
        while kind == CONTROL_STREAM and rest:
            frame, rest = varint(rest)
            length, rest = varint(rest)
            if length > len(rest):
                return
            if frame == GOAWAY:
                self.goaway = varint(rest)[0]
            rest = rest[length:]

    def _take_message(self, message: Any) -> None:
        name = type(message).__name__
        exchange = self.exchanges.get(getattr(message, "stream_id", -1))
        if exchange is None:
            return
        if name in ("HeadersReceived", "InformationalHeadersReceived"):
            fields = {key.decode("latin-1"): value.decode("latin-1") for key, value in message.headers}
            status = int(fields.pop(":status", 0))
            if 100 <= status < 200:
                exchange.interim.append((status, fields))
            elif status:
                exchange.status, exchange.fields = status, fields
            else:
                exchange.trailers = fields
        elif name == "DataReceived":
            exchange.body += message.data
        exchange.ended |= getattr(message, "stream_ended", False)

    async def _rebind(self) -> None:
        loop, protocol, old = asyncio.get_running_loop(), self.protocol, self.protocol._transport
        protocol._transport, _ = await loop.create_datagram_endpoint(
            lambda: _Forward(protocol), local_addr=("::", 0)
        )
        old.close()

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(MAX_WAIT + 5)

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(MAX_WAIT)
        if not self._loop.is_running():
            self._loop.close()


class _Forward(asyncio.DatagramProtocol):
    """Passes datagrams of a new socket on; its end is not the connection's."""

    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._protocol.datagram_received(data, addr)


def varint(data: bytes) -> tuple[int, bytes]:
    """A variable-length integer (RFC 9000 16) and what follows; -1 if it is not complete."""
    length = 1 << (data[0] >> 6) if data else 1
    if len(data) < length:
        return -1, b""
    return int.from_bytes(data[:length], "big") & ((1 << (8 * length - 2)) - 1), data[length:]


def encoded(fields: Fields) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields]
