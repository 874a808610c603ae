"""Converts Towline's errors to those of httpx and httpx2, whose classes have the same names."""

from __future__ import annotations

import ssl
from types import ModuleType
from typing import Any

from .. import errors

# The closest class of httpx for each class of Towline; a class that is not listed is looked up by its bases.
_NAMES: dict[type[Exception], str] = {
    errors.ConnectTimeout: "ConnectTimeout",
    errors.ReadTimeout: "ReadTimeout",
    errors.WriteTimeout: "WriteTimeout",
    errors.PoolTimeout: "PoolTimeout",
    errors.TimeoutError: "ReadTimeout",  # httpx has no deadline for the whole call
    errors.ConnectError: "ConnectError",
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
    """Converts errors for one of the two packages. Classes are cached."""

    def __init__(self, package: ModuleType) -> None:
        self._package = package
        self._classes: dict[type[BaseException], Any] = {}

    def translate(self, error: errors.Error, request: Any) -> Exception:
        """Returns the error of the package, with `request`. Raises `error` itself if the package has no class for it."""
        if isinstance(error, errors.ClientClosed):
            return RuntimeError("Cannot send a request, as the transport has been closed.")
        kind = type(error)
        theirs = self._classes.get(kind)
        if theirs is None:
            name = next((_NAMES[base] for base in kind.__mro__ if base in _NAMES), None)
            if name is None:
                raise error
            theirs = self._classes[kind] = getattr(self._package, name)
        if isinstance(error, errors.TLSError):
            # Where programs find it with the package's own transport: `error.__cause__.__context__`.
            error.__context__ = ssl.SSLError(str(error))
        translated: Exception = theirs(str(error), request=request)
        return translated
