"""HTTP/2 server controlled by a script, built on the package `h2`: independent of Towline, and strict."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
import hyperframe.frame

from tests.support import http1_peer
from tests.support.patience import PATIENCE

MAX_WAIT = 20.0 * PATIENCE
"""Seconds that anything may take on a busy machine."""

MAX_STREAMS = h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS
WINDOW = h2.settings.SettingCodes.INITIAL_WINDOW_SIZE
NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, REFUSED_STREAM, CANCEL = 0, 1, 2, 7, 8
ENHANCE_YOUR_CALM, INADEQUATE_SECURITY, HTTP_1_1_REQUIRED = 11, 12, 13

Fields = Iterable[tuple[str, str]]


class ClosedError(ConnectionError):
    """The client has closed the connection; a script may leave it to the harness."""


class Connection(h2.connection.H2Connection):
    """Connection that keeps open streams after GOAWAY (RFC 9113 6.8); `h2` closes the connection."""

    def _receive_goaway_frame(self, frame: Any) -> Any:
        received = super()._receive_goaway_frame(frame)
        self.state_machine.state = h2.connection.ConnectionState.SERVER_OPEN
        return received


@dataclasses.dataclass
class ReceivedRequest:
    """Request: the parts received so far."""

    stream: int
    fields: list[tuple[str, str]]
    body: bytes = b""
    trailers: dict[str, str] = dataclasses.field(default_factory=dict)
    ended: bool = False
    reset: int | None = None

    def __getitem__(self, name: str) -> str:
        """Returns the value of a field that occurs exactly once."""
        (value,) = [value for found, value in self.fields if found == name]
        return value

    def __contains__(self, name: str) -> bool:
        return any(found == name for found, _ in self.fields)

    @property
    def line(self) -> str:
        return f"{self[':method']} {self[':path']}"


class Peer:
    """One connection. `auto_credit`: received data is acknowledged at once, so that the client may send more."""

    def __init__(self, sock: socket.socket, settings: dict[Any, int], auto_credit: bool = True) -> None:
        self.socket = sock
        self.auto_credit = auto_credit
        config = h2.config.H2Configuration(client_side=False, header_encoding="latin-1")
        self.conn = Connection(config=config)
        self.requests: dict[int, ReceivedRequest] = {}
        self.delivered = 0
        self.pongs = 0
        self.goaway: list[tuple[int, int]] = []
        self.conn.initiate_connection()
        # Not as initial values: the package would enforce them before the client has received them.
        self.conn.update_settings(settings)
        self.flush()

    # Receiving.

    def take(self, within: float = MAX_WAIT) -> None:
        """Receives once; raises TimeoutError after `within` seconds."""
        self.socket.settimeout(within)
        try:
            data = self.socket.recv(262_144)
        except ConnectionError:
            data = b""
        if not data:
            raise ClosedError
        for event in self.conn.receive_data(data):
            self._note(event)
        self.flush()

    def until(self, condition: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + MAX_WAIT
        while not (value := condition()):
            assert time.monotonic() < deadline, self.requests
            self.take()
        return value

    def until_closed(self) -> None:
        with contextlib.suppress(ClosedError):
            while True:
                self.take()

    def head(self) -> ReceivedRequest:
        """Returns the next request; its body may be incomplete."""
        self.until(lambda: len(self.requests) > self.delivered)
        self.delivered += 1
        return list(self.requests.values())[self.delivered - 1]

    def next_request(self) -> ReceivedRequest:
        """Returns the next complete request."""
        request = self.head()
        self.until(lambda: request.ended or request.reset is not None)
        return request

    def until_reset(self, request: ReceivedRequest) -> int:
        self.until(lambda: request.reset is not None)
        assert request.reset is not None
        return request.reset

    def _note(self, event: Any) -> None:
        stream = getattr(event, "stream_id", None)
        match event:
            case h2.events.RequestReceived():
                assert stream is not None
                self.requests[stream] = ReceivedRequest(stream, [(str(n), str(v)) for n, v in event.headers])
            case h2.events.DataReceived():
                assert stream is not None
                self.requests[stream].body += event.data
                if self.auto_credit and event.flow_controlled_length:
                    # At once: the package would wait for more bytes than a small window allows.
                    self.conn.increment_flow_control_window(event.flow_controlled_length)
                    with contextlib.suppress(KeyError, h2.exceptions.StreamClosedError):
                        # The end may have been received together with the data.
                        self.conn.increment_flow_control_window(event.flow_controlled_length, stream)
            case h2.events.TrailersReceived():
                assert stream is not None
                self.requests[stream].trailers = {str(n): str(v) for n, v in event.headers}
            case h2.events.StreamEnded():
                assert stream is not None
                self.requests[stream].ended = True
            case h2.events.StreamReset():
                assert stream is not None
                self.requests[stream].reset = int(event.error_code)
            case h2.events.PingAckReceived():
                self.pongs += 1
            case h2.events.ConnectionTerminated():
                self.goaway.append((event.last_stream_id or 0, int(event.error_code or 0)))

    # Sending.

    def flush(self) -> None:
        if data := self.conn.data_to_send():
            self.socket.sendall(data)

    def begin(
        self, request: ReceivedRequest, status: int = 200, fields: Fields = (), *, end: bool = False
    ) -> None:
        self.conn.send_headers(request.stream, [(":status", str(status)), *fields], end_stream=end)
        self.flush()

    def window(self, request: ReceivedRequest) -> int:
        window = self.conn.local_flow_control_window(request.stream)
        return min(window, self.conn.max_outbound_frame_size)

    def write(self, request: ReceivedRequest, data: bytes, *, end: bool = False) -> None:
        """Sends all of `data` as the client gives credit."""
        view = memoryview(data)
        while view:
            self.until(lambda: self.window(request) > 0 or request.reset is not None)
            if request.reset is not None:
                return
            window = min(self.window(request), len(view))
            self.conn.send_data(request.stream, bytes(view[:window]))
            view = view[window:]
            self.flush()
        if end:
            self.conn.end_stream(request.stream)
            self.flush()

    def fill(self, request: ReceivedRequest) -> int:
        """Sends until the client's window is empty; returns the number of bytes."""
        sent = 0
        while window := self.window(request):
            self.conn.send_data(request.stream, b"x" * window)
            self.flush()
            sent += window
        return sent

    def respond(
        self, request: ReceivedRequest, body: bytes = b"", status: int = 200, fields: Fields = ()
    ) -> None:
        self.begin(request, status, fields, end=not body)
        if body:
            self.write(request, body, end=True)

    def send_trailers(self, request: ReceivedRequest, fields: Fields) -> None:
        self.conn.send_headers(request.stream, list(fields), end_stream=True)
        self.flush()

    def reset(self, request: ReceivedRequest, code: int) -> None:
        self.conn.reset_stream(request.stream, code)
        self.flush()

    def credit(self, request: ReceivedRequest, length: int) -> None:
        """Gives the client credit for `length` further bytes."""
        self.conn.increment_flow_control_window(length, request.stream)
        self.conn.increment_flow_control_window(length)
        self.flush()

    def settings(self, values: dict[Any, int]) -> None:
        self.conn.update_settings(values)
        self.flush()

    def send_goaway(self, last: int, code: int = NO_ERROR, debug: bytes = b"") -> None:
        """Sends GOAWAY directly on the socket: the package would close the connection."""
        frame = hyperframe.frame.GoAwayFrame(0, last_stream_id=last, error_code=code, additional_data=debug)
        self.socket.sendall(frame.serialize())


