"""Which transport a name means, and what is chosen where a program says nothing.

The order: the call's or the client's `transport=`, then TOWLINE_TRANSPORT (for streams TOWLINE_STREAM_TRANSPORT
before it), then `towline.configure(...)`, then the native one. A wrong name in the environment warns and falls back,
since whoever runs a program is not who wrote it; a wrong name in the program raises.
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
    """Names the transport of clients that are made later and name none: the lowest of the four choices.

    `native`, `httpx`, `urllib3` (blocking), `aiohttp` (asynchronous), or `module:Class`. A name that only one of
    the two clients can use leaves the other one native.
    """
    for name in (transport, stream_transport):
        if name is not None and name not in _BLOCKING and name not in _ASYNC and name != "native":
            _import_class(name)
    _defaults.update(transport=transport, stream_transport=stream_transport)


def by_name(name: str, is_async: bool) -> Any:
    """A new transport; None: the native one. ConfigError where the name means none."""
    if name == "native":
        return None
    known = _ASYNC if is_async else _BLOCKING
    if name not in known and name in {**_BLOCKING, **_ASYNC}:
        raise ConfigError(f"transport: {name!r} is for {'Client' if is_async else 'AsyncClient'} only")
    try:
        made = _import_class(known.get(name, name))()
    except ImportError as error:
        raise ConfigError(f"transport: {name!r} cannot be used: {error}; install what it needs") from error
    return wrap(made, is_async)


def wrap(transport: Any, is_async: bool) -> Any:
    """A transport of ours as it is, one of httpx inside an adapter."""
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
    """(the transport, the one for streams) of a client that names none. None: native."""
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
            warnings.warn(f"{variable}={name}: {error}; Towline uses its own", RuntimeWarning, stacklevel=5)
    chosen = _defaults[default]
    if chosen is None or (is_async and chosen == "urllib3") or (not is_async and chosen == "aiohttp"):
        return _NOT_SET
    return by_name(chosen, is_async)


def _import_class(name: str) -> Any:
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        known = ", ".join(sorted({"native", *_BLOCKING, *_ASYNC}))
        raise ConfigError(f"transport: {name!r} is unknown; there are {known}, and module:Class")
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError:
        raise ConfigError(f"transport: {module} has no {attribute}") from None
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise ConfigError(f"transport: there is no module {module}") from None
        raise
    return found
