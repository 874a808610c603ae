"""A back end of broadcaster: `Broadcast(backend=StateBackend())`. Messages are what JSON can say."""

from __future__ import annotations

import asyncio
from typing import Any

from broadcaster import Event
from broadcaster._backends.base import BroadcastBackend

import towline.state

from ..async_state import AsyncState, AsyncSubscription

QUEUE = 1000
"""Messages of one channel that may wait before the oldest is dropped."""


class StateBackend(BroadcastBackend):
    """`state`: a state, or the argument of `towline.state.open_async()`."""

    def __init__(self, state: AsyncState[Any] | str | None = None) -> None:
        opened = state if isinstance(state, AsyncState) else towline.state.open_async(state)
        self._state = opened.namespace("broadcaster", codec="json")
        self._subscriptions: dict[str, tuple[AsyncSubscription[Any], asyncio.Task[None]]] = {}
        # One at a time: the messages wait in the queues of the subscriptions, which have a rule for slow readers.
        self._published: asyncio.Queue[Event | Exception] | None = None

    async def connect(self) -> None:
        self._published = asyncio.Queue(1)

    async def disconnect(self) -> None:
        for channel in list(self._subscriptions):
            await self.unsubscribe(channel)

    async def subscribe(self, channel: str) -> None:
        messages = await self._state.subscribe(channel, queue=QUEUE).__aenter__()
        self._subscriptions[channel] = messages, asyncio.create_task(self._forward(messages))

    async def unsubscribe(self, channel: str) -> None:
        messages, task = self._subscriptions.pop(channel)
        task.cancel()
        await messages.close()

    async def publish(self, channel: str, message: Any) -> None:
        await self._state.publish(channel, message)

    async def next_published(self) -> Event:
        assert self._published is not None, "connect() comes first"
        found = await self._published.get()
        if isinstance(found, Exception):
            raise found
        return found

    async def _forward(self, messages: AsyncSubscription[Any]) -> None:
        assert self._published is not None
        try:
            async for message in messages:
                await self._published.put(Event(message.channel, message.data))
        except Exception as error:
            await self._published.put(error)
