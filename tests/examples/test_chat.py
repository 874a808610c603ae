"""examples/chat on four workers that are killed one after the other while messages flow."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.support.process import Program, running
from tests.support.state_stores import STORES, store_url

CHAT = Path(__file__).parents[2] / "examples" / "chat"
WORKERS = 4
WAIT = 60.0


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with store_url(request.param, tmp_path) as url:
        yield url


@pytest.fixture
def chat(store: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    monkeypatch.setenv("CHAT_STATE", store)
    with running("app:app", "--workers", str(WORKERS), cwd=CHAT) as program:
        yield program


class Member:
    """A client that comes back when its worker dies, and then asks for what it missed."""

    def __init__(self, port: int, name: str, room: str = "lobby") -> None:
        self.address = f"ws://127.0.0.1:{port}/rooms/{room}"
        self.name = name
        self.numbers: list[int] = []
        self.texts: list[str] = []
        self.acknowledged: dict[int, str] = {}
        self.worker = 0
        self.connections = 0
        self.connected = asyncio.Event()
        self._socket: Any = None
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._first: int | None = None

    async def stay(self) -> None:
        while True:
            try:
                after = "" if self._first is None else f"?after={max([self._first, *self.numbers[-1:]])}"
                async with connect(self.address + after, open_timeout=WAIT) as self._socket:
                    async for text in self._socket:
                        self._take(json.loads(text))
            except (ConnectionClosed, OSError, EOFError):
                pass
            self.connected.clear()
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(ConnectionError())
            await asyncio.sleep(0.02)

    def _take(self, message: dict[str, Any]) -> None:
        if "joined" in message:
            self._first = message["joined"] if self._first is None else self._first
            self.worker = message["worker"]
            self.connections += 1
            self.connected.set()
        elif "ack" in message:
            self.acknowledged[message["number"]] = message["ack"]
            self._waiting[message["ack"]].set_result(None)
        else:
            # Each connection sees every number once and in order, whatever was killed meanwhile.
            expected = (self.numbers[-1] if self.numbers else self._first or 0) + 1
            assert message["number"] == expected, f"{self.name}: {message['number']} after {expected - 1}"
            self.numbers.append(message["number"])
            self.texts.append(message["text"])

    async def post(self, text: str) -> bool:
        """Send a message; returns whether it was acknowledged."""
        await self.connected.wait()
        self._waiting[text] = asyncio.get_running_loop().create_future()
        try:
            await self._socket.send(json.dumps({"id": text, "text": text}))
            await asyncio.wait_for(self._waiting[text], WAIT)
        except (ConnectionError, ConnectionClosed):
            return False
        return True


def test_no_acknowledged_message_is_lost_while_workers_are_killed(chat: Program) -> None:
    asyncio.run(scenario(chat))


async def scenario(chat: Program) -> None:
    members = [Member(chat.port, f"member {number}") for number in range(16)]
    staying = [asyncio.create_task(member.stay()) for member in members]
    try:
        await asyncio.wait_for(asyncio.gather(*(member.connected.wait() for member in members)), WAIT)
        stop = asyncio.Event()
        talking = [asyncio.create_task(talk(member, stop)) for member in members[:6]]
        killed: list[int] = []
        for _ in range(WORKERS):
            await progress(members, 40)
            # A worker that has clients, and was not started for one that was killed before.
            victims = {member.worker for member in members if member.connected.is_set()} - set(killed)
            victim = min(victims)
            on_victim = [member for member in members if member.worker == victim]
            elsewhere = [member for member in members if member.worker != victim]
            before = {member.name: member.connections for member in members}
            os.kill(victim, signal.SIGKILL)
            killed.append(victim)
            await progress(elsewhere or members, 40)
            await asyncio.wait_for(back(on_victim, before), WAIT)
            assert all(member.connections == before[member.name] for member in elsewhere)
        await progress(members, 40)
        stop.set()
        await asyncio.wait_for(asyncio.gather(*talking), WAIT)
        acknowledged = {text for member in members for text in member.acknowledged.values()}
        last = max(number for member in members for number in member.acknowledged)
        await asyncio.wait_for(until(lambda: all(member.numbers[-1] >= last for member in members)), WAIT)
    finally:
        for task in staying:
            failed = task.done() and not task.cancelled() and task.exception()
            task.cancel()
            if failed:
                raise failed
    assert len(set(killed)) == WORKERS
    assert len(acknowledged) >= 200
    for member in members:
        assert acknowledged <= set(member.texts), member.name
        assert len(member.texts) == len(set(member.numbers))
    by_number = {number: text for member in members for number, text in member.acknowledged.items()}
    for number, text in zip(members[0].numbers, members[0].texts, strict=True):
        assert by_number.get(number, text) == text


async def talk(member: Member, stop: asyncio.Event) -> None:
    number = 0
    while not stop.is_set():
        number += 1
        await member.post(f"{member.name}: {number}")
        await asyncio.sleep(0.002)


async def progress(members: list[Member], messages: int) -> None:
    """Wait until each has received some more messages."""
    goals = {member.name: len(member.numbers) + messages for member in members}
    await asyncio.wait_for(
        until(lambda: all(len(member.numbers) >= goals[member.name] for member in members)), WAIT
    )


async def back(members: list[Member], before: dict[str, int]) -> None:
    await until(lambda: all(m.connected.is_set() and m.connections > before[m.name] for m in members))


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def small_chat() -> Iterator[Program]:
    """One worker, with the store of its server."""
    with running("app:app", cwd=CHAT) as program:
        yield program


@pytest.mark.parametrize(
    "message", ["not JSON", "[]", "7", "{}", '{"id": 1}', '{"text": "no id"}', b'{"id": 1, "text": "binary"}']
)
def test_a_message_of_another_form_closes_its_connection_only(
    small_chat: Program, message: str | bytes
) -> None:
    async def main() -> None:
        base = f"ws://127.0.0.1:{small_chat.port}/rooms/wrong"
        async with connect(base) as wrong, connect(base) as other:
            await wrong.recv()
            await other.recv()
            await wrong.send(message)
            with pytest.raises(ConnectionClosed):
                await asyncio.wait_for(wrong.recv(), WAIT)
            assert wrong.close_code == 1008
            assert "a message is" in (wrong.close_reason or "")
            await other.send('{"id": 1, "text": "still here"}')
            heard = [await asyncio.wait_for(other.recv(), WAIT) for _ in range(2)]
            assert "still here" in str(heard)

    asyncio.run(main())
    assert "Traceback" not in small_chat.log


@pytest.mark.parametrize("path", ["", "x" * 101, "room?after=x", "room?after=-1", f"room?after={10**20}"])
def test_a_wrong_address_is_refused(small_chat: Program, path: str) -> None:
    async def main() -> None:
        with pytest.raises(InvalidStatus) as caught:
            await connect(f"ws://127.0.0.1:{small_chat.port}/rooms/{path}")
        assert caught.value.response.status_code == 403

    asyncio.run(main())


def test_a_client_that_does_not_read_is_disconnected_and_the_others_are_not(small_chat: Program) -> None:
    async def main() -> None:
        base = f"ws://127.0.0.1:{small_chat.port}/rooms/slow"
        text = "x" * 9000
        # The client's library reads one message ahead, and then no more from the socket.
        async with (
            connect(base, max_queue=1, compression=None, ping_interval=None) as slow,
            connect(base) as quick,
        ):
            await quick.recv()
            for number in range(3000):
                await quick.send(json.dumps({"id": number, "text": text}))
                seen = {"ack": 0, "number": 0}
                while len(seen) > 0:  # its own message, and the acknowledgement, in either order
                    message = json.loads(await asyncio.wait_for(quick.recv(), WAIT))
                    seen.pop("ack" if "ack" in message else "number")
            with contextlib.suppress(ConnectionClosed):
                while True:
                    await asyncio.wait_for(slow.recv(), WAIT)
            assert slow.close_code == 1013

    asyncio.run(main())


def test_a_client_that_was_away_for_long_gets_the_last_messages(small_chat: Program) -> None:
    async def main() -> None:
        base = f"ws://127.0.0.1:{small_chat.port}/rooms/long"
        async with connect(base) as sender:
            for number in range(1100):
                await sender.send(json.dumps({"id": number, "text": str(number)}))
                while "ack" not in json.loads(await sender.recv()):
                    pass
        async with connect(f"{base}?after=3") as late:
            assert json.loads(await late.recv())["joined"] == 1100
            numbers = [json.loads(await asyncio.wait_for(late.recv(), WAIT))["number"] for _ in range(1000)]
        assert numbers == list(range(101, 1101))

    asyncio.run(main())


def test_a_store_that_cannot_be_opened_fails_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAT_STATE", "/dev/null/no")
    command = [sys.executable, "-m", "towline", "serve", "app:app", "--port", "0"]
    done = subprocess.run(command, cwd=CHAT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert "/dev/null/no" in done.stderr


def test_rooms_are_apart_and_the_page_is_served(chat: Program) -> None:
    async def main() -> None:
        base = f"ws://127.0.0.1:{chat.port}"
        async with connect(f"{base}/rooms/one") as one, connect(f"{base}/rooms/two") as two:
            assert json.loads(await one.recv())["joined"] == 0
            assert json.loads(await two.recv())["joined"] == 0
            await one.send(json.dumps({"id": 1, "text": "hello"}))
            heard = [json.loads(await one.recv()) for _ in range(2)]
            assert {"number": 1, "text": "hello"} in heard
            assert {"ack": 1, "number": 1} in heard
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(two.recv(), 0.3)
        async with connect(f"{base}/rooms/one?after=0") as late:
            assert json.loads(await late.recv())["joined"] == 1
            assert json.loads(await late.recv()) == {"number": 1, "text": "hello"}

    asyncio.run(main())
    from towline import Client

    with Client() as client:
        assert "new WebSocket" in client.get(f"http://127.0.0.1:{chat.port}/").text
