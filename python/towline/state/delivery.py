"""Delivery of the embedded store's messages: one reader of the log for each event loop, and one for all threads.

The reader takes messages from the log and puts them into the queues of the subscriptions that want them. The store wakes it
through a descriptor, once for all messages since its last look.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence

from .. import _native
from ..errors import SlowSubscriber
from .backend import Post, WhenFull, closed
from .patterns import matcher

DELIVERIES = 2000
"""Messages times subscriptions of one turn: about 1 ms, after which the event loop runs other callbacks."""
MAX_BATCH = 256
BATCH_BYTES = 256 * 1024
LOOK_AGAIN = 0.5
"""Seconds after which a reader looks without being woken: a publisher may be killed between its commit and the wake-up."""


class Queue:
    """The messages that wait for one subscription, and its rule when they are too many.

    open ── close() of the subscription ──► closed     take() returns None
         ── end(), when the store is closed ──► ended  take() returns the messages that wait, then raises StateClosed
    """

    def __init__(self, start: int, limit: int, when_full: WhenFull) -> None:
        self.start = start  # number of the first message that it gets
        self.posts: deque[Post] = deque()
        self.dropped = 0
        self.closed = False
        self._ended = False
        self._limit = limit
        self._disconnects = when_full == "disconnect"

    def put(self, post: Post) -> None:
        if len(self.posts) >= self._limit:
            self.lose(1)
            if self._disconnects:
                return
            self.posts.popleft()
        self.posts.append(post)

    def lose(self, count: int) -> None:
        """Count messages that this subscription does not get. With "disconnect" they end it."""
        self.dropped += count

    def take(self) -> Post | None:
        """The next message; None if there is none. Raises `SlowSubscriber` or `StateClosed` if there will be none."""
        if self._disconnects and self.dropped:
            self.posts.clear()
            raise SlowSubscriber(
                f"{self.dropped} messages were lost, because the subscriber did not read in time"
            )
        if self.posts:
            return self.posts.popleft()
        if self._ended and not self.closed:
            raise closed()
        return None

    def end(self) -> None:
        """Let the reader meet the end of the store, after the messages that wait."""
        self._ended = True
        self.wake()

    def wake(self) -> None:
        """Let the reader of the queue run, if it waits."""
        raise NotImplementedError


class Router:
    """The queues of all subscriptions, by channel and by pattern."""

    def __init__(self) -> None:
        self._by_channel: dict[bytes, list[Queue]] = {}
        self._by_pattern: list[tuple[Callable[[bytes], object], Queue]] = []
        self._queues: set[Queue] = set()

    def __len__(self) -> int:
        return len(self._queues)

    def add(self, queue: Queue, channels: Sequence[bytes], patterns: Sequence[bytes]) -> None:
        self._queues.add(queue)
        for channel in dict.fromkeys(channels):
            self._by_channel.setdefault(channel, []).append(queue)
        self._by_pattern += [(matcher(pattern), queue) for pattern in patterns]

    def remove(self, queue: Queue) -> None:
        self._queues.discard(queue)
        for channel, queues in list(self._by_channel.items()):
            if queue in queues:
                queues.remove(queue)
            if not queues:
                del self._by_channel[channel]
        self._by_pattern = [(matches, other) for matches, other in self._by_pattern if other is not queue]

    def end_all(self) -> None:
        """Remove and end every subscription."""
        queues = tuple(self._queues)
        self._queues.clear()
        self._by_channel.clear()
        self._by_pattern.clear()
        for queue in queues:
            queue.end()

    def deliver(self, posts: Sequence[Post], lost: int, end: int) -> None:
        """Put messages into the queues that want them, and wake their readers. `end`: the number of the next message."""
        news: dict[Queue, None] = {}
        first = end - len(posts)
        if lost:
            for queue in self._queues:
                if queue.start < first:
                    queue.lose(min(lost, first - queue.start))
                    news[queue] = None
        for number, post in enumerate(posts, first):
            channel = post[0]
            queues: Collection[Queue] = self._by_channel.get(channel, ())
            if self._by_pattern:
                matching = [queue for matches, queue in self._by_pattern if matches(channel)]
                queues = dict.fromkeys([*queues, *matching])
            for queue in queues:
                if queue.start <= number:
                    queue.put(post)
                    news[queue] = None
        for queue in news:
            queue.wake()

    def batch(self) -> int:
        """The number of messages that one turn may deliver."""
        return max(1, min(MAX_BATCH, DELIVERIES // max(1, len(self._queues))))


# Threads.


class ThreadQueue(Queue):
    """A subscription of a program that blocks."""

    def __init__(self, owner: ThreadReader, start: int, limit: int, when_full: WhenFull) -> None:
        super().__init__(start, limit, when_full)
        self._owner = owner
        self._news = threading.Condition(owner.lock)

    def wake(self) -> None:
        self._news.notify_all()

    def receive(self, timeout: float | None = None) -> Post | None:
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._owner.lock:
            while True:
                post = self.take()
                if post is not None or self.closed:
                    return post
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._news.wait(left)

    def close(self) -> None:
        with self._owner.lock:
            self.closed = True
            self.posts.clear()
            self._owner.router.remove(self)
            self._news.notify_all()


class ThreadReader:
    """A thread that reads the log for all subscriptions of the process; it ends with the last one."""

    def __init__(self, store: _native.StateStore) -> None:
        self._store = store
        self.lock = threading.Lock()
        self.router = Router()
        self._log: _native.StateLog | None = None
        self._is_closed = False

    def close(self) -> None:
        """End all subscriptions. The thread may sleep until it looks again, and has no log any more then."""
        with self.lock:
            self._is_closed = True
            self.router.end_all()
            if self._log is not None:
                self._log.close()
                self._log = None

    def subscribe(
        self, channels: Sequence[bytes], patterns: Sequence[bytes], limit: int, when_full: WhenFull
    ) -> ThreadQueue:
        with self.lock:
            if self._is_closed:
                raise closed()
            log = self._log
            if log is None:
                log = self._log = self._store.open_log()
                threading.Thread(target=self._run, args=(log,), name="towline-state", daemon=True).start()
            queue = ThreadQueue(self, log.end(), limit, when_full)
            self.router.add(queue, channels, patterns)
        return queue

    def _run(self, log: _native.StateLog) -> None:
        poller = select.poll()
        poller.register(log.fileno(), select.POLLIN)
        while True:
            with self.lock:
                if self._log is not log:
                    return  # closed
                if not len(self.router):
                    self._log = None
                    log.close()
                    return
                limit = self.router.batch()
                posts, lost, end = log.read(limit, BATCH_BYTES)
                self.router.deliver(posts, lost, end)
                may_sleep = not posts and not log.arm()
            if may_sleep:
                poller.poll(LOOK_AGAIN * 1000)


# Event loops.


class LoopQueue(Queue):
    """A subscription of an event loop."""

    def __init__(self, owner: LoopReader, start: int, limit: int, when_full: WhenFull) -> None:
        super().__init__(start, limit, when_full)
        self._owner = owner
        self._waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def receive(self) -> Post | None:
        while True:
            post = self.take()
            if post is not None or self.closed:
                return post
            waiter = self._waiter = self._owner.loop.create_future()
            try:
                await waiter
            finally:
                if self._waiter is waiter:
                    self._waiter = None

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.posts.clear()
            self.wake()
            self._owner.remove(self)


class LoopReader:
    """Reads the log in callbacks of one event loop, for its subscriptions. It ends with the last one."""

    def __init__(self, loop: asyncio.AbstractEventLoop, log: _native.StateLog) -> None:
        self.loop = loop
        self.pid = os.getpid()
        self._log = log
        self._router = Router()
        self._timer: asyncio.TimerHandle | None = None
        self._next: asyncio.Handle | None = None
        self.closed = False
        loop.add_reader(log.fileno(), self._turn)
        self._look_again()
        self._turn()

    def add(
        self, channels: Sequence[bytes], patterns: Sequence[bytes], limit: int, when_full: WhenFull
    ) -> LoopQueue:
        queue = LoopQueue(self, self._log.end(), limit, when_full)
        self._router.add(queue, channels, patterns)
        return queue

    def remove(self, queue: LoopQueue) -> None:
        self._router.remove(queue)
        if not len(self._router):
            self.close()

    def close(self) -> None:
        """Stop reading, and end the subscriptions that there are. Runs on the loop's thread."""
        if self.closed:
            return
        self.closed = True
        self._router.end_all()
        self.loop.remove_reader(self._log.fileno())
        for handle in (self._timer, self._next):
            if handle is not None:
                handle.cancel()
        self._log.close()

    def _look_again(self) -> None:
        self._timer = self.loop.call_later(LOOK_AGAIN, self._look_again)
        if self._next is None:
            self._turn()

    def _turn(self) -> None:
        """Deliver some messages; go on in the next iteration of the loop, or sleep until the store wakes it."""
        if self.closed:
            return  # its descriptor was ready in the same iteration of the loop
        if self._next is not None:
            self._next.cancel()
            self._next = None
        posts, lost, end = self._log.read(self._router.batch(), BATCH_BYTES)
        self._router.deliver(posts, lost, end)
        if not self.closed and (posts or self._log.arm()):
            self._next = self.loop.call_soon(self._turn)
