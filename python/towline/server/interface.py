"""Detection of the calling convention of an application.

| it is                                                            | then      |
|------------------------------------------------------------------|-----------|
| a coroutine function, or an object whose `__call__` is one       | ASGI 3    |
| a callable of three parameters (scope, receive, send)            | ASGI 3    |
| a class whose instances are awaited, as Starlette's endpoints    | ASGI 3    |
| a callable of two parameters (environ, start_response)           | WSGI      |
| a class or callable of one parameter (scope) that gives another  | ASGI 2    |
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from ..errors import StartupError

Interface = Literal["asgi", "wsgi"]


def resolve(app: Any, wanted: str) -> tuple[Any, Interface]:
    """The application (ASGI 2 wrapped as ASGI 3) and its interface. `wanted`: auto, asgi or wsgi."""
    if not callable(app):
        raise StartupError(f"the application {app!r} is a {type(app).__name__} and cannot be called")
    if wanted == "wsgi":
        return app, "wsgi"
    found = detect(app)
    if found == "asgi2":
        return _single_callable(app), "asgi"
    if wanted == "asgi" or found == "asgi3":
        return app, "asgi"
    return app, "wsgi"


def detect(app: Any) -> Literal["asgi3", "asgi2", "wsgi"]:
    """Apply the table above."""
    if inspect.isclass(app):
        if hasattr(app, "__await__"):
            return "asgi3"
        # The instance is called later: one constructor parameter is the scope of ASGI 2.
        return "asgi2" if _parameters(app) == 1 else "wsgi"
    method = getattr(type(app), "__call__", None)  # noqa: B004 - its kind is needed
    if inspect.iscoroutinefunction(_function(app)) or inspect.iscoroutinefunction(method):
        return "asgi3"
    count = _parameters(app)
    if count == 3:
        return "asgi3"
    return "asgi2" if count == 1 else "wsgi"


def _function(app: Any) -> Any:
    """The function inside functools.partial objects."""
    while hasattr(app, "func") and hasattr(app, "keywords"):
        app = app.func
    return app


def _parameters(app: Any) -> int | None:
    """The number of required positional arguments; None if unknown."""
    try:
        signature = inspect.signature(app)
    except (TypeError, ValueError):
        return None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(1 for p in signature.parameters.values() if p.kind in kinds and p.default is p.empty)


def _single_callable(app: Callable[[Any], Any]) -> Callable[[Any, Any, Any], Awaitable[None]]:
    """ASGI 2's application(scope)(receive, send) as ASGI 3's application(scope, receive, send)."""

    async def asgi3(scope: Any, receive: Any, send: Any) -> None:
        await app(scope)(receive, send)

    return asgi3
