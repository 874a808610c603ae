"""HTTP/2 under ASGI: what applications see of streams."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
from towline.errors import ClientDisconnected

from tests.support.asgi_server import serving as serving_alone
from tests.support.feature_server import serving
from tests.support.http2_apps import PIECE, pieces
from tests.support.http2_client import Client, connected_client
from tests.support.waiting import until


class Notes:
    """Notes that applications make on another thread."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.lock = threading.Lock()

    def add(self, line: str) -> None:
        with self.lock:
            self.lines.append(line)

    def have(self, *lines: str) -> Callable[[], bool]:
        return lambda: set(lines) <= set(self.lines)


async def start(send: Any, **more: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [], **more})


def test_the_scope() -> None:
    seen: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)
        await start(send)
        await send({"type": "http.response.body"})

    with connected_client("asgi", app, root_path="/base") as client:
        client.fetch("PATCH", "/a%20b?c=d", headers=[("x-a", "1")])
    scope = seen[0]
    assert scope["http_version"] == "2"
    assert scope["method"] == "PATCH"
    assert (scope["path"], scope["raw_path"]) == ("/base/a b", b"/base/a%20b")
    assert scope["query_string"] == b"c=d"
    assert scope["headers"] == [(b"host", b"test"), (b"x-a", b"1")]
    assert scope["scheme"] == "http"


def test_a_field_that_is_named_again_is_one_object() -> None:
    """One byte of a header block can name a kilobyte, a hundred times: it must not become a hundred of them."""
    seen: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)
        await start(send)
        await send({"type": "http.response.body"})

    large = ("x-large", "v" * 1000)
    with connected_client("asgi", app) as client:
        client.fetch(headers=[large, ("x-a", "1"), large, ("x-b", "2"), ("x-a", "1"), large])
        client.fetch(headers=[("x-b", "2"), large, large])
    first, second = (scope["headers"] for scope in seen)
    expected = [(b"x-large", b"v" * 1000), (b"x-a", b"1"), (b"x-b", b"2")]
    assert first[1:] == [expected[place] for place in (0, 1, 0, 2, 1, 0)]
    assert second[1:] == [expected[place] for place in (2, 0, 0)]
    assert first[1] is first[3] is first[6]
    assert second[2] is second[3]


def test_a_reset_stream_is_a_disconnect_at_once() -> None:
    notes = Notes()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        if path == "/receives":
            while (await receive())["type"] != "http.disconnect":
                pass
            notes.add("received")
        elif path == "/listens":
            await start(send)
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            assert (await receive())["type"] == "http.request"
            assert (await receive())["type"] == "http.disconnect"
            with pytest.raises(ClientDisconnected):
                await send({"type": "http.response.body", "body": b"x"})
            notes.add("listened")
        elif path == "/sends":
            try:
                await pieces(send, 1000)
            except OSError:
                notes.add("sent")
        else:
            await start(send)
            await send({"type": "http.response.body", "body": b"fine"})

    with connected_client("asgi", app) as client:
        client.reads = set()
        receives = client.begin("POST", "/receives", end=False)
        listens = client.begin("GET", "/listens")
        sends = client.begin("GET", "/sends")
        client.until_body(sends, 65535)
        client.until(lambda: client.exchanges[listens].body)
        for stream in (receives, listens, sends):
            client.reset(stream)
        until(notes.have("received", "listened", "sent"))
        client.reads = None
        assert client.fetch(path="/fine").body == b"fine"


def test_a_client_that_leaves_is_a_disconnect_of_all_its_streams() -> None:
    notes = Notes()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        notes.add(f"begun {scope['path']}")
        while (await receive())["type"] != "http.disconnect":
            pass
        notes.add(scope["path"])

    with serving("asgi", app) as server:
        with Client((server.host, server.port)) as client:
            for number in range(5):
                client.begin("GET", f"/{number}", send=False)
            client.flush()
            # A request whose client has left before the server reads it need not reach the application.
            until(notes.have(*(f"begun /{number}" for number in range(5))))
        until(notes.have(*(f"/{number}" for number in range(5))))


