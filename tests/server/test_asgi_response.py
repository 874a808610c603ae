"""Messages that an application sends, and the bytes on the wire."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.asgi_server import LOOPS, Receive, Scope, Send, respond, serving
from tests.support.sockets import read_all
from tests.support.waiting import until

GET = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


def start(status: int = 200, *headers: tuple[bytes, bytes], **more: Any) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": list(headers), **more}


def body(data: bytes = b"", more_body: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more_body}


def sending(*messages: Any) -> Any:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    return app


def reply_to(app: Any, wire: bytes = GET, **options: Any) -> tuple[bytes, bytes]:
    with serving(app, **options) as served:
        head, _, rest = served.raw(wire).partition(b"\r\n\r\n")
        assert served.errors() == []
    return head.lower(), rest


def test_one_body_gets_its_length() -> None:
    head, rest = reply_to(sending(start(), body(b"hello")))
    assert b"\r\ncontent-length: 5" in head
    assert b"\r\nserver: towline" in head
    assert b"\r\ndate: " in head
    assert rest == b"hello"


def test_headers_are_sent_as_given() -> None:
    head, _ = reply_to(sending(start(404, (b"X-A", b"1"), (b"x-a", b"2"), (b"server", b"me")), body()))
    assert head.startswith(b"http/1.1 404 not found")
    assert b"x-a: 1\r\nx-a: 2" in head
    assert head.count(b"\r\nserver: ") == 1
    assert b"\r\nserver: me" in head


def test_default_headers_can_be_changed() -> None:
    head, _ = reply_to(
        sending(start(), body()), server_header=False, date_header=False, headers=((b"x-a", b"b"),)
    )
    assert b"server:" not in head
    assert b"date:" not in head
    assert b"\r\nx-a: b" in head


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("size", [0, 1, 5000, 16384, 300_000])
def test_bodies_of_every_kind_and_size(make: Any, size: int) -> None:
    data = b"x" * size
    head, rest = reply_to(sending(start(), body(make(data))))
    assert b"content-length: %d" % size in head
    assert rest == data


@pytest.mark.parametrize("loop", LOOPS)
def test_streams_are_chunked_and_go_out_at_once(loop: str) -> None:
    go = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start())
        await send(body(b"one", True))
        await go.wait()
        await send(body(b"two", True))
        await send(body())

    with serving(app, loop) as served, served.connect() as conn:
        conn.sendall(GET)
        first = b""
        while not first.endswith(b"3\r\none\r\n"):
            piece = conn.recv(65536)
            assert piece, first
            first += piece
        served.call(go.set)
        assert read_all(conn) == b"3\r\ntwo\r\n0\r\n\r\n"


def test_a_stream_of_announced_length_is_not_chunked() -> None:
    head, rest = reply_to(
        sending(start(200, (b"content-length", b"6")), body(b"one", True), body(b"two", True), body())
    )
    assert b"transfer-encoding" not in head
    assert rest == b"onetwo"


def test_head_has_no_body() -> None:
    for messages in ((start(), body(b"hello")), (start(), body(b"a", True), body())):
        head, rest = reply_to(sending(*messages), GET.replace(b"GET", b"HEAD"))
        assert head.startswith(b"http/1.1 200")
        assert rest == b""


def test_204_and_304_have_no_body() -> None:
    for status in (204, 304):
        head, rest = reply_to(sending(start(status), body()))
        assert b"http/1.1 %d" % status in head
        assert b"transfer-encoding" not in head
        assert rest == b""


def test_trailers() -> None:
    trailers = {
        "type": "http.response.trailers",
        "headers": [(b"x-sum", b"1")],
        "more_trailers": True,
    }
    last = {"type": "http.response.trailers", "headers": [(b"x-more", b"2")]}
    _, rest = reply_to(sending(start(trailers=True), body(b"data"), trailers, last))
    assert rest == b"4\r\ndata\r\n0\r\nx-sum: 1\r\nx-more: 2\r\n\r\n"


def test_early_hints() -> None:
    hint = {"type": "http.response.early_hint", "links": [b"</a.css>; rel=preload"]}
    with serving(sending(hint, start(), body(b"x"))) as served:
        reply = served.raw(GET).lower()
    assert reply.startswith(b"http/1.1 103 early hints\r\nlink: </a.css>; rel=preload\r\n\r\nhttp/1.1 200 ok")


@pytest.mark.parametrize("size", [0, 10, 3_000_000])
def test_pathsend(tmp_path: Path, size: int) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"f" * size)
    done: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start())
        await send({"type": "http.response.pathsend", "path": str(file)})
        done.append(True)

    head, rest = reply_to(app)
    assert b"content-length: %d" % size in head
    assert len(rest) == size
    assert done == [True]
    head, rest = reply_to(app, GET.replace(b"GET", b"HEAD"))
    assert b"content-length: %d" % size in head
    assert rest == b""


def test_pathsend_of_a_missing_file_is_answered_500() -> None:
    with serving(sending(start(), {"type": "http.response.pathsend", "path": "/no/such"})) as served:
        assert served.get()[0] == 500
        assert isinstance(served.log[0][2], FileNotFoundError)


def test_pathsend_of_a_fifo_is_answered_500_at_once(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with serving(sending(start(), {"type": "http.response.pathsend", "path": str(fifo)})) as served:
        assert served.get()[0] == 500
        assert "not a regular file" in str(served.log[0][2])


MISUSE = [
    ([body(b"x")], "http.response.start must come first"),
    ([start(), start()], "http.response.body is due"),
    ([start(), body(), body()], "the response is complete"),
    ([start(), body(), start()], "the response is complete"),
    ([{"type": "http.response.start"}], "needs a `status`"),
    ([{"type": "http.response.start", "status": "200"}], "`status` must be an integer"),
    ([{"type": "http.response.start", "status": 99}], "from 200 to 599"),
    ([start(200, ("a", "b"))], "header name must be a byte string"),  # type: ignore[arg-type]
    ([start(200, (b"a", 1))], "header value must be a byte string"),  # type: ignore[arg-type]
    ([start(200, (b"a", b"b", b"c"))], "pairs"),  # type: ignore[arg-type]
    ([start(200, (b"content-length", b"x"))], "not a number of bytes"),
    ([start(), {"type": "http.response.body", "body": "text"}], "`body` must be a byte string"),
    ([{"type": "websocket.accept"}], "unknown message type"),
    ([{}], "needs a `type`"),
    (["text"], "must be a dict"),
    ([start(200, (b"a b", b"c")), body()], "field name is not a token"),
    ([start(200, (b"a", b"c\r\nd: e")), body()], "control character"),
]


@pytest.mark.parametrize(("messages", "rule"), MISUSE, ids=[rule for _, rule in MISUSE])
def test_misuse_names_the_rule(messages: list[Any], rule: str) -> None:
    caught: list[BaseException] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            for message in messages:
                await send(message)
        except Exception as error:
            caught.append(error)
            raise

    with serving(app) as served:
        status, _, _ = served.get()
        assert until(lambda: served.log)[0][2] is caught[0]
        # The next request is unharmed.
        assert served.get()[0] == status
    assert rule in str(caught[0])
    assert status == (200 if "complete" in rule else 500)


def test_too_many_bytes_are_left_out_and_the_connection_is_kept() -> None:
    messages = start(200, (b"content-length", b"3")), body(b"four")
    with serving(sending(*messages)) as served:
        replies = served.raw(GET.replace(b"Connection: close\r\n", b"") + GET)
        assert replies.count(b"\r\n\r\nfou") == 2
        assert replies.endswith(b"fou")
        assert "more body bytes than announced" in str(served.log[0][2])


def test_too_few_bytes_never_look_complete() -> None:
    messages = start(200, (b"content-length", b"9")), body(b"four")
    with serving(sending(*messages)) as served:
        reply = served.raw(GET.replace(b"Connection: close\r\n", b""))
        assert reply.endswith(b"\r\n\r\nfour")
        assert "fewer body bytes than announced" in str(served.log[0][2])


async def fail_before(scope: Scope, receive: Receive, send: Send) -> None:
    raise ValueError("before")


async def fail_between(scope: Scope, receive: Receive, send: Send) -> None:
    await send(start(200, (b"x-lost", b"1")))
    await asyncio.sleep(0)
    raise ValueError("between")


def fail_to_call(scope: Scope, receive: Receive, send: Send) -> Any:
    raise ValueError("called")


def not_awaitable(scope: Scope, receive: Receive, send: Send) -> Any:
    return 1


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("app", [fail_before, fail_between, fail_to_call, not_awaitable])
def test_failing_before_the_head_is_500(app: Any, loop: str) -> None:
    with serving(app, loop) as served:
        for _ in range(3):
            status, headers, text = served.get()
            assert (status, text) == (500, b"Internal Server Error")
            assert "x-lost" not in headers
        assert len(served.log) == 3
        level, text_, error = served.log[0]
        assert level == 40
        assert "responded with 500" in text_
        assert isinstance(error, (ValueError, TypeError))
        assert error.__traceback__ is not None or app is not_awaitable


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("suspend", [False, True])
def test_failing_after_the_head_aborts(loop: str, suspend: bool) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start())
        await send(body(b"part", True))
        if suspend:
            await asyncio.sleep(0.01)
        raise ValueError("after")

    with serving(app, loop) as served:
        reply = served.raw(GET.replace(b"Connection: close\r\n", b""))
        assert not reply.endswith(b"0\r\n\r\n")
        assert "connection aborted" in served.log[0][1]


def test_returning_too_early() -> None:
    for messages, text in (((), "without starting"), ((start(),), "without starting")):
        with serving(sending(*messages)) as served:
            assert served.get()[0] == 500
            assert text in served.log[0][1]
    with serving(sending(start(), body(b"x", True))) as served:
        assert not served.raw(GET).endswith(b"0\r\n\r\n")
        assert "without completing" in served.log[0][1]


def test_failing_after_the_response_is_logged_only() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send)
        raise ValueError("late")

    with serving(app) as served:
        assert served.get()[2] == b"ok"
        assert str(served.log[0][2]) == "late"


@pytest.mark.parametrize("loop", LOOPS)
def test_pipelined_requests_are_answered_in_order(loop: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].endswith(("3", "7")):
            await asyncio.sleep(0.005)
        await respond(send, scope["path"].encode())

    wire = b"".join(b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % n for n in range(100))
    with serving(app, loop) as served:
        reply = served.raw(wire + GET)
    bodies = [part.split(b"\r\n\r\n")[1] for part in reply.split(b"HTTP/1.1 200 OK")[1:]]
    assert bodies == [b"/%d" % n for n in range(100)] + [b"/"]


def test_concurrency_limit() -> None:
    called, go = threading.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        called.set()
        await go.wait()
        await respond(send)

    with serving(app, limit_concurrency=1) as served, served.connect() as conn:
        conn.sendall(GET)
        assert called.wait(10)
        status, headers, _ = served.get()
        served.call(go.set)
        assert (status, headers["retry-after"]) == (503, "1")
        assert b"200 OK" in read_all(conn)
        assert served.server.requests == 2  # refused ones count


def test_compression_is_applied_when_configured() -> None:
    import gzip

    text = b"hello world " * 1000
    wire = GET.replace(b"\r\n\r\n", b"\r\nAccept-Encoding: gzip\r\n\r\n")
    head, rest = reply_to(
        sending(start(200, (b"content-type", b"text/plain")), body(text)), wire, compress=("gzip",)
    )
    assert b"content-encoding: gzip" in head
    assert gzip.decompress(rest) == text


def test_static_files_do_not_reach_the_application(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"file")
    with serving(sending(start(), body(b"app")), static=(("/s", str(tmp_path)),)) as served:
        assert served.get("/s/a.txt")[2] == b"file"
        assert served.get("/s/no")[0] == 404
        assert served.get("/x")[2] == b"app"


def test_access_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with serving(sending(start(), body(b"12345")), access_log=str(log)) as served:
        served.get("/x?y")
    assert '"GET /x?y HTTP/1.1" 200 5' in log.read_text()
