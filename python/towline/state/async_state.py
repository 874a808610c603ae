"""The state for an event loop: ASGI applications, asyncio programs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar, cast, overload

from ..errors import StateConflict
from . import keys, operations
from .backend import AsyncBackend, AsyncBackendSubscription, WhenFull
from .codecs import Codec, codec_of
from .operations import Flow, Lease
from .view import (
    Changes,
    Decision,
    Message,
    View,
    check_subscription,
    decision,
    kept_or,
    positive,
)

V = TypeVar("V")
D = TypeVar("D")
T = TypeVar("T")


class AsyncState(View[V]):
    """As `State`, whose documentation applies, with methods to await. `towline.state.open_async()` makes one.

    A call of the embedded store that would hold the event loop for long, because another process writes or because it
    handles many bytes or keys, runs in a thread.
    """

    def __init__(self, backend: AsyncBackend, codec: Codec[V], prefix: bytes = b"") -> None:
        super().__init__(codec, prefix)
        self._backend = backend

    async def __aenter__(self) -> AsyncState[V]:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncState {self._backend.name} {self._prefix.decode(errors='replace')!r}>"

    async def close(self) -> None:
        """Release what this process holds. The values stay."""
        await self._backend.close()

    def namespace(self, name: str, codec: str | Codec[Any] | None = None) -> AsyncState[Any]:
        """A view whose keys and channels are apart from those of others; by default with the same codec."""
        return AsyncState(
            self._backend,
            self._codec if codec is None else codec_of(codec),
            keys.nested(self._prefix, name),
        )

    async def _run(self, flow: Flow[T]) -> T:
        """Carry out an operation with awaited calls."""
        answer: Any = None
        while True:
            try:
                method, *arguments = flow.send(answer)
            except StopIteration as end:
                return cast(T, end.value)
            call = asyncio.sleep if method == "sleep" else getattr(self._backend, method)
            answer = await call(*arguments)

    # Values.

    @overload
    async def get(self, key: str | bytes) -> V | None: ...
    @overload
    async def get(self, key: str | bytes, default: D) -> V | D: ...
    async def get(self, key: str | bytes, default: Any = None) -> Any:
        """The value, or the default if there is none or it has expired."""
        data = await self._backend.get(self._key(key))
        return default if data is None else self._codec.loads(data)

    async def get_many(self, names: list[str] | tuple[str, ...] | set[str]) -> dict[str, V]:
        """The values of the keys that exist, from one moment."""
        names = list(names)
        found = await self._backend.get_many([self._key(name) for name in names])
        return {
            name: self._codec.loads(data) for name, data in zip(names, found, strict=True) if data is not None
        }

    async def contains(self, key: str | bytes) -> bool:
        """Whether the key exists."""
        return await self._backend.get(self._key(key)) is not None

    async def set(self, key: str | bytes, value: V, ttl: float | None = None) -> None:
        """Set a value, and how long it lives: without `ttl` for ever. Raises `StateFull`."""
        await self._backend.set(self._key(key), self._codec.dumps(value), positive(ttl))

    async def set_many(self, values: Mapping[str, V], ttl: float | None = None) -> None:
        """Set several values at once: all of them, or none. Raises `StateFull`."""
        await self._backend.apply([], self._writes(values, ttl))

    async def set_if_absent(self, key: str | bytes, value: V, ttl: float | None = None) -> bool:
        """Set the value if the key does not exist; returns whether it was set."""
        stored = self._key(key)
        data = self._codec.dumps(value)
        return await self._backend.apply([(stored, None)], [(stored, data, positive(ttl))])

    async def delete(self, *names: str | bytes) -> int:
        """Remove keys; returns how many existed."""
        return await self._backend.delete([self._key(name) for name in names])

    async def clear(self) -> int:
        """Remove all keys of this namespace and of those below it, without locks and limits; returns their number."""
        return await self._run(operations.delete_prefix(self._prefix))

    async def compare_and_set(
        self, key: str | bytes, expected: V | None, value: V | None, ttl: float | None = None
    ) -> bool:
        """Set the value if the present one equals `expected`; None: the key does not exist, or is to be removed."""
        data = None if value is None else self._codec.dumps(value)
        return await self._run(
            operations.compare_and_set(self._key(key), self._equals(expected), data, positive(ttl))
        )

    async def update(
        self,
        key: str | bytes,
        function: Callable[[Any], V | None],
        ttl: float | None = None,
        *,
        keep_ttl: bool = False,
    ) -> V | None:
        """Replace the value by `function(value)`, a plain function, atomically, and return it. None is a missing key.

        The function runs again when another writer was faster. Raises `StateConflict` if one always is.
        """
        flow = operations.update(self._key(key), self._change(function), kept_or(ttl, keep_ttl))
        return self._optional(await self._run(flow))

    async def increment(self, key: str | bytes, delta: int = 1, ttl: float | None = None) -> int:
        """Add to an integer and return the sum. A missing key counts as 0, and only then `ttl` is used."""
        return await self._backend.add(self._key(key), delta, positive(ttl))

    async def decrement(self, key: str | bytes, delta: int = 1, ttl: float | None = None) -> int:
        """Subtract from an integer and return the difference."""
        return await self.increment(key, -delta, ttl)

    async def ttl(self, key: str | bytes) -> float | None:
        """Seconds until the key expires: infinity if it does not, None if it does not exist."""
        return await self._backend.ttl(self._key(key))

    async def expire(self, key: str | bytes, ttl: float | None) -> bool:
        """Let the key expire in `ttl` seconds, or never with None; False if it does not exist."""
        return await self._backend.expire(self._key(key), positive(ttl))

    async def scan(self, prefix: str = "") -> AsyncIterator[tuple[str, V]]:
        """Keys that begin with the prefix, and their values. Changes during the scan may or may not be seen."""
        async for key, data in self._pages(prefix, values=True):
            yield self._name(key), self._codec.loads(data)

    async def keys(self, prefix: str = "") -> AsyncIterator[str]:
        """As `scan`, without the values."""
        async for key, _ in self._pages(prefix, values=False):
            yield self._name(key)

    async def _pages(self, prefix: str, values: bool) -> AsyncIterator[tuple[bytes, bytes]]:
        full, cursor = self._prefix + prefix.encode(), None
        while True:
            pairs, cursor = await self._run(operations.page(full, cursor, values))
            for pair in pairs:
                yield pair
            if cursor is None:
                return

    # Transactions.

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncTransaction[V]]:
        """Reads and writes of several keys that take place together, at the end of the block, or not at all.

        Raises `StateConflict` there if another writer has changed a key that was read. An exception in the block
        discards the writes. `transact` tries again by itself.
        """
        changes = AsyncTransaction(self, self._backend)
        yield changes
        if not await self._backend.apply(*changes._commit()):
            raise StateConflict("another writer changed a key that the transaction had read")

    async def transact(self, function: Callable[[AsyncTransaction[V]], Awaitable[T]]) -> T:
        """Run a coroutine function as a transaction, again when another writer was faster, and return its result."""
        pauses = operations.delays()
        for attempt in range(operations.ATTEMPTS):
            changes = AsyncTransaction(self, self._backend)
            result = await function(changes)
            if await self._backend.apply(*changes._commit()):
                return result
            if attempt > 2:
                await asyncio.sleep(next(pauses))
        raise StateConflict(f"transact: other writers were faster {operations.ATTEMPTS} times")

    # Messages.

    async def publish(self, channel: str, data: V) -> None:
        """Send a message to all subscriptions of the channel, in all processes. It does not wait for them."""
        await self._backend.publish(self._key(channel), self._codec.dumps(data))

    def subscribe(
        self,
        *channels: str,
        patterns: list[str] | tuple[str, ...] = (),
        queue: int = 1000,
        when_full: WhenFull = "drop_oldest",
    ) -> AsyncSubscription[V]:
        """Messages of channels and of channels that match a pattern: `async with state.subscribe("chat") as messages`.

        `queue`: messages that may wait. When it is full the oldest is dropped, and counted in `dropped`; or the
        subscription ends with `SlowSubscriber`, with `when_full="disconnect"`.
        """
        check_subscription(channels, patterns, queue, when_full)

        async def begin() -> AsyncBackendSubscription:
            return await self._backend.subscribe(
                [self._key(channel) for channel in channels],
                [self._pattern(pattern) for pattern in patterns],
                queue,
                when_full,
            )

        return AsyncSubscription(self, begin)

    # Locks, limits, once-only.

    def lock(self, name: str, lease: float = 30.0, timeout: float | None = None) -> AsyncLock:
        """A lock that one holder has at a time, in all processes: `async with state.lock("job"):`.

        It is free again after `lease` seconds even if its holder has died; `extend()` starts the lease again. `timeout`:
        seconds to wait for it; None waits for ever. Raises `LockTimeout`.
        """
        return AsyncLock(self, [keys.internal(b"lock", self._prefix, name)], name, lease, timeout)

    def semaphore(
        self, name: str, limit: int, lease: float = 30.0, timeout: float | None = None
    ) -> AsyncLock:
        """As `lock`, for at most `limit` holders at a time."""
        return AsyncLock(self, self._slots(name, limit), name, lease, timeout)

    async def token_bucket(
        self, name: str, capacity: float, per_second: float, cost: float = 1.0
    ) -> Decision:
        """Take from a bucket of `capacity` tokens that gains `per_second`: allows bursts, limits the mean rate."""
        key = keys.internal(b"rate", self._prefix, name)
        return decision(await self._backend.take_tokens(key, capacity, per_second, cost))

    async def sliding_window(self, name: str, limit: int, seconds: float, cost: int = 1) -> Decision:
        """Allow at most `limit` events in any `seconds`, as estimated from the two last fixed windows."""
        key = keys.internal(b"rate", self._prefix, name)
        return decision(await self._backend.take_window(key, limit, seconds, cost))

    async def once(self, name: str, ttl: float | None = None) -> bool:
        """True for the first caller with this name, in all processes, until `ttl` seconds have passed."""
        key = keys.internal(b"once", self._prefix, name)
        return await self._backend.apply([(key, None)], [(key, operations.DONE, positive(ttl))])

    async def run_once(
        self,
        name: str,
        function: Callable[[], Awaitable[V]],
        ttl: float | None = None,
        lease: float = 60.0,
    ) -> V:
        """Run the coroutine function for an idempotency key and store its result, which later calls return.

        Raises `OnceInProgress` while another caller runs it, for at most `lease` seconds. If the function fails,
        the next caller runs it again.
        """
        key, token = keys.internal(b"once", self._prefix, name), operations.new_token()
        stored = await self._run(operations.begin_once(key, token, lease))
        if stored is not None:
            return self._codec.loads(stored)
        try:
            result = await function()
            data = self._codec.dumps(result)
        except BaseException:
            await self._run(operations.cancel_once(key, token))
            raise
        await self._run(operations.finish_once(key, token, data, positive(ttl)))
        return result

    async def info(self) -> dict[str, Any]:
        """Figures of the store, for people."""
        return await self._backend.info()


class AsyncTransaction(Changes[V]):
    """A transaction in its block: `get` reads, `set`, `delete` and `publish` are carried out at its end."""

    def __init__(self, view: View[V], backend: AsyncBackend) -> None:
        super().__init__(view)
        self._backend = backend

    @overload
    async def get(self, key: str | bytes) -> V | None: ...
    @overload
    async def get(self, key: str | bytes, default: D) -> V | D: ...
    async def get(self, key: str | bytes, default: Any = None) -> Any:
        """The value, as the transaction has set it, or as it must still be when it is committed."""
        stored = self._view._key(key)
        is_known, data = self._known(stored)
        if not is_known:
            data = self._seen[stored] = await self._backend.get(stored)
        return default if data is None else self._view._codec.loads(data)


class AsyncSubscription(Generic[V]):
    """Received messages: `async with` begins the subscription, `async for` reads it, until `close()`."""

    def __init__(self, view: View[V], begin: Callable[[], Awaitable[AsyncBackendSubscription]]) -> None:
        self._view = view
        self._begin = begin
        self._source: AsyncBackendSubscription | None = None
        self._closed = False

    async def receive(self) -> Message[V] | None:
        """The next message; None if the subscription is closed. May be cancelled, as by `asyncio.wait_for`."""
        if self._closed:
            return None
        if self._source is None:
            self._source = await self._begin()
        post = await self._source.receive()
        return None if post is None else Message(self._view._name(post[0]), self._view._codec.loads(post[1]))

    @property
    def dropped(self) -> int:
        """Messages that were lost because this subscriber was too slow."""
        return 0 if self._source is None else self._source.dropped

    async def __aiter__(self) -> AsyncIterator[Message[V]]:
        while (message := await self.receive()) is not None:
            yield message

    async def close(self) -> None:
        """End the subscription; a reader that waits gets None."""
        self._closed = True
        if self._source is not None:
            await self._source.close()

    async def __aenter__(self) -> AsyncSubscription[V]:
        if self._source is None:
            self._source = await self._begin()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


class AsyncLock(Lease):
    """A lock or a permit of a semaphore, with a lease. One object is one holder."""

    _state: AsyncState[Any]

    async def acquire(self) -> None:
        """Wait for the lock. Raises `LockTimeout`."""
        await self._state._run(self._acquire())

    async def extend(self, lease: float | None = None) -> None:
        """Start the lease again, from now. Raises `LockLost` if it had expired."""
        await self._state._run(self._extend(lease))

    async def release(self) -> None:
        """Let the next one have it. Raises `LockLost` if the lease had expired."""
        await self._state._run(self._release())

    async def __aenter__(self) -> AsyncLock:
        await self.acquire()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.release()
