"""The end of an application in its span: an error, or a client that has left."""

from __future__ import annotations

import asyncio

from ..errors import ClientDisconnected

MAX_DEPTH = 16
"""Exception groups and causes that are looked at; a chain can be a cycle."""


def is_disconnect(error: BaseException, *, has_left: bool, depth: int = MAX_DEPTH) -> bool:
    """Whether an exception only reports that the client has left. The server log decides by the same rules.

    `has_left`: it has, so that an `OSError` and the exceptions of frameworks count as well (Starlette's
    `ClientDisconnect`, Django's `RequestAborted`), also as members or the cause of another.
    """
    if isinstance(error, ClientDisconnected):
        return True
    if not has_left or depth == 0:
        return False
    if isinstance(error, OSError) or any(_is_named_disconnect(cls.__name__) for cls in type(error).__mro__):
        return True
    members = getattr(error, "exceptions", None)
    if isinstance(members, tuple):
        # A task group cancels its other tasks.
        return bool(members) and all(
            isinstance(member, asyncio.CancelledError)
            or is_disconnect(member, has_left=has_left, depth=depth - 1)
            for member in members
        )
    cause = error.__cause__
    return cause is not None and is_disconnect(cause, has_left=has_left, depth=depth - 1)


def _is_named_disconnect(name: str) -> bool:
    return name.endswith(("Disconnect", "Disconnected")) or name == "RequestAborted"


def error_type(error: BaseException) -> str:
    """`error.type`: the qualified name of an exception's class."""
    cls = type(error)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
