"""`extensions["network_stream"]`: data about the connection of a response, as httpcore provides it."""

from __future__ import annotations

import socket
import ssl
from typing import Any

_NOT_RAW = "the connection belongs to Towline's pool and cannot be read or written directly"


class NetworkStream:
    """`get_extra_info` with httpcore's names: socket, ssl_object, client_addr, server_addr."""

    __slots__ = ("_reply",)

    def __init__(self, reply: Any) -> None:
        self._reply = reply

    def get_extra_info(self, info: str) -> Any:
        if info == "client_addr":
            return self._reply.local_address
        if info == "server_addr":
            return self._reply.remote_address
        if info == "ssl_object":
            return None if self._reply.tls is None else TlsInfo(self._reply.tls)
        if info == "socket":
            return SocketInfo(self._reply)
        return None

    def read(self, max_bytes: int, timeout: float | None = None) -> Any:
        raise NotImplementedError(_NOT_RAW)

    def write(self, buffer: bytes, timeout: float | None = None) -> Any:
        raise NotImplementedError(_NOT_RAW)

    def start_tls(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(_NOT_RAW)


class SocketInfo:
    """The read-only part of the socket interface. The descriptor is not available."""

    __slots__ = ("_reply",)

    def __init__(self, reply: Any) -> None:
        self._reply = reply

    @property
    def family(self) -> socket.AddressFamily:
        address = self._reply.remote_address
        if not isinstance(address, tuple):
            return socket.AF_UNIX
        return socket.AF_INET6 if ":" in address[0] else socket.AF_INET

    @property
    def type(self) -> socket.SocketKind:
        return socket.SOCK_STREAM

    def getsockname(self) -> Any:
        return self._reply.local_address

    def getpeername(self) -> Any:
        return self._reply.remote_address

    def fileno(self) -> int:
        return -1


class TlsInfo:
    """The read-only part of the `ssl.SSLObject` interface, after the handshake."""

    __slots__ = ("_tls",)

    def __init__(self, tls: dict[str, Any]) -> None:
        self._tls = tls

    def version(self) -> str | None:
        version: str | None = self._tls.get("version")
        return version

    def cipher(self) -> tuple[str | None, str | None, int | None]:
        return (self._tls.get("cipher"), self.version(), None)

    def selected_alpn_protocol(self) -> str | None:
        protocol: str | None = self._tls.get("alpn")
        return protocol

    def getpeercert(self, binary_form: bool = False) -> Any:
        """Returns the certificate in DER. Without `binary_form` returns {}, as for a certificate that was not verified."""
        certificate: bytes | None = self._tls.get("peer_certificate")
        if certificate is None or binary_form:
            return certificate
        return {}

    def peer_certificate_pem(self) -> str | None:
        certificate = self.getpeercert(binary_form=True)
        return None if certificate is None else ssl.DER_cert_to_PEM_cert(certificate)