def test_both_directions_at_once() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send)
        while True:
            message = await receive()
            await send(
                {
                    "type": "http.response.body",
                    "body": message["body"].upper(),
                    "more_body": message["more_body"],
                }
            )
            if not message["more_body"]:
                return

    with connected_client("asgi", app) as client:
        streams = [client.begin("POST", "/", end=False) for _ in range(3)]
        for number in range(4):
            for stream in streams:
                client.write(stream, b"abc%d" % number)
            for stream in streams:
                client.until_body(stream, 4 * (number + 1))
        for stream in streams:
            client.conn.end_stream(stream)
        client.flush()
        responses = client.finish(*streams)
    assert [response.body for response in responses] == [b"ABC0ABC1ABC2ABC3"] * 3


def test_sending_waits_for_the_room_of_its_own_stream() -> None:
    sent: dict[str, int] = {"/slow": 0, "/quick": 0}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send)
        for _ in range(64):
            await send({"type": "http.response.body", "body": PIECE, "more_body": True})
            sent[scope["path"]] += 1
        await send({"type": "http.response.body"})

    with connected_client("asgi", app) as client:
        client.reads = set()
        slow = client.begin("GET", "/slow")
        client.until_body(slow, 65535)
        quick = client.begin("GET", "/quick")
        client.read(quick)
        assert client.finish(quick)[0].body == PIECE * 64
        # A window with the client and a queue with the server, and not a piece more.
        assert sent["/slow"] <= 2 * 65536 // len(PIECE) + 1
        client.read(slow)
        assert client.finish(slow)[0].body == PIECE * 64


def test_reading_gives_credit_and_not_reading_none() -> None:
    go = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = 0
        while not go.is_set() and scope["path"] == "/waits":
            await asyncio.sleep(0.01)
        while True:
            message = await receive()
            body += len(message["body"])
            if not message["more_body"]:
                break
        await start(send)
        await send({"type": "http.response.body", "body": b"%d" % body})

    with connected_client("asgi", app, http2_initial_stream_window_size=50_000) as client:
        client.until(lambda: client.conn.remote_settings.initial_window_size == 50_000)
        blocked = client.begin("POST", "/waits", end=False)
        client.write(blocked, b"x" * 50_000)
        reads = client.begin("POST", "/reads", end=False)
        client.write(reads, b"x" * 400_000, end=True)
        assert client.finish(reads)[0].body == b"400000"
        assert client.conn.local_flow_control_window(blocked) == 0
        go.set()
        client.write(blocked, b"x" * 50_000, end=True)
        assert client.finish(blocked)[0].body == b"100000"


def test_early_hints_and_trailers() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.early_hint", "links": [b"</a.css>; rel=preload"]})
        await start(send, trailers=True)
        await send({"type": "http.response.body", "body": b"body"})
        await send({"type": "http.response.trailers", "headers": [(b"x-sum", b"42")]})

    with connected_client("asgi", app) as client:
        response = client.fetch()
    assert response.interim == [(103, {"link": "</a.css>; rel=preload"})]
    assert (response.status, response.body, response.trailers) == (200, b"body", {"x-sum": "42"})


