"""`extensions["network_stream"]`: what httpcore tells about the connection under a response."""

from __future__ import annotations

import socket
import ssl
from typing import Any

_NOT_RAW = "the connection belongs to Towline's pool: it cannot be read or written beside the response"


class NetworkStream:
    """`get_extra_info` with httpcore's names: socket, ssl_object, client_addr, server_addr, is_readable."""

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
    """The part of a socket that says which it is; the descriptor stays the engine's."""

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
    """The questions of an `ssl.SSLObject` that a finished handshake can answer."""

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
        """The certificate in DER; decoding it is for a library: without `binary_form`, as for one not verified."""
        certificate: bytes | None = self._tls.get("peer_certificate")
        if certificate is None or binary_form:
            return certificate
        return {}

    def peer_certificate_pem(self) -> str | None:
        certificate = self.getpeercert(binary_form=True)
        return None if certificate is None else ssl.DER_cert_to_PEM_cert(certificate)
