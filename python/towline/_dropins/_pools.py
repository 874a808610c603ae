"""Converts the arguments of httpx's HTTPTransport to the options of a native pool."""

from __future__ import annotations

import importlib
import os
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from ..client.options import TLS, AltSvcTypes, Limits, PoolOptions, Proxy, Retry, tls_of

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
        tls=dropin_tls(verify, cert),
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


@dataclass(frozen=True)
class DropInTLS(TLS):
    """TLS of a drop-in: OpenSSL is used for servers with which rustls has nothing in common."""

    def legacy_context(self) -> ssl.SSLContext:
        """The context with which the replaced package would connect: it has CBC ciphers and keys of P-521."""
        cafile = capath = None
        if self.trust not in ("system", "platform", "environment", "certifi"):
            cafile, capath = (None, self.trust) if os.path.isdir(self.trust) else (self.trust, None)
        elif self.trust == "certifi" or not _has_system_store():
            cafile = importlib.import_module("certifi").where()
        context = ssl.create_default_context(cafile=cafile, capath=capath)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert:
            context.load_cert_chain(self.cert, self.key, self.password)
        if self.min_version == "1.3":
            context.minimum_version = ssl.TLSVersion.TLSv1_3
        return context


def _has_system_store() -> bool:
    paths = ssl.get_default_verify_paths()
    return bool(paths.cafile or paths.capath)


def dropin_tls(verify: Any, cert: Any) -> TLS | ssl.SSLContext:
    """`tls_of` for a drop-in. An `ssl.SSLContext` or a `TLS` of the program stays as it is."""
    tls = tls_of(verify, cert)
    if tls is verify or not isinstance(tls, TLS):
        return tls
    return DropInTLS(**vars(tls))


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
