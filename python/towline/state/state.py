"""The state for programs that block: WSGI applications, scripts, background threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, cast, overload

from ..errors import StateConflict, UsageError
from . import keys, operations
from .backend import Backend, BackendSubscription, WhenFull
from .codecs import BytesCodec, Codec, codec_of
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


class State(View[V]):
    """Values by key, shared by all processes that open the same store. `towline.state.open()` makes one.

    Keys are text or bytes, of at most 480 bytes with their namespace. Times to live are in seconds. Its methods may be
    called by several threads, and it may be used after a fork.
    """

    def __init__(self, backend: Backend, codec: Codec[V], prefix: bytes = b"") -> None:
        super().__init__(codec, prefix)
        self._backend = backend
        self._read = backend.get
        self._loads = None if isinstance(codec, BytesCodec) else codec.loads

    def __enter__(self) -> State[V]:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<State {self._backend.name} {self._prefix.decode(errors='replace')!r}>"

    def close(self) -> None:
        """Release what this process holds, for all namespaces of this object. The values stay.

        Later calls raise `StateClosed`, and so do subscriptions, after the messages that wait.
        """
        self._backend.close()

    def namespace(self, name: str, codec: str | Codec[Any] | None = None) -> State[Any]:
        """A view whose keys and channels are apart from those of others; by default with the same codec."""
        return State(
            self._backend,
            self._codec if codec is None else codec_of(codec),
            keys.nested(self._prefix, name),
        )

    def _run(self, flow: Flow[T]) -> T:
        """Carry out an operation with calls that block."""
        answer: Any = None
        while True:
            try:
                method, *arguments = flow.send(answer)
            except StopIteration as end:
                return cast(T, end.value)
            if method == "sleep":
                time.sleep(*arguments)
                answer = None
            else:
                answer = getattr(self._backend, method)(*arguments)

    # Values.

    @overload
    def get(self, key: str | bytes) -> V | None: ...
    @overload
    def get(self, key: str | bytes, default: D) -> V | D: ...
    def get(self, key: str | bytes, default: Any = None) -> Any:
        """The value, or the default if there is none or it has expired."""
        # The most frequent call: without the steps of other methods. The store checks the key with its namespace.
        if not key:
            raise UsageError(keys.EMPTY)
        data = self._read(self._prefix + (key.encode() if type(key) is str else key))  # type: ignore[operator]
        if data is None:
            return default
        return data if self._loads is None else self._loads(data)

    def get_many(self, names: list[str] | tuple[str, ...] | set[str]) -> dict[str, V]:
        """The values of the keys that exist, from one moment."""
        names = list(names)
        found = self._backend.get_many([self._key(name) for name in names])
        return {
            name: self._codec.loads(data) for name, data in zip(names, found, strict=True) if data is not None
        }

    def __contains__(self, key: str | bytes) -> bool:
        return self._backend.get(self._key(key)) is not None

    def contains(self, key: str | bytes) -> bool:
        """As `key in state`, with the name that `AsyncState` has."""
        return key in self

    def set(self, key: str | bytes, value: V, ttl: float | None = None) -> None:
        """Set a value, and how long it lives: without `ttl` for ever. Raises `StateFull`."""
        self._backend.set(self._key(key), self._codec.dumps(value), positive(ttl))

    def set_many(self, values: Mapping[str, V], ttl: float | None = None) -> None:
        """Set several values at once: all of them, or none. Raises `StateFull`."""
        self._backend.apply([], self._writes(values, ttl))

    def set_if_absent(self, key: str | bytes, value: V, ttl: float | None = None) -> bool:
        """Set the value if the key does not exist; returns whether it was set."""
        stored = self._key(key)
        return self._backend.apply([(stored, None)], [(stored, self._codec.dumps(value), positive(ttl))])

    def delete(self, *names: str | bytes) -> int:
        """Remove keys; returns how many existed."""
        return self._backend.delete([self._key(name) for name in names])

    def clear(self) -> int:
        """Remove all keys of this namespace and of those below it, without locks and limits; returns their number."""
        return self._run(operations.delete_prefix(self._prefix))

    def compare_and_set(
        self, key: str | bytes, expected: V | None, value: V | None, ttl: float | None = None
    ) -> bool:
        """Set the value if the present one equals `expected`; None: the key does not exist, or is to be removed."""
        data = None if value is None else self._codec.dumps(value)
        return self._run(
            operations.compare_and_set(self._key(key), self._equals(expected), data, positive(ttl))
        )

    def update(
        self,
        key: str | bytes,
        function: Callable[[Any], V | None],
        ttl: float | None = None,
        *,
        keep_ttl: bool = False,
    ) -> V | None:
        """Replace the value by `function(value)`, atomically, and return it. None is a missing key, both ways.

        The function runs again when another writer was faster. Raises `StateConflict` if one always is.
        """
        flow = operations.update(self._key(key), self._change(function), kept_or(ttl, keep_ttl))
        return self._optional(self._run(flow))

    def increment(self, key: str | bytes, delta: int = 1, ttl: float | None = None) -> int:
        """Add to an integer and return the sum. A missing key counts as 0, and only then `ttl` is used."""
        return self._backend.add(self._key(key), delta, positive(ttl))

    def decrement(self, key: str | bytes, delta: int = 1, ttl: float | None = None) -> int:
        """Subtract from an integer and return the difference."""
        return self.increment(key, -delta, ttl)

    def ttl(self, key: str | bytes) -> float | None:
        """Seconds until the key expires: infinity if it does not, None if it does not exist."""
        return self._backend.ttl(self._key(key))

    def expire(self, key: str | bytes, ttl: float | None) -> bool:
        """Let the key expire in `ttl` seconds, or never with None; False if it does not exist."""
        return self._backend.expire(self._key(key), positive(ttl))

    def scan(self, prefix: str = "") -> Iterator[tuple[str, V]]:
        """Keys that begin with the prefix, and their values. Changes during the scan may or may not be seen.

        On Redis the keys have no order, and one may come twice.
        """
        for key, data in self._pages(prefix, values=True):
            yield self._name(key), self._codec.loads(data)

    def keys(self, prefix: str = "") -> Iterator[str]:
        """As `scan`, without the values."""
        for key, _ in self._pages(prefix, values=False):
            yield self._name(key)

    def _pages(self, prefix: str, values: bool) -> Iterator[tuple[bytes, bytes]]:
        full, cursor = self._prefix + prefix.encode(), None
        while True:
            pairs, cursor = self._run(operations.page(full, cursor, values))
            yield from pairs
            if cursor is None:
                return

    # Transactions.

    @contextmanager
    def transaction(self) -> Iterator[Transaction[V]]:
        """Reads and writes of several keys that take place together, at the end of the block, or not at all.

        Raises `StateConflict` there if another writer has changed a key that was read. An exception in the block
        discards the writes. `transact` tries again by itself.
        """
        changes = Transaction(self, self._backend)
        yield changes
        if not self._backend.apply(*changes._commit()):
            raise StateConflict("another writer changed a key that the transaction had read")

    def transact(self, function: Callable[[Transaction[V]], T]) -> T:
        """Run a function as a transaction, again when another writer was faster, and return its result."""
        pauses = operations.delays()
        for attempt in range(operations.ATTEMPTS):
            changes = Transaction(self, self._backend)
            result = function(changes)
            if self._backend.apply(*changes._commit()):
                return result
            if attempt > 2:
                time.sleep(next(pauses))
        raise StateConflict(f"transact: other writers were faster {operations.ATTEMPTS} times")

    # Messages.

    def publish(self, channel: str, data: V) -> None:
        """Send a message to all subscriptions of the channel, in all processes. It does not wait for them."""
        self._backend.publish(self._key(channel), self._codec.dumps(data))

    def subscribe(
        self,
        *channels: str,
        patterns: list[str] | tuple[str, ...] = (),
        queue: int = 1000,
        when_full: WhenFull = "drop_oldest",
    ) -> Subscription[V]:
        """Messages of channels and of channels that match a pattern (`room.*`), from now on: an iterable.

        `queue`: messages that may wait. When it is full the oldest is dropped, and counted in `dropped`; or the
        subscription ends with `SlowSubscriber`, with `when_full="disconnect"`.
        """
        check_subscription(channels, patterns, queue, when_full)
        source = self._backend.subscribe(
            [self._key(channel) for channel in channels],
            [self._pattern(pattern) for pattern in patterns],
            queue,
            when_full,
        )
        return Subscription(self, source)

    # Locks, limits, once-only.

    def lock(self, name: str, lease: float = 30.0, timeout: float | None = None) -> Lock:
        """A lock that one holder has at a time, in all processes: `with state.lock("job"):`.

        It is free again after `lease` seconds even if its holder has died; `extend()` starts the lease again. `timeout`:
        seconds to wait for it; None waits for ever. Raises `LockTimeout`.
        """
        return Lock(self, [keys.internal(b"lock", self._prefix, name)], name, lease, timeout)

    def semaphore(self, name: str, limit: int, lease: float = 30.0, timeout: float | None = None) -> Lock:
        """As `lock`, for at most `limit` holders at a time."""
        return Lock(self, self._slots(name, limit), name, lease, timeout)

    def token_bucket(self, name: str, capacity: float, per_second: float, cost: float = 1.0) -> Decision:
        """Take from a bucket of `capacity` tokens that gains `per_second`: allows bursts, limits the mean rate."""
        key = keys.internal(b"rate", self._prefix, name)
        return decision(self._backend.take_tokens(key, capacity, per_second, cost))

    def sliding_window(self, name: str, limit: int, seconds: float, cost: int = 1) -> Decision:
        """Allow at most `limit` events in any `seconds`, as estimated from the two last fixed windows."""
        key = keys.internal(b"rate", self._prefix, name)
        return decision(self._backend.take_window(key, limit, seconds, cost))

    def once(self, name: str, ttl: float | None = None) -> bool:
        """True for the first caller with this name, in all processes, until `ttl` seconds have passed."""
        key = keys.internal(b"once", self._prefix, name)
        return self._backend.apply([(key, None)], [(key, operations.DONE, positive(ttl))])

    def run_once(
        self, name: str, function: Callable[[], V], ttl: float | None = None, lease: float = 60.0
    ) -> V:
        """Run the function for an idempotency key and store its result; later calls return that for `ttl` seconds.

        Raises `OnceInProgress` while another caller runs it, for at most `lease` seconds. If the function fails,
        the next caller runs it again.
        """
        key, token = keys.internal(b"once", self._prefix, name), operations.new_token()
        stored = self._run(operations.begin_once(key, token, lease))
        if stored is not None:
            return self._codec.loads(stored)
        try:
            result = function()
            data = self._codec.dumps(result)
        except BaseException:
            self._run(operations.cancel_once(key, token))
            raise
        self._run(operations.finish_once(key, token, data, positive(ttl)))
        return result

    def info(self) -> dict[str, Any]:
        """Figures of the store, for people."""
        return self._backend.info()


class Transaction(Changes[V]):
    """A transaction in its block: `get` reads, `set`, `delete` and `publish` are carried out at its end."""

    def __init__(self, view: View[V], backend: Backend) -> None:
        super().__init__(view)
        self._backend = backend

    @overload
    def get(self, key: str | bytes) -> V | None: ...
    @overload
    def get(self, key: str | bytes, default: D) -> V | D: ...
    def get(self, key: str | bytes, default: Any = None) -> Any:
        """The value, as the transaction has set it, or as it must still be when it is committed."""
        stored = self._view._key(key)
        is_known, data = self._known(stored)
        if not is_known:
            data = self._seen[stored] = self._backend.get(stored)
        return default if data is None else self._view._codec.loads(data)


class Subscription(Generic[V]):
    """Received messages: `for message in subscription`, until another thread calls `close()`."""

    def __init__(self, view: View[V], source: BackendSubscription) -> None:
        self._view = view
        self._source = source

    def receive(self, timeout: float | None = None) -> Message[V] | None:
        """The next message; None if there was none for `timeout` seconds, or the subscription is closed."""
        post = self._source.receive(timeout)
        return None if post is None else Message(self._view._name(post[0]), self._view._codec.loads(post[1]))

    @property
    def dropped(self) -> int:
        """Messages that were lost because this subscriber was too slow."""
        return self._source.dropped

    def __iter__(self) -> Iterator[Message[V]]:
        while (message := self.receive()) is not None:
            yield message

    def close(self) -> None:
        """End the subscription; a reader that waits gets None."""
        self._source.close()

    def __enter__(self) -> Subscription[V]:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Lock(Lease):
    """A lock or a permit of a semaphore, with a lease. One object is one holder."""

    _state: State[Any]

    def acquire(self) -> None:
        """Wait for the lock. Raises `LockTimeout`."""
        self._state._run(self._acquire())

    def extend(self, lease: float | None = None) -> None:
        """Start the lease again, from now. Raises `LockLost` if it had expired."""
        self._state._run(self._extend(lease))

    def release(self) -> None:
        """Let the next one have it. Raises `LockLost` if the lease had expired."""
        self._state._run(self._release())

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()
