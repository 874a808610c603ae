"""A chat in rooms over WebSockets, on any number of workers: `towline serve app:app --workers 4 --app-dir examples/chat`.

Clients in one room may be on different workers, which share `towline.state`. A message gets a number, is stored and is
published in one transaction, and only then acknowledged. So an acknowledged message reaches every client that stays
connected, even if the worker of its sender is killed at that moment; a client that has lost its connection comes back with
`?after=NUMBER` and gets what it missed.

    client                                      server
                                                {"joined": NUMBER of the last message, "worker": PID}
    {"id": anything, "text": "hello"}           {"number": 7, "text": "hello"}     to everyone in the room
                                                {"ack": anything, "number": 7}     to the sender
"""

import asyncio
import json
import os
from pathlib import Path
from urllib.parse import parse_qs

import towline.state

ROOMS = "/rooms/"
KEPT = 24 * 3600
"""Seconds for which a message is stored."""
WAITING = 1000
"""Messages that may wait for one client. A slower one is disconnected; it comes back and reads what it missed."""
MAX_TEXT = 10_000
PAGE = Path(__file__).with_name("page.html").read_bytes()


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        await lifespan(scope, receive, send)
    elif scope["type"] == "websocket":
        await Participant(scope, receive, send).run()
    else:
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]}
        )
        await send({"type": "http.response.body", "body": PAGE})


async def lifespan(scope, receive, send):
    await receive()
    # Without CHAT_STATE, the store of this server.
    async with towline.state.open_async(os.environ.get("CHAT_STATE"), namespace="chat") as state:
        scope["state"]["chat"] = state
        await send({"type": "lifespan.startup.complete"})
        await receive()
    await send({"type": "lifespan.shutdown.complete"})


class Participant:
    """One client in one room."""

    def __init__(self, scope, receive, send):
        self.room = scope["path"].removeprefix(ROOMS)
        self.after = parse_qs(scope["query_string"].decode()).get("after")
        self.state = scope["state"]["chat"]
        self.receive = receive
        self.send = send

    async def run(self):
        await self.receive()
        if not self.room or len(self.room) > 100:
            await self.send({"type": "websocket.close", "code": 1008, "reason": "no such room"})
            return
        await self.send({"type": "websocket.accept"})
        # Subscribed before the history is read: no message is between the two.
        async with self.state.subscribe(self.room, queue=WAITING, when_full="disconnect") as messages:
            last = await self.state.get(f"{self.room}/last", 0)
            await self.send_json(joined=last, worker=os.getpid())
            tasks = [asyncio.create_task(self.listen()), asyncio.create_task(self.forward(messages, last))]
            done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            await self.end(next((error for task in done if (error := task.exception())), None))

    async def end(self, error):
        """Close the connection, unless the client has. The client of 1013 may come back."""
        if isinstance(error, (towline.state.SlowSubscriber, towline.state.StateUnavailable)):
            await self.send({"type": "websocket.close", "code": 1013, "reason": "come back"})
        elif error is not None:
            raise error

    async def send_json(self, **message):
        await self.send({"type": "websocket.send", "text": json.dumps(message)})

    async def listen(self):
        """Take the messages of the client, until it has gone."""
        while (message := await self.receive())["type"] == "websocket.receive":
            given = json.loads(message["text"])
            number = await self.post(str(given["text"])[:MAX_TEXT])
            await self.send_json(ack=given["id"], number=number)

    async def post(self, text):
        """Number, store and publish a message. Returns its number once nothing can take it back."""

        async def change(transaction):
            number = await transaction.get(f"{self.room}/last", 0) + 1
            transaction.set(f"{self.room}/last", number)
            transaction.set(f"{self.room}/{number}", text, ttl=KEPT)
            transaction.publish(self.room, {"number": number, "text": text})
            return number

        return await self.state.transact(change)

    async def forward(self, messages, last):
        """Send what the client has missed, then what is published."""
        seen = int(self.after[0]) if self.after else last
        for number in range(seen + 1, last + 1):
            text = await self.state.get(f"{self.room}/{number}")
            if text is not None:
                await self.send_json(number=number, text=text)
        seen = max(seen, last)
        async for message in messages:
            if message.data["number"] > seen:  # not read from the history already
                seen = message.data["number"]
                await self.send_json(**message.data)
