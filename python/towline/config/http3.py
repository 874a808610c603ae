"""Options of HTTP/3."""

from __future__ import annotations

import dataclasses
from typing import Any

from .. import _options as kind
from .._options import at_least, between, option
from .groups import HTTP3, INT


def port(name: str, value: Any) -> None:
    if value is not None:
        between(1, 65535)(name, value)


# fmt: off - a table of options: one line each where it fits
@dataclasses.dataclass(frozen=True)
class Http3Options:
    """HTTP/3."""

    http3_max_concurrent_streams: int = option(
        128,
        "concurrent requests of a connection; QUIC allows no more",
        group=HTTP3,
        check=between(1, 65536),
        **INT,
    )
    http3_initial_stream_window_size: int = option(
        262144,
        "bytes per stream that the application has not read",
        group=HTTP3,
        parse=kind.integer,
        metavar="BYTES",
        check=between(1024, 2**30),
    )
    http3_retry_handshakes: int = option(
        128,
        "handshakes in progress from which clients must prove their address first (Retry, RFC 9000 8.1.2), per worker; "
        "0: always",
        group=HTTP3,
        check=at_least(0),
        **INT,
    )
    http3_early_data: bool = option(
        False,
        "accept early data (0-RTT): requests of safe methods get to the application before the handshake is complete, with "
        "the header early-data, others wait for it (RFC 8470). Off, since an attacker may have recorded such requests and "
        "send them again: not for applications that change anything on GET",
        group=HTTP3,
    )
    http3_alt_svc_max_age: int = option(
        86400,
        "time for which clients of HTTP/1 and 2 may remember that there is HTTP/3 (header alt-svc, RFC 7838); 0 omits it",
        group=HTTP3,
        parse=kind.integer,
        metavar="SECONDS",
        check=at_least(0),
    )
    http3_alt_svc_port: int | None = option(
        None,
        "UDP port that alt-svc names, if clients reach another than the server's own",
        group=HTTP3,
        parse=kind.optional_integer,
        metavar="PORT",
        check=port,
    )


# fmt: on
