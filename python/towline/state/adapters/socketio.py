"""Managers of python-socketio: rooms and emits of several workers. `socketio.AsyncServer(client_manager=AsyncStateManager())`.

Clients must stay on one worker if they may use long polling; with `transports=["websocket"]` any worker will do.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import socketio
from socketio.async_pubsub_manager import AsyncPubSubManager

import towline.state

from ...errors import StateClosed, StateError
from ..async_state import AsyncState
from ..state import State

QUEUE = 10_000
"""Messages that may wait for a worker. It reads them into its clients' queues, and is behind only when its loop is."""
LONGEST_PAUSE = 30.0


class StateManager(socketio.PubSubManager):  # type: ignore[misc]  # python-socketio has no types
    """For `socketio.Server` and Flask-SocketIO. `state`: a state, or the argument of `towline.state.open()`."""

    name = "towline"

    def __init__(
        self,
        state: State[Any] | str | None = None,
        channel: str = "socketio",
        write_only: bool = False,
        logger: Any = None,
        json: Any = None,
    ) -> None:
        super().__init__(channel=channel, write_only=write_only, logger=logger, json=json)
        opened = state if isinstance(state, State) else towline.state.open(state)
        self._state = opened.namespace("socketio", codec="bytes")

    def _publish(self, data: Any) -> None:
        self._state.publish(self.channel, self.json.dumps(data).encode())

    def _listen(self) -> Iterator[bytes]:
        for pause in _pauses():
            try:
                with self._state.subscribe(self.channel, queue=QUEUE) as messages:
                    for message in messages:
                        yield message.data
            except StateClosed:
                return
            except StateError as error:
                self._get_logger().error("Cannot receive from the state, retrying in %g s: %s", pause, error)
            time.sleep(pause)


class AsyncStateManager(AsyncPubSubManager):  # type: ignore[misc]
    """For `socketio.AsyncServer`. `state`: a state, or the argument of `towline.state.open_async()`."""

    name = "towline"

    def __init__(
        self,
        state: AsyncState[Any] | str | None = None,
        channel: str = "socketio",
        write_only: bool = False,
        logger: Any = None,
        json: Any = None,
    ) -> None:
        super().__init__(channel=channel, write_only=write_only, logger=logger, json=json)
        opened = state if isinstance(state, AsyncState) else towline.state.open_async(state)
        self._state = opened.namespace("socketio", codec="bytes")

    async def _publish(self, data: Any) -> None:
        await self._state.publish(self.channel, self.json.dumps(data).encode())

    async def _listen(self) -> AsyncIterator[bytes]:
        for pause in _pauses():
            try:
                async with self._state.subscribe(self.channel, queue=QUEUE) as messages:
                    async for message in messages:
                        yield message.data
            except StateClosed:
                return
            except StateError as error:
                self._get_logger().error("Cannot receive from the state, retrying in %g s: %s", pause, error)
            await asyncio.sleep(pause)


def _pauses() -> Iterator[float]:
    return (min(2.0**attempt, LONGEST_PAUSE) for attempt in itertools.count())
