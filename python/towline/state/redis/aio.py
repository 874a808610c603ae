"""The store on Redis for event loops. A loop has a pool of connections, and one for all its subscriptions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from ...errors import StateError, StateUnavailable
from ..backend import Post, Primitives, WhenFull, closed
from . import commands
from .commands import Command
from .connection import PING_INTERVAL, Options, failure, pool_of
from .router import Inbox, Names, Router

T = TypeVar("T")


class AsyncRedisBackend(Primitives):
    """Implements `AsyncBackend`. May be used in several event loops, each of which has its own connections."""

    name = "redis"

    def __init__(self, url: str, options: Options) -> None:
        import redis

        self._errors: Any = (redis.RedisError, OSError)
        self._unknown_script: Any = redis.exceptions.NoScriptError
        self._url = url
        self._options = options
        self._is_closed = False
        self._set_primitives(lambda name: lambda *arguments: self._run(getattr(commands, name)(*arguments)))
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Connections] = WeakKeyDictionary()
        # Reports a bad URL now and not at the first call; it connects nothing.
        Connections(url, options)

    def _connections(self) -> Connections:
        if self._is_closed:
            raise closed()
        loop = asyncio.get_running_loop()
        found = self._by_loop.get(loop)
        if found is None:
            found = self._by_loop[loop] = Connections(self._url, self._options)
        return found

    async def _run(self, command: Command[T]) -> T:
        client = self._connections().client
        if not command.words:
            return command.parse(None)
        try:
            try:
                reply = await client.execute_command(*command.words)
            except self._unknown_script:
                reply = await client.execute_command(*command.with_source())
        except self._errors as error:
            raise failure(error) from error
        return command.parse(reply)

    async def subscribe(
        self, channels: Sequence[bytes], patterns: Sequence[bytes], queue: int, when_full: WhenFull, /
    ) -> AsyncSubscription:
        connections = self._connections()
        while True:
            shared = connections.current_connection(self._errors)
            subscription = AsyncSubscription(shared, channels, patterns, queue, when_full)
            try:
                if await shared.add(subscription.inbox):
                    return subscription
            except StateError:
                raise
            except self._errors as error:
                await shared.fail(failure(error))
                raise failure(error) from error

    async def info(self) -> dict[str, Any]:
        keys = await self._run(commands.keys_count())
        figures = await self._run(commands.server_info())
        return {"backend": self.name, "keys": keys, **figures}

    async def close(self) -> None:
        self._is_closed = True
        found = self._by_loop.pop(asyncio.get_running_loop(), None)
        self._by_loop.clear()
        if found is not None:
            await found.close()


class Connections:
    """The client of one event loop, and the connection of its subscriptions."""

    def __init__(self, url: str, options: Options) -> None:
        from redis import asyncio as redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        self._pool = pool_of(redis.BlockingConnectionPool, url, options, Retry(NoBackoff(), 0))
        self._timeout = options.timeout
        self._shared: SharedConnection | None = None
        self.client: Any = redis.Redis(connection_pool=self._pool)

    def current_connection(self, errors: Any) -> SharedConnection:
        """The connection of the subscriptions: a new one at first, and after the last one was lost."""
        if self._shared is None or self._shared.is_over:
            self._shared = SharedConnection(self.client.pubsub(), errors, self._timeout)
        return self._shared

    async def close(self) -> None:
        if self._shared is not None:
            await self._shared.close()
        await self._pool.disconnect()


class SharedConnection:
    """The connection of all subscriptions of a loop, and the task that reads it. It ends when `blocking.SharedConnection` does."""

    def __init__(self, pubsub: Any, errors: Any, timeout: float) -> None:
        self.is_over = False
        self._pubsub = pubsub
        self._errors = errors
        self._timeout = timeout
        self._router = Router()
        self._error: Exception | None = None
        self._sending = asyncio.Lock()
        self._confirmations: dict[int, asyncio.Future[None]] = {}
        self._sent_pings = 0
        self._answered_pings = 0
        self._task: asyncio.Task[None] | None = None

    async def add(self, inbox: Inbox) -> bool:
        """Subscribe and wait until the server has confirmed it; False if this connection is over."""
        try:
            # Shielded: the package closes a connection when sending is cancelled, and others use it, too.
            confirmed = await asyncio.shield(self._begin(inbox))
            if confirmed is None:
                return False
            await asyncio.wait_for(confirmed, self._timeout)
        except asyncio.TimeoutError:
            error = StateUnavailable("the server did not confirm the subscription in time")
            await self.fail(error)
            raise error from None
        except asyncio.CancelledError:
            await self.remove(inbox)
            raise
        if self._error is not None:
            raise self._error
        return True

    async def _begin(self, inbox: Inbox) -> asyncio.Future[None] | None:
        """Send the commands; returns the future of their confirmation."""
        async with self._sending:
            if self.is_over:
                return None
            await self._send("subscribe", "psubscribe", self._router.add(inbox))
            # The reply to a PING comes after the effect of the commands before it.
            confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            await self._ping(confirmed)
            if self._task is None:
                self._task = asyncio.create_task(self._read())
        return confirmed

    async def remove(self, inbox: Inbox) -> None:
        inbox.close()
        await asyncio.shield(self._forget(inbox))

    async def _forget(self, inbox: Inbox) -> None:
        async with self._sending:
            unwanted = self._router.remove(inbox)
            if self.is_over:
                return
            try:
                if self._router.is_empty():
                    await self._end()
                else:
                    await self._send("unsubscribe", "punsubscribe", unwanted)
            except self._errors as error:
                await self.fail(failure(error))

    async def fail(self, error: Exception) -> None:
        """End all subscriptions with an error."""
        self._error = error
        self._router.end_all(error)
        await self._end()

    async def close(self) -> None:
        self._router.end_all(closed())
        await self._end()

    async def _end(self) -> None:
        self.is_over = True
        for confirmed in self._confirmations.values():
            if not confirmed.done():
                confirmed.set_result(None)
        self._confirmations.clear()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        await self._pubsub.aclose()

    async def _ping(self, confirmed: asyncio.Future[None] | None = None) -> None:
        """Send a PING, whose reply sets the future."""
        self._sent_pings += 1
        number = self._sent_pings
        if confirmed is not None:
            self._confirmations[number] = confirmed
        await self._pubsub.ping(b"%d" % number)

    async def _send(self, channel_command: str, pattern_command: str, names: Names) -> None:
        if names.channels:
            await getattr(self._pubsub, channel_command)(*names.channels)
        if names.patterns:
            await getattr(self._pubsub, pattern_command)(*names.patterns)

    async def _read(self) -> None:
        try:
            while not self.is_over:
                await self._handle(await self._pubsub.get_message(timeout=PING_INTERVAL))
        except Exception as error:
            if not self.is_over:
                await self.fail(error if isinstance(error, StateError) else failure(error))

    async def _handle(self, message: dict[str, Any] | None) -> None:
        if message is None:
            if self._sent_pings > self._answered_pings:
                raise StateUnavailable("the server does not reply any more; messages may have been missed")
            async with self._sending:
                await self._ping()
        elif message["type"] == "pong":
            self._answered_pings = int(message["data"])
            for number in [each for each in self._confirmations if each <= self._answered_pings]:
                confirmed = self._confirmations.pop(number)
                if not confirmed.done():
                    confirmed.set_result(None)
        elif message["type"] in ("message", "pmessage"):
            self._router.deliver(message["pattern"], message["channel"], message["data"])


class AsyncSubscription:
    """Implements `AsyncBackendSubscription`."""

    def __init__(
        self,
        shared: SharedConnection,
        channels: Sequence[bytes],
        patterns: Sequence[bytes],
        queue: int,
        when_full: WhenFull,
    ) -> None:
        self._shared = shared
        self._changed = asyncio.Event()
        self.inbox = Inbox(channels, patterns, queue, when_full, self._changed.set)

    @property
    def dropped(self) -> int:
        return self.inbox.dropped

    async def receive(self) -> Post | None:
        while not self.inbox.is_ready():
            self._changed.clear()
            await self._changed.wait()
        return self.inbox.next()

    async def close(self) -> None:
        await self._shared.remove(self.inbox)
