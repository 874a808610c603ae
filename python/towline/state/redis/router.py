"""Subscriptions of one process that share a connection: which channels the server must send, and who gets a message.

No I/O: `blocking.py` and `aio.py` read the connection and call `deliver`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...errors import SlowSubscriber
from ..backend import Post, WhenFull
from ..patterns import matcher


class Inbox:
    """The messages that wait for one subscriber. `wake` is called after each change.

    open ── close() ──► closed                 next() returns None
         ── end(error) ──► failed              next() raises it
    """

    def __init__(
        self,
        channels: Sequence[bytes],
        patterns: Sequence[bytes],
        queue: int,
        when_full: WhenFull,
        wake: Callable[[], None],
    ) -> None:
        self.channels = frozenset(channels)
        self.patterns = tuple(dict.fromkeys(patterns))
        self._matches = [matcher(pattern) for pattern in self.patterns]
        self._waiting: deque[Post] = deque()
        self._queue = queue
        self._disconnects = when_full == "disconnect"
        self._wake = wake
        self.dropped = 0
        self.closed = False
        self.error: Exception | None = None

    def put(self, post: Post) -> None:
        """Queue a message, or apply the rule for a slow subscriber."""
        if self.closed or self.error is not None:
            return
        if len(self._waiting) >= self._queue:
            self.dropped += 1
            if self._disconnects:
                self.end(SlowSubscriber(f"the subscriber had {self._queue} messages waiting"))
                return
            self._waiting.popleft()
        self._waiting.append(post)
        self._wake()

    def is_ready(self) -> bool:
        """Whether `next` would return a message, None at the end, or raise."""
        return bool(self._waiting) or self.closed or self.error is not None

    def next(self) -> Post | None:
        """Take the oldest message. After `end` its error, after `close` None; only when `is_ready`."""
        if self.closed:
            return None
        if self.error is not None and (isinstance(self.error, SlowSubscriber) or not self._waiting):
            raise self.error
        return self._waiting.popleft()

    def end(self, error: Exception) -> None:
        """Let the reader meet an error, after the messages that wait; at once if the rule is "disconnect"."""
        if self.error is None:
            self.error = error
        self._wake()

    def close(self) -> None:
        self.closed = True
        self._wake()

    def first_pattern(self, channel: bytes) -> bytes | None:
        """The first pattern that matches a channel. The server sends a message once for each that does."""
        for pattern, match in zip(self.patterns, self._matches, strict=True):
            if match(channel):
                return pattern
        return None


class Names(NamedTuple):
    """Channels and patterns for one command."""

    channels: tuple[bytes, ...]
    patterns: tuple[bytes, ...]


class Router:
    """The subscriptions by channel and by pattern."""

    def __init__(self) -> None:
        self._by_channel: dict[bytes, set[Inbox]] = {}
        self._by_pattern: dict[bytes, set[Inbox]] = {}

    def add(self, inbox: Inbox) -> Names:
        """Add a subscription; returns what the server does not send yet."""
        return Names(
            tuple(_register(self._by_channel, inbox.channels, inbox)),
            tuple(_register(self._by_pattern, inbox.patterns, inbox)),
        )

    def remove(self, inbox: Inbox) -> Names:
        """Remove a subscription; returns what nobody wants any more."""
        return Names(
            tuple(_unregister(self._by_channel, inbox.channels, inbox)),
            tuple(_unregister(self._by_pattern, inbox.patterns, inbox)),
        )

    def is_empty(self) -> bool:
        return not self._by_channel and not self._by_pattern

    def deliver(self, pattern: bytes | None, channel: bytes, message: bytes) -> None:
        """Pass on a message that the server sent for a channel, or for a pattern: to each subscription once."""
        post = channel, message
        if pattern is None:
            for inbox in tuple(self._by_channel.get(channel, ())):
                inbox.put(post)
            return
        for inbox in tuple(self._by_pattern.get(pattern, ())):
            if channel not in inbox.channels and inbox.first_pattern(channel) in (pattern, None):
                inbox.put(post)

    def end_all(self, error: Exception) -> None:
        """End every subscription: the connection is lost."""
        inboxes = {
            each for table in (self._by_channel, self._by_pattern) for some in table.values() for each in some
        }
        self._by_channel.clear()
        self._by_pattern.clear()
        for inbox in inboxes:
            inbox.end(error)


def _register(
    table: dict[bytes, set[Inbox]], names: Sequence[bytes] | frozenset[bytes], inbox: Inbox
) -> list[bytes]:
    new = [name for name in names if name not in table]
    for name in names:
        table.setdefault(name, set()).add(inbox)
    return new


def _unregister(
    table: dict[bytes, set[Inbox]], names: Sequence[bytes] | frozenset[bytes], inbox: Inbox
) -> list[bytes]:
    gone = []
    for name in names:
        inboxes = table.get(name, set())
        inboxes.discard(inbox)
        if name in table and not inboxes:
            del table[name]
            gone.append(name)
    return gone
