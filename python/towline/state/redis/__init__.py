"""The store on Redis or Valkey, for state beyond one machine: `redis://host`, `rediss://`, `unix:///path`, `valkey://`.

Needs the package `redis` (`pip install 'towline[redis]'`). One server, or one behind an address that follows it; not the
partitioned form (Redis Cluster), because an operation may use several keys.
"""

from __future__ import annotations

from typing import Any

from ...errors import UsageError
from .connection import MISSING, options_of

__all__ = ["connect", "connect_async"]


def connect(url: str, **options: Any) -> Any:
    """A `Backend`. It connects when it is first used."""
    _check_installed(url)
    from .blocking import RedisBackend

    return RedisBackend(url, options_of(options))


def connect_async(url: str, **options: Any) -> Any:
    """An `AsyncBackend`. It connects when it is first used."""
    _check_installed(url)
    from .aio import AsyncRedisBackend

    return AsyncRedisBackend(url, options_of(options))


def _check_installed(url: str) -> None:
    try:
        import redis  # noqa: F401
    except ImportError:
        raise UsageError(MISSING.format(url.partition("://")[0] + "://")) from None
