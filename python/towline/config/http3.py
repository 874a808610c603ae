"""Options of HTTP/3."""

from __future__ import annotations

import dataclasses
from typing import Any

from .. import _options as kind
from .._options import Section, between, number, option, size


def port(name: str, value: Any) -> None:
    if value is not None:
        between(1, 65535)(name, value)


# A table, whose layout the formatter keeps.
# fmt: off
@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class Http3Options(Section, group="http3", summary="HTTP/3"):
    http3_max_concurrent_streams: int = number(
        128, "concurrent requests of a connection; QUIC enforces it", check=between(1, 65536))
    http3_initial_stream_window_size: int = size(
        262144, "window of a stream: bytes that the application has not read", check=between(1024, 2**30))
    http3_retry_handshakes: int = number(
        128,
        "handshakes in progress per worker above which clients must prove their address first (Retry, RFC 9000 8.1.2); "
        "0: always",
        least=0)
    http3_early_data: bool = option(
        False,
        "accept early data (0-RTT): the application gets requests of safe methods before the handshake is complete, with "
        "the header early-data (RFC 8470). Off: an attacker can repeat such requests")
    http3_congestion: str = option(
        "cubic",
        "congestion control: bbr for lossy networks",
        choices=("cubic", "bbr"))
    http3_alt_svc_max_age: int = number(
        86400,
        "time for which clients of HTTP/1.1 and HTTP/2 may remember that there is HTTP/3 (header alt-svc, RFC 7838); 0 omits the header",
        metavar="SECONDS", least=0)
    http3_alt_svc_port: int | None = option(
        None, "UDP port to announce in alt-svc, if clients reach the server on another port than its own",
        parse=kind.optional_integer, metavar="PORT", check=port)


# fmt: on
