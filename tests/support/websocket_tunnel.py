"""Tunnel from HTTP/1.1 WebSocket clients to HTTP/2: each connection becomes a stream (RFC 8441). Built on `h2`.

Tests and independent peers that implement only the HTTP/1.1 handshake use both versions with it. Buffered data
is bounded by the stream's window and one chunk, so a slow peer slows the other one down.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import select
import socket
import ssl
import threading

from tests.support.exchange import Exchange
from tests.support.http2_client import MAX_WAIT, Client

PIECE = 65536
CANCEL = 8
ENABLE_CONNECT_PROTOCOL = 8
"""The setting of RFC 8441 3."""
ACCEPT_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
OF_HTTP1 = {"host", "connection", "upgrade", "sec-websocket-key"}


def tunnel(address: tuple[str, int], *, tls: ssl.SSLContext | None = None) -> socket.socket:
    """Returns a socket for an HTTP/1.1 client; its data goes over an HTTP/2 connection to `address`."""
    # Not a pair of unix sockets: websockets before 17 sets an option of TCP. Its buffers are as small as those would be.
    near = socket.socket()
    with socket.socket() as listener:
        for one in (near, listener):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIECE)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE)
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        near.connect(listener.getsockname())
        far, _ = listener.accept()
    threading.Thread(target=run_tunnel, args=(far, address), kwargs={"tls": tls}, daemon=True).start()
    return near


def run_tunnel(far: socket.socket, address: tuple[str, int], *, tls: ssl.SSLContext | None = None) -> None:
    """Forwards one connection until it ends. `far`: the tunnel's end of the connection to the client."""
    with contextlib.suppress(OSError), far, Client(address, tls=tls) as client:
        far.settimeout(MAX_WAIT)
        request = b""
        while b"\r\n\r\n" not in request:
            if not (piece := far.recv(PIECE)):
                return
            request += piece
        head, _, early = request.partition(b"\r\n\r\n")
        _TunnelledConn(far, client, head.decode("latin-1"), early).run()


class _TunnelledConn:
    """One connection. `up`: bytes for the server; `down`: bytes for the client, not yet credited to the server."""

    def __init__(self, far: socket.socket, client: Client, head: str, early: bytes) -> None:
        self.far, self.client = far, client
        self.up, self.down = early, b""
        # Whether the client may still write; whether the stream has been ended.
        self.is_open, self.is_ended = True, False
        self.has_responded = False
        # The server must have announced support first (SETTINGS_ENABLE_CONNECT_PROTOCOL).
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
            return  # no orderly end, as on the stream
        self.far.shutdown(socket.SHUT_WR)
        self.client.close()
        # Reads the rest from the client: closing with unread data would send a reset.
        while self.far.recv(PIECE):
            pass

    def turn(self) -> None:
        reads: list[socket.socket] = [self.client.socket]
        if self.is_open and len(self.up) < PIECE:
            reads.append(self.far)
        # `select` does not report bytes that TLS has already read.
        has_pending = isinstance(self.client.socket, ssl.SSLSocket) and self.client.socket.pending() > 0
        readable, writable, _ = select.select(
            reads, [self.far] if self.down else [], [], 0 if has_pending else MAX_WAIT
        )
        if has_pending or self.client.socket in readable:
            if not self.client.take():
                raise ConnectionResetError("the server has closed the connection")
            self.send_head()
        if self.far in readable:
            piece = self.far.recv(PIECE)
            self.up += piece
            self.is_open = bool(piece)
        if writable:
            self.forward()
        self.send()
        if not self.down:
            self.down, self.exchange.body = self.exchange.body, b""

    def send_head(self) -> None:
        """Sends the HTTP/1.1 head of the stream's response."""
        fields, status = dict(self.exchange.fields), self.exchange.status
        if self.has_responded or not status:
            return
        self.has_responded = True
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
            # The client has closed: a TCP reset is a stream error (RFC 8441 5).
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
            window = min(conn.local_flow_control_window(self.id), conn.max_outbound_frame_size)
            if window <= 0:
                return
            conn.send_data(self.id, self.up[:window])
            self.up = self.up[window:]
            self.client.flush()
        if not (self.is_open or self.is_ended or self.exchange.over):
            self.is_ended = True
            self.client.conn.end_stream(self.id)
            self.client.flush()
