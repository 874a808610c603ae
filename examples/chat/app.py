"""A chat in rooms over WebSockets, on any number of workers; its page is http://127.0.0.1:8000/.

    towline serve app:app --workers 4 --app-dir examples/chat

Clients in one room may be on different workers, which share `towline.state`. A message gets a number, is stored and is
published in one transaction, and only then acknowledged. So an acknowledged message reaches every client that stays
connected, even if the worker of its sender is killed at that moment; a client that has lost its connection comes back with
`?after=NUMBER` and gets what it missed, the last thousand messages at most: numbers tell it of a gap.

    client                                      server
                                                {"joined": NUMBER of the last message, "worker": PID}
    {"id": anything, "text": "hello"}           {"number": 7, "text": "hello"}     to everyone in the room
                                                {"ack": anything, "number": 7}     to the sender

Closed with 1008: a message of another form. With 1013: a client that reads too slowly, or a store that fails; it may come back.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import towline.state
from towline.state import AsyncState, AsyncSubscription, AsyncTransaction

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

ROOMS = "/rooms/"
KEPT = 24 * 3600
"""Seconds for which a message is stored."""
WAITING = 1000
"""Messages that may wait for one client. A slower one is disconnected; it comes back and reads what it missed."""
MAX_MISSED = 1000
"""Messages that a client which comes back gets at most."""
MAX_TEXT = 10_000
PAGE = Path(__file__).with_name("page.html").read_bytes()


class BadRequest(Exception):
    """The client has sent something of another form than the protocol's."""


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await lifespan(scope, receive, send)
    elif scope["type"] == "websocket":
        await Participant(scope, receive, send).run()
    elif scope["path"] == "/":
        await respond(send, 200, PAGE, b"text/html; charset=utf-8")
    else:
        await respond(send, 404, b"the page is /\n", b"text/plain")


async def respond(send: Send, status: int, body: bytes, content_type: bytes) -> None:
    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def lifespan(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    try:
        # Without CHAT_STATE, the store of this server.
        state = towline.state.open_async(os.environ.get("CHAT_STATE"), namespace="chat")
    except Exception as error:  # an exception would mean that the application has no lifespan
        await send({"type": "lifespan.startup.failed", "message": str(error)})
        return
    async with state:
        scope["state"]["chat"] = state
        await send({"type": "lifespan.startup.complete"})
        await receive()
    await send({"type": "lifespan.shutdown.complete"})


class Participant:
    """One client in one room."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._room = scope["path"].removeprefix(ROOMS)
        self._query = parse_qs(scope["query_string"].decode("latin-1"))
        self._state: AsyncState[Any] = scope["state"]["chat"]
        self._receive = receive
        self._send = send

    async def run(self) -> None:
        await self._receive()
        try:
            after = self._after()
        except BadRequest as error:
            await self._close(1008, str(error))  # before it is accepted: a response with 403
            return
        await self._send({"type": "websocket.accept"})
        # Subscribed before the history is read: no message is between the two.
        async with self._state.subscribe(self._room, queue=WAITING, when_full="disconnect") as messages:
            last = await self._state.get(f"{self._room}/last", 0)
            await self._send_json(joined=last, worker=os.getpid())
            seen = max(last - MAX_MISSED, min(last, after)) if after is not None else last
            tasks = [
                asyncio.create_task(self._listen()),
                asyncio.create_task(self._forward(messages, seen, last)),
            ]
            done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            await self._end(next(filter(None, (task.exception() for task in done)), None))

    def _after(self) -> int | None:
        """Number of the last message that the client has, if it has been here."""
        if not 1 <= len(self._room) <= 100:
            raise BadRequest("no such room")
        given = self._query.get("after", [None])[0]
        if given is None:
            return None
        if not (given.isascii() and given.isdecimal() and len(given) < 16):
            raise BadRequest("after is the number of a message")
        return int(given)

    async def _end(self, error: BaseException | None) -> None:
        """Closes the connection, unless the client has."""
        if isinstance(error, BadRequest):
            await self._close(1008, str(error))
        elif isinstance(error, (towline.state.SlowSubscriber, towline.state.StateUnavailable)):
            await self._close(1013, "come back")
        elif error is not None:
            raise error

    async def _close(self, code: int, reason: str) -> None:
        await self._send({"type": "websocket.close", "code": code, "reason": reason})

    async def _send_json(self, **message: Any) -> None:
        await self._send({"type": "websocket.send", "text": json.dumps(message)})

    async def _listen(self) -> None:
        """Takes the messages of the client, until it has gone."""
        while (message := await self._receive())["type"] == "websocket.receive":
            identifier, text = parsed(message.get("text"))
            number = await self._post(text)
            await self._send_json(ack=identifier, number=number)

    async def _post(self, text: str) -> int:
        """Numbers, stores and publishes a message. Returns its number once nothing can take it back."""

        async def change(transaction: AsyncTransaction[Any]) -> int:
            number: int = await transaction.get(f"{self._room}/last", 0) + 1
            transaction.set(f"{self._room}/last", number)
            transaction.set(f"{self._room}/{number}", text, ttl=KEPT)
            transaction.publish(self._room, {"number": number, "text": text})
            return number

        return await self._state.transact(change)

    async def _forward(self, messages: AsyncSubscription[Any], seen: int, last: int) -> None:
        """Sends the messages that the client has missed, then those that are published."""
        for number in range(seen + 1, last + 1):
            text = await self._state.get(f"{self._room}/{number}")
            if text is not None:
                await self._send_json(number=number, text=text)
        async for message in messages:
            if message.data["number"] > last:  # not read from the history already
                last = message.data["number"]
                await self._send_json(**message.data)


def parsed(text: str | None) -> tuple[Any, str]:
    """Id and text of a client's message; `text` is None for a binary one."""
    try:
        message = json.loads(text or "")
        return message["id"], str(message["text"])[:MAX_TEXT]
    except (ValueError, TypeError, KeyError):
        raise BadRequest('a message is {"id": ..., "text": ...}') from None
