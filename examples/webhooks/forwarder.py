"""The outbox: forwards what the store has accepted to the destination, with retries.

```
          accept                     success, or a permanent refusal
  (store) ──────► accepted ──────────────────────────────────────────► forwarded
                    │  ▲ due again: exponential backoff with jitter
                    └──┘ destination down, 408, 429, 5xx   ── too old ──► given up
```

The store is the queue: memory holds only the webhooks in flight and as many again, which are read ahead. A backlog of any
length costs no memory, and a forwarder that was killed continues where it was. A webhook whose outcome could not be
recorded in time is forwarded again: every destination receives it at least once, with the same Webhook-Id.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import time
from collections import deque
from typing import Any
from urllib.parse import quote

import towline

from .store import Database, Outcome, Store, StoreError, Webhook

log = logging.getLogger("webhooks")

FIRST_DELAY, LONGEST_DELAY = 0.5, 60.0  # seconds before the second attempt, and between later ones at most
STORED_BODY_BYTES = 64 * 1024  # of a response
RETRIED = {408, 429, *range(500, 600)}


class Forwarder:
    """Takes webhooks from the store and forwards up to `width` of them concurrently."""

    def __init__(
        self, store: Store, client: Any, destination: str, *, width: int, give_up_after: float
    ) -> None:
        self._store = store
        self._client = client
        self._upstream = destination.rstrip("/")
        self._width = width
        self._give_up_after = give_up_after
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready: deque[Webhook] = deque()
        self._taken: set[int] = set()  # ids from the store that are ready or under way
        self._cursor = 0  # fresh webhooks up to this id have been taken
        self._woken = asyncio.Event()
        self._feeding: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._feeding = asyncio.create_task(self._feed())

    def wake(self) -> None:
        """Signals a new webhook in the store, or room for one."""
        self._woken.set()

    async def stop(self, grace: float) -> None:
        """Stops new attempts; those in flight have `grace` seconds. The rest is resumed at the next start."""
        if self._feeding is not None:
            self._feeding.cancel()
            await asyncio.wait([self._feeding])
        self._ready.clear()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=grace)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    async def _feed(self) -> None:
        while True:
            self._woken.clear()
            try:
                taken = await self._take()
                pause = None if taken else await self._pause()
            except StoreError as error:
                log.warning("cannot read webhooks: %s", error)
                taken, pause = 0, 1.0
            if not taken:
                try:
                    await asyncio.wait_for(self._woken.wait(), pause)
                except (TimeoutError, asyncio.TimeoutError):
                    pass

    async def _take(self) -> int:
        """Reads ahead up to `width` webhooks, retries first; returns how many there were."""
        room, taken = self._width - len(self._ready), len(self._taken)
        if room <= 0:
            return 0
        now, cursor = time.time(), self._cursor

        def read(database: Database) -> tuple[list[Webhook], list[Webhook]]:
            return database.due(now, room + taken), database.fresh(cursor, room)

        again, fresh = await self._store.query(read)
        batch = [webhook for webhook in again if webhook.id not in self._taken][:room]
        fresh = fresh[: room - len(batch)]
        if fresh:
            self._cursor = fresh[-1].id
        batch += fresh
        self._ready += batch
        self._taken.update(webhook.id for webhook in batch)
        self._begin()
        return len(batch)

    async def _pause(self) -> float | None:
        """Seconds until the next retry; None while no slot is free."""
        if len(self._ready) >= self._width:
            return None
        due: float | None = await self._store.query(lambda database: database.next_due())
        # A retry that is already due is in flight; its end wakes this task.
        return None if due is None else max(due - time.time(), 0.1)

    def _begin(self) -> None:
        while self._ready and len(self._tasks) < self._width:
            webhook = self._ready.popleft()
            task = asyncio.create_task(self._attempt(webhook))
            self._tasks.add(task)
            task.add_done_callback(functools.partial(self._ended, webhook.id))

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._taken.discard(number)
        self._begin()
        if len(self._ready) <= self._width // 2:
            self.wake()

    async def _attempt(self, webhook: Webhook) -> None:
        outcome = await self._forward(webhook)
        while True:
            try:
                return await self._store.record(outcome)
            except StoreError as error:
                log.warning("cannot record the outcome of webhook %d: %s", webhook.id, error)
                await asyncio.sleep(1.0)

    async def _forward(self, webhook: Webhook) -> Outcome:
        started = time.perf_counter()
        attempts = webhook.attempts + 1
        url = f"{self._upstream}/{quote(webhook.hook, safe='')}"
        headers = [*webhook.headers, ("Webhook-Id", str(webhook.id)), ("Webhook-Attempt", str(attempts))]
        try:
            response = await self._client.post(url, content=webhook.body, headers=headers)
        except Exception as error:
            if not isinstance(error, towline.Error):
                log.exception("webhook %d", webhook.id)  # an unexpected error must not lose it either
            duration = time.perf_counter() - started
            due = self._due(webhook)
            return Outcome(webhook.id, attempts, duration, due, error=f"{type(error).__name__}: {error}")
        retried = response.status_code in RETRIED
        due = self._due(webhook) if retried else None
        return Outcome(
            webhook.id,
            attempts,
            time.perf_counter() - started,
            due,
            response.status_code,
            response.headers.multi_items(),
            response.content[:STORED_BODY_BYTES],
            f"the destination answered {response.status_code}" if retried else None,
        )

    def _due(self, webhook: Webhook) -> float | None:
        """Time of the next attempt after this failure; None if the webhook is too old."""
        now = time.time()
        if now - webhook.received_at > self._give_up_after:
            return None
        delay = min(FIRST_DELAY * 2.0 ** min(webhook.attempts, 20), LONGEST_DELAY)
        return now + delay * random.uniform(0.5, 1.0)
