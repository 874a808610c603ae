"""From the configuration to one callable application: import, detect, mount."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

from ..config import ServerConfig
from ..errors import StartupError
from .gil import imports_watched
from .importer import import_application
from .interface import Interface, resolve
from .mount import combine

if TYPE_CHECKING:
    from .tracing import Tracing

NO_OPENTELEMETRY = (
    "--otel needs opentelemetry-api, which cannot be imported ({}): "
    "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
)


@dataclasses.dataclass(frozen=True)
class Application:
    """The application to serve, and its interface."""

    call: Any
    interface: Interface


def load(config: ServerConfig, *, tells_gil: bool = True) -> Application:
    """Import all applications of the configuration. Raises `StartupError` or `ConfigError`.

    `tells_gil`: the log has a warning if one of their modules turns the GIL of a free-threaded interpreter on.
    """
    with imports_watched() if tells_gil else contextlib.nullcontext():
        return _load(config)


def _load(config: ServerConfig) -> Application:
    tracing = _tracing() if config.otel else None
    app = import_application(config.app or _not_found, app_dir=config.app_dir, factory=config.factory)
    call, interface = resolve(app, config.interface, _name(config))
    mounted = [(prefix, *_mounted(target, config)) for prefix, target in config.mount]
    if tracing is not None:
        # Each one, because the route is in the scope that a mounted application gets.
        traced = tracing(config)
        call = traced.wrap(call, interface)
        mounted = [(prefix, traced.wrap(app, kind), kind) for prefix, app, kind in mounted]
    if mounted:
        call = combine(call, interface, mounted)
    return Application(call, interface)


def why_not_importable(config: ServerConfig) -> str | None:
    """Why changed code of the application cannot be imported; None if it can."""
    for app in (config.app, *(target for _, target in config.mount)):
        if app is not None and not isinstance(app, str):
            return f'the application is an object; give an import string ("module:app"), not {app!r}'
        if app is not None and app.startswith("__main__:"):
            return f'{app} is in the program that was started; give an import string ("module:app")'
    return None


def _tracing() -> type[Tracing]:
    """The class that makes spans. Raises `StartupError` without opentelemetry-api."""
    try:
        from .tracing import Tracing
    except ImportError as error:
        raise StartupError(NO_OPENTELEMETRY.format(error)) from None
    return Tracing


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
