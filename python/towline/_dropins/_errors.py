"""Towline's errors as those of httpx and httpx2, which have the same names in the same tree."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from .. import errors

# The nearest class of theirs for each of ours; a class not listed is looked up by its bases.
_NAMES: dict[type[Exception], str] = {
    errors.ConnectTimeout: "ConnectTimeout",
    errors.ReadTimeout: "ReadTimeout",
    errors.WriteTimeout: "WriteTimeout",
    errors.PoolTimeout: "PoolTimeout",
    errors.TimeoutError: "ReadTimeout",  # a deadline over everything is nothing they know
    errors.ConnectError: "ConnectError",
    errors.DNSError: "ConnectError",
    errors.TLSError: "ConnectError",
    errors.ReadError: "ReadError",
    errors.WriteError: "WriteError",
    errors.NetworkError: "NetworkError",
    errors.ProxyError: "ProxyError",
    errors.LocalProtocolError: "LocalProtocolError",
    errors.InvalidHeader: "LocalProtocolError",
    errors.ProtocolError: "RemoteProtocolError",
    errors.InvalidURL: "UnsupportedProtocol",
    errors.TransportError: "TransportError",
}


class ErrorMap:
    """Ours to theirs, for one package; a class is looked up once."""

    def __init__(self, package: ModuleType) -> None:
        self._package = package
        self._classes: dict[type[BaseException], Any] = {}

    def translate(self, error: errors.Error, request: Any) -> Exception:
        """Their error, with the request in it; a mistake of the caller's that they have no class for stays ours, raised."""
        if isinstance(error, errors.ClientClosed):
            return RuntimeError("Cannot send a request, as the transport has been closed.")
        kind = type(error)
        theirs = self._classes.get(kind)
        if theirs is None:
            name = next((_NAMES[base] for base in kind.__mro__ if base in _NAMES), None)
            if name is None:
                raise error
            theirs = self._classes[kind] = getattr(self._package, name)
        translated: Exception = theirs(str(error), request=request)
        return translated
