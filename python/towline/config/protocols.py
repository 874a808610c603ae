"""Options of the versions of HTTP, and of WebSocket."""

from __future__ import annotations

import dataclasses

from .. import _options as kind
from .._options import Section, between, number, option, period, size


# A table, whose layout the formatter keeps.
# fmt: off
@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class ProtocolOptions(Section, group="protocols", summary="HTTP versions, HTTP/2 and WebSocket"):
    http1: bool = option(True, "HTTP/1.1 and HTTP/1.0")
    http2: bool = option(True, "HTTP/2, by ALPN or prior knowledge")
    http3: bool = option(False, "HTTP/3 on the UDP ports; needs --ssl-certfile")
    http2_max_concurrent_streams: int = number(
        128, "concurrent streams of a connection; REFUSED_STREAM if exceeded", check=between(1, 2**31 - 1))
    http2_initial_stream_window_size: int = size(
        262144, "window of a stream: bytes that the application has not read", check=between(1, 2**31 - 1))
    http2_initial_connection_window_size: int = size(
        1048576, "window of all streams of a connection together (RFC 9113 6.9.2: at least 65535)",
        check=between(65535, 2**31 - 1))
    http2_max_headers_size: int = size(65536, "decoded headers plus 32 bytes for each; 431 if exceeded")
    ws: bool = option(True, "WebSocket; without it an upgrade is an ordinary request")
    ws_max_size: int = size(16777216, "message or frame; close 1009 if exceeded")
    ws_ping_interval: float | None = period(
        20.0, "interval of pings; `none` disables pings", parse=kind.optional_seconds)
    ws_ping_timeout: float | None = period(
        20.0, "time to wait for the pong; then the connection is closed", parse=kind.optional_seconds)
    ws_per_message_deflate: bool = option(True, "compression of WebSocket messages (RFC 7692)")


# fmt: on