@pytest.mark.parametrize("suspends_before", [False, True])
def test_the_last_part_of_a_body_does_not_wait_for_trailers_that_come_later(suspends_before: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if suspends_before:
            await asyncio.sleep(0)
        await start(send, trailers=True)
        await send({"type": "http.response.body", "body": b"body"})
        while not hold.is_set():
            await asyncio.sleep(0.01)
        await send({"type": "http.response.trailers", "headers": [(b"x-sum", b"42")]})

    hold = threading.Event()
    with connected_client("asgi", app) as client:
        stream = client.begin("GET", "/")
        client.until_body(stream, 4)
        hold.set()
        assert client.finish(stream)[0].trailers == {"x-sum": "42"}


def test_an_application_of_a_reset_stream_counts_until_it_ends() -> None:
    running, most = 0, 0
    hold = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            while not hold.is_set():
                await asyncio.sleep(0.01)
            await start(send)
            with contextlib.suppress(OSError):
                await send({"type": "http.response.body"})
        finally:
            running -= 1

    with connected_client("asgi", app, http2_max_concurrent_streams=4) as client:
        refused = []
        for _ in range(5):
            streams = [client.begin("GET", "/") for _ in range(4)]
            client.conn.ping(b"received")
            for stream in streams:
                client.reset(stream)
            refused += streams
        late = client.begin("GET", "/")
        assert client.finish(late)[0].reset == 7
        assert most == 4
        hold.set()
        until(lambda: running == 0)
        client.conn.ping(b"received")
        client.flush()
        assert client.fetch().status == 200


async def reader(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the body, and whether the loop ran anything else before the body was there."""
    others: list[str] = []
    asyncio.get_running_loop().call_soon(others.append, "ran")
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message["body"]
        if not message["more_body"]:
            break
    else:
        body = b"disconnected"
    await start(send)
    await send({"type": "http.response.body", "body": body + b" late" * len(others)})


def test_bodies_behind_other_heads_are_there_when_applications_begin() -> None:
    with connected_client("asgi", reader) as client:
        for count in (1, 2, 90):
            streams = [client.begin("POST", "/", end=False, send=False) for _ in range(count)]
            for number, stream in enumerate(streams):
                client.conn.send_data(stream, b"%d" % number, end_stream=True)
            client.flush()
            bodies = [response.body for response in client.finish(*streams)]
            assert bodies == [b"%d" % number for number in range(count)]


def test_a_body_that_has_not_arrived_keeps_no_application_from_beginning() -> None:
    with connected_client("asgi", reader) as client:
        streams = [client.begin("POST", "/", end=False, send=False) for _ in range(20)]
        client.conn.send_data(streams[-1], b"whole", end_stream=True)
        client.flush()
        assert client.finish(streams[-1])[0].body == b"whole"
        for stream in reversed(streams[:-1]):
            client.write(stream, b"more", end=True)
        assert {response.body for response in client.finish(*streams[:-1])} == {b"more late"}


def test_a_request_that_is_reset_before_its_application_begins_has_none() -> None:
    paths = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        paths.append(scope["path"])
        await reader(scope, receive, send)

    with connected_client("asgi", app) as client:
        first, second = (client.begin("POST", path, end=False, send=False) for path in ("/1", "/2"))
        client.conn.reset_stream(first)
        client.conn.send_data(second, b"body", end_stream=True)
        client.flush()
        assert client.finish(second)[0].body == b"body"
        assert client.fetch("POST", "/3").status == 200
    assert paths == ["/2", "/3"]


@pytest.mark.parametrize("end", ["close", "disconnect"])
def test_applications_begin_without_a_client_that_leaves_first(end: str) -> None:
    notes = Notes()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        notes.add((await receive())["type"])

    with serving_alone(app) as server, Client(("127.0.0.1", server.port)) as client:
        for _ in range(90):
            client.begin("POST", "/", end=False, send=False)
        client.flush()
        getattr(client, end)()
        until(lambda: not server.server.connections)
        assert server.server.in_flight == 0
    assert set(notes.lines) <= {"http.disconnect"}


def test_a_task_may_go_on_after_the_answer() -> None:
    notes = Notes()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send)
        await send({"type": "http.response.body", "body": b"answered"})
        assert (await receive())["type"] == "http.disconnect"
        await asyncio.sleep(0.05)
        notes.add(scope["path"])

    with connected_client("asgi", app) as client:
        streams = [client.begin("GET", f"/{number}") for number in range(4)]
        assert {response.body for response in client.finish(*streams)} == {b"answered"}
        until(notes.have("/0", "/1", "/2", "/3"))


def test_two_calls_share_no_context() -> None:
    import contextvars

    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        before = variable.get()
        variable.set(scope["path"])
        await asyncio.sleep(0.01)
        await start(send)
        await send({"type": "http.response.body", "body": f"{before} {variable.get()}".encode()})

    with connected_client("asgi", app) as client:
        streams = [client.begin("GET", f"/{number}", send=False) for number in range(20)]
        client.flush()
        responses = client.finish(*streams)
    assert [response.body for response in responses] == [b"unset /%d" % number for number in range(20)]


def test_many_who_lose_their_client_at_once_do_not_hold_up_the_loop() -> None:
    """Applications are told a few at a time: what they do about it runs between two looks at everybody else."""
    rounds: dict[int, int] = {}
    waiting, notified, round_ = 0, 0, 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal waiting, notified
        if scope["path"] == "/counts":
            await start(send)
            await send({"type": "http.response.body", "body": str(notified).encode()})
            return
        waiting += 1
        if waiting == 1:
            asyncio.get_running_loop().call_soon(tick)
        assert (await receive())["type"] == "http.disconnect"
        notified += 1
        rounds[round_] = rounds.get(round_, 0) + 1

    def tick() -> None:
        # Once in each round of the loop, while there is anybody left.
        nonlocal round_
        round_ += 1
        if notified < 90:
            asyncio.get_running_loop().call_soon(tick)

    with serving("asgi", app) as server, Client((server.host, server.port)) as other:
        with Client((server.host, server.port)) as client:
            for _ in range(90):
                client.begin("POST", "/waits", end=False, send=False)
            client.flush()
            assert until(lambda: waiting == 90)
            client.disconnect()
        assert until(lambda: other.fetch("GET", "/counts").body == b"90")
    assert sum(rounds.values()) == 90
    assert max(rounds.values()) <= 4, rounds


def test_many_who_suspend_at_once_do_not_hold_up_the_loop() -> None:
    """A few of one connection begin in a round of the loop, and what each has sent until then leaves all the same."""
    rounds: dict[int, int] = {}
    begun, round_ = 0, 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal begun
        begun += 1
        rounds[round_] = rounds.get(round_, 0) + 1
        if begun == 1:
            asyncio.get_running_loop().call_soon(tick)
        await start(send)
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        assert (await receive())["type"] == "http.request"
        assert (await receive())["type"] == "http.disconnect"

    def tick() -> None:
        nonlocal round_
        round_ += 1
        if begun < 60:
            asyncio.get_running_loop().call_soon(tick)

    with connected_client("asgi", app) as client:
        streams = [client.begin("GET", "/", send=False) for _ in range(60)]
        client.flush()
        for stream in streams:
            client.until_body(stream, 4)
    assert sum(rounds.values()) == 60
    assert max(rounds.values()) <= 4, rounds


def test_an_event_does_not_wait_for_disconnects_of_others() -> None:
    """Sixty lose it together; what another client sends meanwhile is told before most of them."""
    waiting, notified = 0, 0
    sent = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal waiting, notified
        waiting += 1
        message = await receive()
        if message["type"] == "http.disconnect":
            notified += 1
            # The loop stands still until the other client has sent.
            assert sent.wait(20)
            return
        await start(send)
        await send({"type": "http.response.body", "body": str(notified).encode()})

    with serving("asgi", app) as server, Client((server.host, server.port)) as other:
        upload = other.begin("POST", "/", end=False)
        with Client((server.host, server.port)) as client:
            for _ in range(60):
                client.begin("POST", "/", end=False, send=False)
            client.flush()
            assert until(lambda: waiting == 61)
            client.disconnect()
        assert until(lambda: notified > 0)
        other.write(upload, b"news", end=True)
        sent.set()
        (response,) = other.finish(upload)
        assert until(lambda: notified == 60)
    assert 0 < int(response.body) <= 20
