"""Transports by name, and the default transport of a client.

The order of precedence: `transport=` of the call or the client, then TOWLINE_TRANSPORT (for streams first
TOWLINE_STREAM_TRANSPORT), then `towline.configure(...)`, then the native transport. An invalid name in the environment
warns and is ignored, since the user of a program is not its author; an invalid name in the program raises.
"""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from typing import Any

from ..errors import ConfigError

_ADAPTERS = "towline.client.transports.adapters"
_BLOCKING = {"httpx": f"{_ADAPTERS}:HttpxTransport", "urllib3": f"{_ADAPTERS}:Urllib3Transport"}
_ASYNC = {"httpx": f"{_ADAPTERS}:AsyncHttpxTransport", "aiohttp": f"{_ADAPTERS}:AiohttpTransport"}
_defaults: dict[str, str | None] = {"transport": None, "stream_transport": None}


def configure(*, transport: str | None = None, stream_transport: str | None = None) -> None:
    """Sets the default transport of clients that are created later. It has the lowest precedence.

    `native`, `httpx`, `urllib3` (blocking), `aiohttp` (asynchronous), or `module:Class`. If only one of the two clients
    can use the transport, the other one stays native. Raises ConfigError for an unknown name.
    """
    for name in (transport, stream_transport):
        if name is not None and name not in _BLOCKING and name not in _ASYNC and name != "native":
            _import_class(name)
    _defaults.update(transport=transport, stream_transport=stream_transport)


def by_name(name: str, is_async: bool) -> Any:
    """Creates a transport; None: the native one. Raises ConfigError for a name that cannot be used."""
    if name == "native":
        return None
    known = _ASYNC if is_async else _BLOCKING
    if name not in known and name in {**_BLOCKING, **_ASYNC}:
        raise ConfigError(f"transport: {name!r} is for {'Client' if is_async else 'AsyncClient'} only")
    try:
        made = _import_class(known.get(name, name))()
    except ImportError as error:
        raise ConfigError(
            f"transport: {name!r} cannot be used: {error}; install the missing package"
        ) from error
    return wrap(made, is_async)


def wrap(transport: Any, is_async: bool) -> Any:
    """Returns a transport unchanged; wraps one of httpx in an adapter."""
    method = "handle_async_request" if is_async else "handle_request"
    if not hasattr(transport, method):
        other = "handle_request" if is_async else "handle_async_request"
        hint = f"; it has {other}(), which {'Client' if is_async else 'AsyncClient'} uses" * hasattr(
            transport, other
        )
        raise ConfigError(f"transport: {type(transport).__name__} has no {method}(request){hint}")
    if any(kind.__module__.partition(".")[0] in ("httpx", "httpx2") for kind in type(transport).__mro__):
        adapters = import_module(_ADAPTERS)
        adapter = adapters.AsyncHttpxTransport if is_async else adapters.HttpxTransport
        return adapter(transport)
    return transport


def configured(is_async: bool, trust_env: bool) -> tuple[Any, Any]:
    """Returns (transport, transport for streams) of a client without `transport=`. None: native."""
    plain = _first(is_async, trust_env, "TOWLINE_TRANSPORT", "transport")
    streams = _first(is_async, trust_env, "TOWLINE_STREAM_TRANSPORT", "stream_transport")
    if streams is _NOT_SET:
        return (None, None) if plain is _NOT_SET else (plain, plain)
    return (None if plain is _NOT_SET else plain), streams


_NOT_SET: Any = object()


def _first(is_async: bool, trust_env: bool, variable: str, default: str) -> Any:
    name = os.environ.get(variable, "") if trust_env else ""
    if name:
        try:
            return by_name(name, is_async)
        except ConfigError as error:
            warnings.warn(
                f"{variable}={name}: {error}; using Towline's own transport", RuntimeWarning, stacklevel=5
            )
    chosen = _defaults[default]
    if chosen is None or (is_async and chosen == "urllib3") or (not is_async and chosen == "aiohttp"):
        return _NOT_SET
    return by_name(chosen, is_async)


def _import_class(name: str) -> Any:
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        known = ", ".join(sorted({"native", *_BLOCKING, *_ASYNC}))
        raise ConfigError(f"transport: {name!r} is unknown; expected one of {known}, or module:Class")
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError:
        raise ConfigError(f"transport: {module} has no {attribute}") from None
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise ConfigError(f"transport: no module named {module}") from None
        raise
    return found
