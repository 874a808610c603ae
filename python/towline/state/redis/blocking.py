"""The store on Redis for programs that block. Threads share a pool of connections, and one for all subscriptions."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any, TypeVar

from ...errors import StateError, StateUnavailable
from ..backend import Post, Primitives, WhenFull, closed
from . import commands
from .commands import Command
from .connection import PING_INTERVAL, Options, failure, pool_of
from .router import Inbox, Names, Router

T = TypeVar("T")


class RedisBackend(Primitives):
    """Implements `Backend`."""

    name = "redis"

    def __init__(self, url: str, options: Options) -> None:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        self._errors: Any = (redis.RedisError, OSError)
        self._unknown_script: Any = redis.exceptions.NoScriptError
        self._pool = pool_of(redis.BlockingConnectionPool, url, options, Retry(NoBackoff(), 0))
        self._client: Any = redis.Redis(connection_pool=self._pool)
        self._timeout = options.timeout
        self._is_closed = False
        self._set_primitives(lambda name: lambda *arguments: self._run(getattr(commands, name)(*arguments)))
        self._shared: SharedConnection | None = None
        self._lock = threading.Lock()

    def _run(self, command: Command[T]) -> T:
        if self._is_closed:
            raise closed()
        if not command.words:
            return command.parse(None)
        try:
            try:
                reply = self._client.execute_command(*command.words)
            except self._unknown_script:
                reply = self._client.execute_command(*command.with_source())
        except self._errors as error:
            raise failure(error) from error
        return command.parse(reply)

    def subscribe(
        self, channels: Sequence[bytes], patterns: Sequence[bytes], queue: int, when_full: WhenFull, /
    ) -> Subscription:
        if self._is_closed:
            raise closed()
        while True:
            shared = self._current_connection()
            subscription = Subscription(shared, channels, patterns, queue, when_full)
            try:
                if shared.add(subscription.inbox):
                    return subscription
            except StateError:
                raise
            except self._errors as error:
                shared.fail(failure(error))
                raise failure(error) from error

    def _current_connection(self) -> SharedConnection:
        """The connection of the subscriptions: a new one at first, after the last one was lost, and after a fork."""
        if self._shared is not None and self._shared.pid != os.getpid():
            self._lock, self._shared = threading.Lock(), None
        with self._lock:
            if self._shared is None or self._shared.is_over:
                self._shared = SharedConnection(self._client.pubsub(), self._errors, self._timeout)
            return self._shared

    def info(self) -> dict[str, Any]:
        keys = self._run(commands.keys_count())
        figures = self._run(commands.server_info())
        return {"backend": self.name, "keys": keys, **figures}

    def close(self) -> None:
        self._is_closed = True
        shared, self._shared = self._shared, None
        if shared is not None and shared.pid == os.getpid():
            shared.close()
        self._pool.disconnect()


class SharedConnection:
    """The connection of all subscriptions of a process, and the thread that reads it.

    It lasts until its last subscription is closed, or until the connection is lost, which ends all subscriptions: messages
    may have been missed, so nobody is connected again silently.
    """

    def __init__(self, pubsub: Any, errors: Any, timeout: float) -> None:
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self.is_over = False
        self._pubsub = pubsub
        self._errors = errors
        self._timeout = timeout
        self._router = Router()
        self._error: Exception | None = None
        self._confirmation = threading.Condition(self.lock)
        self._sent_pings = 0
        self._answered_pings = 0
        self._thread: threading.Thread | None = None

    def add(self, inbox: Inbox) -> bool:
        """Subscribe and wait until the server has confirmed it; False if this connection is over."""
        with self.lock:
            if self.is_over:
                return False
            self._send("subscribe", "psubscribe", self._router.add(inbox))
            # The reply to a PING comes after the effect of the commands before it.
            number = self._ping()
            if self._thread is None:
                self._thread = threading.Thread(target=self._read, name="towline-state", daemon=True)
                self._thread.start()
            self._confirmation.wait_for(lambda: self._answered_pings >= number or self.is_over, self._timeout)
            if self._answered_pings >= number:
                return True
        error = self._error or StateUnavailable("the server did not confirm the subscription in time")
        self.fail(error)
        raise error

    def remove(self, inbox: Inbox) -> None:
        with self.lock:
            inbox.close()
            unwanted = self._router.remove(inbox)
            if self.is_over:
                return
            try:
                if self._router.is_empty():
                    self._end()
                else:
                    self._send("unsubscribe", "punsubscribe", unwanted)
            except self._errors as error:
                self.fail(failure(error))

    def fail(self, error: Exception) -> None:
        """End all subscriptions with an error."""
        with self.lock:
            self._error = error
            self.is_over = True
            self._router.end_all(error)
            self._confirmation.notify_all()

    def close(self) -> None:
        with self.lock:
            self._router.end_all(closed())
            try:
                self._end()
            except self._errors:
                pass

    def _end(self) -> None:
        """Let the thread end: the reply to a PING wakes it."""
        self.is_over = True
        self._confirmation.notify_all()
        self._ping()

    def _ping(self) -> int:
        self._sent_pings += 1
        self._pubsub.ping(b"%d" % self._sent_pings)
        return self._sent_pings

    def _send(self, channel_command: str, pattern_command: str, names: Names) -> None:
        if names.channels:
            getattr(self._pubsub, channel_command)(*names.channels)
        if names.patterns:
            getattr(self._pubsub, pattern_command)(*names.patterns)

    def _read(self) -> None:
        try:
            while not self.is_over:
                message = self._pubsub.get_message(timeout=PING_INTERVAL)
                with self.lock:
                    self._handle(message)
        except Exception as error:
            if not self.is_over:
                self.fail(error if isinstance(error, StateError) else failure(error))
        finally:
            self._pubsub.close()

    def _handle(self, message: dict[str, Any] | None) -> None:
        if message is None:
            if self._sent_pings > self._answered_pings:
                raise StateUnavailable("the server does not reply any more; messages may have been missed")
            self._ping()
        elif message["type"] == "pong":
            self._answered_pings = int(message["data"])
            self._confirmation.notify_all()
        elif message["type"] in ("message", "pmessage"):
            self._router.deliver(message["pattern"], message["channel"], message["data"])


class Subscription:
    """Implements `BackendSubscription`."""

    def __init__(
        self,
        shared: SharedConnection,
        channels: Sequence[bytes],
        patterns: Sequence[bytes],
        queue: int,
        when_full: WhenFull,
    ) -> None:
        self._shared = shared
        self._changed = threading.Condition(shared.lock)
        self.inbox = Inbox(channels, patterns, queue, when_full, self._wake)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    @property
    def dropped(self) -> int:
        return self.inbox.dropped

    def receive(self, timeout: float | None = None) -> Post | None:
        if self._shared.pid != os.getpid():
            raise StateUnavailable("a subscription belongs to the process that made it: subscribe again")
        with self._changed:
            if not self._changed.wait_for(self.inbox.is_ready, timeout):
                return None
            return self.inbox.next()

    def close(self) -> None:
        if self._shared.pid == os.getpid():
            self._shared.remove(self.inbox)
