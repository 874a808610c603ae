"""Converts the arguments of httpx's HTTPTransport to the options of a native pool."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable
from typing import Any, Literal

from ..client.options import AltSvcTypes, Limits, PoolOptions, Proxy, Retry, tls_of

# Socket option -> index in `tcp_keepalive=(idle, interval, count)`.
_KEEPALIVE = {
    getattr(socket, name): index
    for index, names in enumerate([("TCP_KEEPIDLE", "TCP_KEEPALIVE"), ("TCP_KEEPINTVL",), ("TCP_KEEPCNT",)])
    for name in names
    if hasattr(socket, name)
}


def pool_options(
    *,
    verify: ssl.SSLContext | str | bool,
    cert: Any,
    http1: bool,
    http2: bool,
    http3: bool | Literal["prior"],
    early_data: bool,
    alt_svc: AltSvcTypes | None,
    limits: Any,
    proxy: Any,
    uds: str | None,
    local_address: str | None,
    retries: int,
    socket_options: Iterable[Any] | None,
) -> PoolOptions:
    """Raises ConfigError or ValueError for unsupported values."""
    optional: dict[str, Any] = {}
    if socket_options is not None:
        optional["tcp_keepalive"] = keepalive_of(socket_options)
    return PoolOptions(
        tls=tls_of(verify, cert),
        proxy=Proxy.of(proxy),
        http1=http1,
        http2=http2,
        http3=http3,
        early_data=early_data,
        alt_svc=alt_svc,
        limits=Limits(
            max_connections=limits.max_connections,
            max_connections_per_host=None,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
        ),
        retries=Retry(connect=retries),
        local_address=local_address,
        uds=uds,
        **optional,
    )


def keepalive_of(socket_options: Iterable[Any]) -> tuple[int, int, int] | None:
    """Returns `tcp_keepalive` for `socket_options`. TCP_NODELAY is always on. Raises ValueError for other options."""
    on, times = False, [60, 30, 5]
    for level, name, value, *_ in socket_options:
        if (level, name) == (socket.SOL_SOCKET, socket.SO_KEEPALIVE):
            on = bool(value)
        elif level == socket.IPPROTO_TCP and name in _KEEPALIVE:
            times[_KEEPALIVE[name]] = int(value)
        elif (level, name) != (socket.IPPROTO_TCP, socket.TCP_NODELAY):
            raise ValueError(
                f"socket_options: ({level}, {name}) is not supported, only SO_KEEPALIVE, TCP_KEEPIDLE, TCP_KEEPINTVL, "
                "TCP_KEEPCNT and TCP_NODELAY"
            )
    return (times[0], times[1], times[2]) if on else None
