"""From the configuration to one callable application: import, detect, mount."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..config import ServerConfig
from .importer import import_application
from .interface import Interface, resolve
from .mount import combine


@dataclasses.dataclass(frozen=True)
class Application:
    """The application to serve, and its interface."""

    call: Any
    interface: Interface


def load(config: ServerConfig) -> Application:
    """Import all applications of the configuration. Raises `StartupError` or `ConfigError`."""
    app = import_application(config.app or _not_found, app_dir=config.app_dir, factory=config.factory)
    call, interface = resolve(app, config.interface, _name(config))
    if config.mount:
        mounted = [(prefix, *_mounted(target, config)) for prefix, target in config.mount]
        call = combine(call, interface, mounted)
    return Application(call, interface)


def _mounted(target: Any, config: ServerConfig) -> tuple[Any, Interface]:
    app = import_application(target, app_dir=config.app_dir)
    return resolve(app, "auto", f"--mount: {target}" if isinstance(target, str) else None)


def _name(config: ServerConfig) -> str | None:
    """The application's name in messages: its import string, and what the factory returned."""
    if not isinstance(config.app, str):
        return None
    return f"the application that {config.app} returned" if config.factory else config.app


async def _not_found(scope: Any, receive: Any, send: Any) -> None:
    """Responds with 404: the application if only static files are served."""
    if scope["type"] != "http":
        raise NotImplementedError(scope["type"])
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": 404, "headers": headers})
    await send({"type": "http.response.body", "body": b"Not Found\n"})
