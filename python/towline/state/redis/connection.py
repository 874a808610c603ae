"""Addresses, options and errors of the Redis client, for both front ends."""

from __future__ import annotations

import dataclasses
from typing import Any

from ...errors import StateError, StateFull, StateUnavailable, UsageError

SCHEMES = {
    "redis": "redis",
    "rediss": "rediss",
    "unix": "unix",
    "valkey": "redis",
    "valkeys": "rediss",
}
"""Scheme of a URL -> the scheme that the package `redis` knows. Both servers speak the same protocol."""
MISSING = "a store at {} needs the package redis: pip install 'towline[redis]'"
PING_INTERVAL = 15.0
"""Seconds without a message after which the connection of the subscriptions is tried; after twice of it, it is lost."""


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of `open()` for a store on Redis."""

    timeout: float = 5.0
    """Seconds for a connection, and for a reply."""
    connections: int = 32
    """Bound of open connections of a process; a call waits for a free one."""


def options_of(options: dict[str, Any]) -> Options:
    """The options that were given to `open()`. Raises `UsageError` for an unknown name or an impossible value."""
    known = [field.name for field in dataclasses.fields(Options)]
    for name in options:
        if name not in known:
            raise UsageError(f"a store on Redis has no option {name!r}; it has {', '.join(known)}")
    found = Options(**options)
    if not found.timeout > 0 or found.connections < 2:
        raise UsageError("timeout= is more than 0 seconds, and connections= at least 2")
    return found


def pool_of(kind: Any, url: str, options: Options, retry: Any) -> Any:
    """A pool of connections of a class of the package. No command is sent twice: it may have been carried out.

    Raises `UsageError` for a URL that the package does not take.
    """
    scheme, _, rest = url.partition("://")
    try:
        return kind.from_url(
            f"{SCHEMES[scheme]}://{rest}",
            max_connections=options.connections,
            timeout=options.timeout,
            socket_timeout=options.timeout,
            socket_connect_timeout=options.timeout,
            retry=retry,
            protocol=2,
        )
    except (ValueError, TypeError) as error:
        raise UsageError(f"the URL of the store: {error}") from None


def failure(error: Any) -> StateError:
    """The exception for one of the package."""
    from redis import exceptions

    text = str(error)
    if isinstance(error, exceptions.OutOfMemoryError) or "OOM command not allowed" in text:
        return StateFull("the server has no memory left (maxmemory), and its policy evicts nothing")
    if isinstance(error, exceptions.TimeoutError):
        return StateUnavailable(f"{text or 'no reply in time'}; a change may or may not have been made")
    if isinstance(error, (exceptions.ConnectionError, exceptions.ReadOnlyError, OSError)):
        return StateUnavailable(text or type(error).__name__)
    return StateError(text)
