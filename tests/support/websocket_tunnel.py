"""A WebSocket client of HTTP/1.1 over HTTP/2: each of its connections becomes a stream (RFC 8441), made of `h2`.

Tests and independent peers that know only the handshake of HTTP/1.1 speak both versions with it. What is under
way is bounded by the stream's window and a piece, so each end feels it when the other is slow.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import select
import socket
import ssl
import threading

from tests.support.http2_client import MAX_WAIT, Client, Exchange

PIECE = 65536
CANCEL = 8
ENABLE_CONNECT_PROTOCOL = 8
"""The setting of RFC 8441 3."""
ACCEPT_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
OF_HTTP1 = {"host", "connection", "upgrade", "sec-websocket-key"}


def tunnel(address: tuple[str, int], *, tls: ssl.SSLContext | None = None) -> socket.socket:
    """A socket for a client of HTTP/1.1; behind it lies a connection of HTTP/2 to `address`."""
    near, far = socket.socketpair()
    threading.Thread(target=carry, args=(far, address), kwargs={"tls": tls}, daemon=True).start()
    return near


def carry(far: socket.socket, address: tuple[str, int], *, tls: ssl.SSLContext | None = None) -> None:
    """Carries one connection to its end. `far`: the end of it that is not the client's."""
    with contextlib.suppress(OSError), far, Client(address, tls=tls) as client:
        far.settimeout(MAX_WAIT)
        request = b""
        while b"\r\n\r\n" not in request:
            if not (piece := far.recv(PIECE)):
                return
            request += piece
        head, _, early = request.partition(b"\r\n\r\n")
        _Carried(far, client, head.decode("latin-1"), early).run()


class _Carried:
    """One connection. `up`: bytes for the server; `down`: bytes for the client, each of which is credit owed."""

    def __init__(self, far: socket.socket, client: Client, head: str, early: bytes) -> None:
        self.far, self.client = far, client
        self.up, self.down = early, b""
        # The client may still write; the stream has been ended.
        self.is_open, self.is_ended = True, False
        self.has_answered = False
        # The server must have said first that it takes such requests.
        client.until(lambda: client.conn.remote_settings.get(ENABLE_CONNECT_PROTOCOL))
        first, *lines = head.split("\r\n")
        fields = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        self.key = dict(fields).get("sec-websocket-key", "").encode()
        kept = [field for field in fields if field[0] not in OF_HTTP1]
        client.reads = set()
        self.id = client.begin("CONNECT", first.split()[1], [(":protocol", "websocket"), *kept], end=False)

    @property
    def exchange(self) -> Exchange:
        return self.client.exchanges[self.id]

    def run(self) -> None:
        while not self.exchange.over or self.down or self.exchange.body:
            self.turn()
        if self.exchange.reset:
            return  # without a farewell, as it came
        self.far.shutdown(socket.SHUT_WR)
        self.client.close()
        # What the client still sends is taken: a socket closed before it would be a reset.
        while self.far.recv(PIECE):
            pass

    def turn(self) -> None:
        reads: list[socket.socket] = [self.client.socket]
        if self.is_open and len(self.up) < PIECE:
            reads.append(self.far)
        # Bytes that TLS has taken already are none for `select`.
        has_some = isinstance(self.client.socket, ssl.SSLSocket) and self.client.socket.pending() > 0
        readable, writable, _ = select.select(
            reads, [self.far] if self.down else [], [], 0 if has_some else MAX_WAIT
        )
        if has_some or self.client.socket in readable:
            if not self.client.take():
                raise ConnectionResetError("the server has closed the connection")
            self.answer()
        if self.far in readable:
            piece = self.far.recv(PIECE)
            self.up += piece
            self.is_open = bool(piece)
        if writable:
            self.forward()
        self.send()
        if not self.down:
            self.down, self.exchange.body = self.exchange.body, b""

    def answer(self) -> None:
        """The head that HTTP/1.1 has for the stream's answer."""
        fields, status = dict(self.exchange.fields), self.exchange.status
        if self.has_answered or not status:
            return
        self.has_answered = True
        if status == 200:
            status = 101
            digest = base64.b64encode(hashlib.sha1(self.key + ACCEPT_GUID).digest()).decode()
            fields |= {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-accept": digest}
        lines = [f"HTTP/1.1 {status} -", *(f"{name}: {value}" for name, value in fields.items())]
        self.far.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))

    def forward(self) -> None:
        try:
            count = self.far.send(self.down[:PIECE])
        except OSError:
            # Nobody reads any more: a reset of TCP is a stream error (RFC 8441 5).
            if not self.exchange.over:
                self.client.reset(self.id, CANCEL)
            raise
        self.down = self.down[count:]
        if not self.exchange.over:
            self.client.conn.increment_flow_control_window(count, self.id)
            self.client.flush()

    def send(self) -> None:
        conn = self.client.conn
        while self.up and not self.exchange.over:
            room = min(conn.local_flow_control_window(self.id), conn.max_outbound_frame_size)
            if room <= 0:
                return
            conn.send_data(self.id, self.up[:room])
            self.up = self.up[room:]
            self.client.flush()
        if not (self.is_open or self.is_ended or self.exchange.over):
            self.is_ended = True
            self.client.conn.end_stream(self.id)
            self.client.flush()
