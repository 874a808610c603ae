"""Options of HTTP/2 and WebSocket, and the versions of HTTP."""

from __future__ import annotations

import dataclasses

from .. import _options as kind
from .._options import above_zero, between, option
from .groups import BYTES, INT, PROTOCOLS


# fmt: off - a table of options: one line each where it fits
@dataclasses.dataclass(frozen=True)
class ProtocolOptions:
    """HTTP/2 and WebSocket."""

    http1: bool = option(True, "HTTP/1.1 and HTTP/1.0", group=PROTOCOLS)
    http2: bool = option(True, "HTTP/2, by ALPN or prior knowledge", group=PROTOCOLS)
    http3: bool = option(False, "HTTP/3 on the UDP ports; needs --ssl-certfile", group=PROTOCOLS)
    http2_max_concurrent_streams: int = option(
        128,
        "concurrent streams of a connection; REFUSED_STREAM if exceeded",
        group=PROTOCOLS,
        check=between(1, 2**31 - 1),
        **INT,
    )
    http2_initial_stream_window_size: int = option(
        262144,
        "bytes per stream that the application has not read",
        group=PROTOCOLS,
        parse=kind.integer,
        metavar="BYTES",
        check=between(1, 2**31 - 1),
    )
    http2_initial_connection_window_size: int = option(
        1048576,
        "bytes of all streams together that have not been received (RFC 9113 6.9.2: at least 65535)",
        group=PROTOCOLS,
        parse=kind.integer,
        metavar="BYTES",
        check=between(65535, 2**31 - 1),
    )
    http2_max_headers_size: int = option(
        65536,
        "decoded headers plus 32 bytes for each; 431 if exceeded",
        group=PROTOCOLS,
        **BYTES,
    )
    ws: bool = option(True, "WebSocket; without it an upgrade is an ordinary request", group=PROTOCOLS)
    ws_max_size: int = option(16777216, "message or frame; close 1009 if exceeded", group=PROTOCOLS, **BYTES)
    ws_ping_interval: float | None = option(
        20.0,
        "interval of pings; none disables them",
        group=PROTOCOLS,
        parse=kind.optional_seconds,
        metavar="SECONDS",
        check=above_zero,
    )
    ws_ping_timeout: float | None = option(
        20.0,
        "time for the pong, before the connection is closed",
        group=PROTOCOLS,
        parse=kind.optional_seconds,
        metavar="SECONDS",
        check=above_zero,
    )
    ws_per_message_deflate: bool = option(True, "offer compression (RFC 7692)", group=PROTOCOLS)


# fmt: on