Script = Callable[[Peer, int], None]


@dataclasses.dataclass
class Server:
    """Address of the server, and its connections so far."""

    url: str
    port: int
    peers: list[Peer]


@contextlib.contextmanager
def serving(
    script: Script,
    *,
    settings: dict[Any, int] | None = None,
    auto_credit: bool = True,
    tls: ssl.SSLContext | None = None,
) -> Iterator[Server]:
    """Runs `script(peer, number)` for each connection; an exception in it fails the test."""
    failures: list[BaseException] = []
    peers: list[Peer] = []
    lock = threading.Lock()

    def handler(raw: http1_peer.Peer) -> None:
        try:
            peer = Peer(raw.sock, settings or {}, auto_credit)
            with lock:
                number = len(peers)
                peers.append(peer)
            script(peer, number)
        except OSError:
            pass  # the client has closed, as in many tests
        except BaseException as error:
            failures.append(error)

    with http1_peer.scripted(handler, tls) as running:
        try:
            yield Server(running.url, running.port, peers)
        except BaseException as error:
            # The client's error is only a consequence.
            raise (failures or [error])[0] from error
    if failures:
        raise failures[0]


def always(respond: Callable[[Peer, ReceivedRequest], None]) -> Script:
    """Responds to each request in the order of completion."""

    def script(peer: Peer, number: int) -> None:
        while True:
            respond(peer, peer.next_request())

    return script


def offering(context: ssl.SSLContext, *protocols: str) -> ssl.SSLContext:
    context.set_alpn_protocols(list(protocols))
    return context
