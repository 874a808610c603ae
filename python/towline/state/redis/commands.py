"""The commands of Redis for each primitive of a store, for both front ends: words to send, and what the reply means."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from ...errors import UsageError
from ..backend import INTERNAL, KEEP_TTL, Check, Grant, Post, Write
from ..keys import stored
from ..patterns import escaped
from . import scripts
from .scripts import Script

T = TypeVar("T")
Word: TypeAlias = bytes | str | int
Page: TypeAlias = tuple[list[tuple[bytes, bytes]], bytes | None]

MAX_MILLISECONDS = 2**53
"""Longest time to live that is sent: a later moment does not fit the server's clock."""


@dataclasses.dataclass(frozen=True)
class Command(Generic[T]):
    """`words` begin with EVALSHA if there is a `source`, which is sent when the server does not know the script. Without words
    nothing is sent."""

    words: tuple[Word, ...]
    parse: Callable[[Any], T]
    source: str | None = None

    def with_source(self) -> tuple[Word, ...]:
        """The words of the same call with the source of the script."""
        return ("EVAL", str(self.source), *self.words[2:])


def _run(
    script: Script, keys: Sequence[bytes], arguments: Sequence[Word], parse: Callable[[Any], T]
) -> Command[T]:
    return Command(("EVALSHA", script.sha, len(keys), *keys, *arguments), parse, script.source)


def _as_is(reply: Any) -> Any:
    return reply


def _nothing(reply: Any) -> None:
    return None


def milliseconds(ttl: float) -> int:
    """A time to live as the server takes it: at least 1."""
    return max(1, round(min(ttl * 1000, MAX_MILLISECONDS)))


def get(key: bytes) -> Command[bytes | None]:
    return Command(("GET", stored(b"", key)), _as_is)


def get_many(keys: Sequence[bytes]) -> Command[list[bytes | None]]:
    return Command(("MGET", *keys), _as_is) if keys else Command((), lambda _: [])


def set(key: bytes, value: bytes, ttl: float | None = None) -> Command[None]:
    if ttl is None:
        return Command(("SET", key, value), _nothing)
    if ttl == KEEP_TTL:
        return Command(("SET", key, value, "KEEPTTL"), _nothing)
    return Command(("SET", key, value, "PX", milliseconds(ttl)), _nothing)


def delete(keys: Sequence[bytes]) -> Command[int]:
    return Command(("DEL", *keys), int) if keys else Command((), lambda _: 0)


def apply(checks: Sequence[Check], writes: Sequence[Write], posts: Sequence[Post] = ()) -> Command[bool]:
    arguments: list[Word] = [len(checks)]
    for _, expected in checks:
        arguments += ["-", b""] if expected is None else ["=", expected]
    arguments.append(len(writes))
    for _, value, ttl in writes:
        arguments += ["d", b""] if value is None else [_kind(ttl), value]
    for channel, message in posts:
        arguments += [channel, message]
    keys = [key for key, _ in checks] + [key for key, _, _ in writes]
    return _run(scripts.APPLY, keys, arguments, bool)


def _kind(ttl: float | None) -> str:
    if ttl is None:
        return "s"
    return "k" if ttl == KEEP_TTL else f"p{milliseconds(ttl)}"


def add(key: bytes, delta: int, ttl: float | None = None) -> Command[int]:
    if ttl is None:
        return Command(("INCRBY", key, str(delta)), int)
    return _run(scripts.ADD, [key], [str(delta), milliseconds(ttl)], int)


def ttl(key: bytes) -> Command[float | None]:
    return Command(("PTTL", key), _seconds_left)


def _seconds_left(reply: int) -> float | None:
    if reply == -2:
        return None
    return math.inf if reply == -1 else reply / 1000


def expire(key: bytes, ttl: float | None) -> Command[bool]:
    if ttl is None:
        return _run(scripts.PERSIST, [key], [], bool)
    return Command(("PEXPIRE", key, milliseconds(ttl)), bool)


def scan(prefix: bytes, cursor: bytes | None, limit: int, values: bool) -> Command[Page]:
    """One step through the keys of the server: those without the prefix are passed over, so a page may be empty."""

    def page(reply: list[Any]) -> Page:
        following, keys, found = reply
        pairs = zip(keys, found if values else [b""] * len(keys), strict=True)
        is_internal = prefix[:1] == INTERNAL
        kept = [
            (key, value) for key, value in pairs if value is not None and (is_internal or key[:1] != INTERNAL)
        ]
        return kept, None if following == b"0" else following

    return _run(
        scripts.SCAN, [], [cursor or b"0", escaped(prefix) + b"*", limit, "1" if values else "0"], page
    )


def take_tokens(key: bytes, capacity: float, per_second: float, cost: float) -> Command[Grant]:
    if not (capacity > 0 and per_second > 0 and cost >= 0):
        raise UsageError("a bucket has a capacity and a rate above 0, and a cost of at least 0")
    return _run(
        scripts.TAKE_TOKENS, [key], [repr(float(each)) for each in (capacity, per_second, cost)], _grant
    )


def take_window(key: bytes, limit: int, seconds: float, cost: int) -> Command[Grant]:
    if not 0.001 <= seconds < 1e9:
        raise UsageError("a window has at least 0.001 seconds")
    return _run(scripts.TAKE_WINDOW, [key], [repr(float(each)) for each in (limit, seconds, cost)], _grant)


def _grant(reply: list[Any]) -> Grant:
    allowed, remaining, retry_after = reply
    return bool(allowed), float(remaining), float(retry_after)


def publish(channel: bytes, message: bytes) -> Command[None]:
    return Command(("PUBLISH", channel, message), _nothing)


def keys_count() -> Command[int]:
    return Command(("DBSIZE",), int)


def server_info() -> Command[dict[str, Any]]:
    return Command(("INFO",), _figures)


def _figures(reply: dict[str, Any]) -> dict[str, Any]:
    is_valkey = "valkey_version" in reply
    name, version = ("valkey", "valkey_version") if is_valkey else ("redis", "redis_version")
    return {
        "server": f"{name} {reply.get(version, '')}",
        "memory_bytes": reply.get("used_memory"),
        "max_memory_bytes": reply.get("maxmemory"),
        "when_full": reply.get("maxmemory_policy"),
        "clients": reply.get("connected_clients"),
    }
