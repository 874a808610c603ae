"""Towline: one HTTP engine with three faces.

The server, from Python:

    towline.serve("module:app", port=8000, workers=4)      # what `towline serve` does
    towline.Server(towline.ServerConfig(app)).run()        # one worker in this process
    await towline.Server(config).serve()                   # inside a running event loop

Names are loaded when they are first used: `import towline` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import ServerConfig
    from .errors import (
        ClientDisconnected,
        ConfigError,
        Error,
        ImportFromStringError,
        ResponseStateError,
        StartupError,
        UsageError,
    )
    from .server import Server, serve

__all__ = [
    "ClientDisconnected",
    "ConfigError",
    "Error",
    "ImportFromStringError",
    "ResponseStateError",
    "Server",
    "ServerConfig",
    "StartupError",
    "UsageError",
    "__version__",
    "serve",
]

_HOMES = {"Server": ".server", "serve": ".server", "ServerConfig": ".config", "__version__": "._version"}


def __getattr__(name: str) -> Any:
    if name not in __all__ and name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, ".errors"), __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
