"""Requests and responses of every shape over HTTP/2, against a server of the package `h2`."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import towline

from tests.support import http2_server
from tests.support.http2_clients import Open, h2_client  # noqa: F401
from tests.support.http2_server import Peer, ReceivedRequest, always, serving
from tests.support.waiting import holds_once

WINDOW = 65_536
MIB = 1 << 20


def echo(peer: Peer, request: ReceivedRequest) -> None:
    peer.respond(request, request.body)


def test_the_parts_of_a_response(h2_client: Open) -> None:  # noqa: F811
    def respond(peer: Peer, request: ReceivedRequest) -> None:
        fields = [
            ("x-one", "a"),
            ("x-two", "b"),
            ("x-two", "c"),
            ("set-cookie", "k=v"),
            ("set-cookie", "l=w"),
        ]
        peer.respond(request, b"hello", 201, fields)

    with serving(always(respond)) as server:
        backend = h2_client(base_url=server.url)
        responses = [backend.get("/") for _ in range(2)]
        first = responses[0]
        assert (first.http_version, first.status_code, first.reason_phrase) == ("HTTP/2", 201, "Created")
        assert (first.headers["X-One"], first.headers.get_list("x-two"), first.text) == (
            "a",
            ["b", "c"],
            "hello",
        )
        assert dict(backend.client.cookies) == {"k": "v", "l": "w"}
        assert [response.reused for response in responses] == [False, True]
        assert first.elapsed.total_seconds() > 0
    assert len(server.peers) == 1


def test_the_parts_of_a_request(h2_client: Open) -> None:  # noqa: F811
    seen: list[ReceivedRequest] = []

    def respond(peer: Peer, request: ReceivedRequest) -> None:
        seen.append(request)
        peer.respond(request)

    with serving(always(respond)) as server:
        backend = h2_client(base_url=server.url, cookies={"a": "1", "b": "2"}, headers={"X-Case": "Kept"})
        backend.get("/path?q=a%20b", headers={"Connection": "keep-alive", "TE": "trailers"})
        backend.call("POST", "/empty")
        backend.call("OPTIONS", "/", headers={"Host": "elsewhere.test"})
    get, post, options = seen
    assert [get[name] for name in (":method", ":scheme", ":path")] == ["GET", "http", "/path?q=a%20b"]
    assert get[":authority"] == f"127.0.0.1:{server.port}"
    assert get["x-case"] == "Kept"
    # RFC 9113 8.2.3: in one field or several, which the reader joins.
    assert "; ".join(value for name, value in get.fields if name == "cookie") == "a=1; b=2"
    # RFC 9113 8.2.2: about the connection, and so not of HTTP/2; `te: trailers` is the one exception.
    assert get["te"] == "trailers"
    assert not {name for name, _ in get.fields} & {
        "connection",
        "host",
        "transfer-encoding",
        "content-length",
    }
    assert post["content-length"] == "0"
    assert options[":authority"] == "elsewhere.test"


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
def test_responses_without_a_body(h2_client: Open, method: str, status: int) -> None:  # noqa: F811
    def respond(peer: Peer, request: ReceivedRequest) -> None:
        fields = [("content-length", "1234")] if status != 204 else []
        peer.respond(
            request,
            b"",
            status if request[":path"] == "/bare" else 200,
            fields if status == 200 or request[":path"] == "/bare" else [],
        )

    with serving(always(respond)) as server:
        backend = h2_client(base_url=server.url)
        for _ in range(2):
            response = backend.call(method, "/bare")
            assert (response.status_code, response.content) == (status, b"")
            assert response.headers.get("content-length") == (None if status == 204 else "1234")
    assert len(server.peers) == 1


def test_trailers_of_a_response(h2_client: Open) -> None:  # noqa: F811
    def respond(peer: Peer, request: ReceivedRequest) -> None:
        peer.begin(request)
        peer.write(request, b"counted")
        peer.send_trailers(request, [("x-sum", "7"), ("grpc-status", "0")])

    with serving(always(respond)) as server:
        backend = h2_client(base_url=server.url)
        with backend.opened("GET", "/") as response:
            assert response.read() == b"counted"
            assert dict(response.trailers) == {"x-sum": "7", "grpc-status": "0"}


def test_interim_responses_come_before_the_final_one(h2_client: Open) -> None:  # noqa: F811
    def respond(peer: Peer, request: ReceivedRequest) -> None:
        for link in ("</a>", "</b>"):
            peer.begin(request, 103, [("link", link)])
        peer.respond(request, b"final")

    seen: list[tuple[int, Any]] = []

    def note(status: int, headers: Any) -> None:
        seen.append((status, dict(headers)))

    with serving(always(respond)) as server:
        backend = h2_client(base_url=server.url)
        response = backend.get("/", extensions={"on_informational": note})
        assert (response.status_code, response.text) == (200, "final")
    assert seen == [(103, {b"link": b"</a>"}), (103, {b"link": b"</b>"})]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_body_waits_for_100_continue(h2_client: Open, streamed: bool) -> None:  # noqa: F811
    body = b"x" * 100_000

    def script(peer: Peer, number: int) -> None:
        request = peer.head()
        assert request["expect"] == "100-continue"
        assert not request.ended
        assert request.body == b""
        peer.begin(request, 100)
        peer.until(lambda: request.ended)
        peer.respond(request, b"%d" % len(request.body))
        refused = peer.head()
        peer.respond(refused, b"no", 417)
        # The stream ends with a reset, since the body is never sent.
        peer.until(lambda: refused.ended or refused.reset is not None)
        assert refused.body == b""
        peer.until_closed()

    with serving(script) as server:
        backend = h2_client(base_url=server.url)
        headers = {"Expect": "100-continue", "Content-Length": str(len(body))}

        def content() -> Any:
            return backend.body(body[:50_000], body[50_000:]) if streamed else body

        assert backend.call("PUT", "/", content=content(), headers=headers).text == "100000"
        assert backend.call("PUT", "/", content=content(), headers=headers).status_code == 417


def bodies(folder: Path, backend: Any) -> Iterator[tuple[str, Any, bytes, bool]]:
    """Name, content, its bytes, and whether its length is sent in advance."""
    data = bytes(range(256)) * 4096
    path = folder / "upload"
    path.write_bytes(data)
    yield "bytes", data, data, True
    yield "text", "täglich", "täglich".encode(), True
    yield (
        "generated",
        backend.body(*(data[at : at + 10_000] for at in range(0, len(data), 10_000))),
        data,
        False,
    )
    yield "nothing generated", backend.body(), b"", False
    yield "file", path.open("rb"), data, True


def test_uploads_follow_a_small_window(h2_client: Open, tmp_path: Path) -> None:  # noqa: F811
    seen: list[ReceivedRequest] = []

    def respond(peer: Peer, request: ReceivedRequest) -> None:
        seen.append(request)
        peer.respond(request, request.body)

    with serving(always(respond), settings={http2_server.WINDOW: 5000}) as server:
        backend = h2_client(base_url=server.url)
        for name, content, data, is_known in bodies(tmp_path, backend):
            response = backend.call("POST", "/", content=content)
            assert response.content == data, name
            assert ("content-length" in seen[-1]) == is_known, name
            assert "transfer-encoding" not in seen[-1]
        form = backend.call("POST", "/", data={"a": "b c"}, files={"f": ("n.txt", b"x" * 5000)})
        assert b"x" * 5000 in form.content
        assert backend.call("POST", "/", json={"a": 1}).json() == {"a": 1}
    assert len(server.peers) == 1


def test_a_generator_advances_only_as_the_server_reads(h2_client: Open) -> None:  # noqa: F811
    pulled = threading.Semaphore(0)
    counted = 0
    piece = b"x" * 16_384

    def count() -> None:
        nonlocal counted
        counted += 1
        pulled.release()

    async def asynchronously() -> Any:
        for _ in range(200):
            count()
            yield piece

    def blocking() -> Iterator[bytes]:
        for _ in range(200):
            count()
            yield piece

    buffered = []

    def script(peer: Peer, number: int) -> None:
        request = peer.head()
        # Everything that the windows allow has arrived, and the rest that was pulled is bounded.
        peer.until(lambda: len(request.body) == 65_535)
        while pulled.acquire(timeout=0.2):
            pass
        buffered.append(counted)
        while not request.ended:
            peer.credit(request, 65_535)
            come = len(request.body)
            peer.until(lambda come=come: request.ended or len(request.body) >= come + 65_535)  # type: ignore[misc]
        peer.respond(request, b"%d" % len(request.body))
        peer.until_closed()

    with serving(script, auto_credit=False) as server:
        backend = h2_client(base_url=server.url)
        content = asynchronously() if hasattr(backend, "loop") else blocking()
        assert backend.call("POST", "/", content=content).text == str(200 * len(piece))
    # The window, the client's buffer, and one chunk.
    assert buffered[0] * len(piece) <= 65_535 + WINDOW + 2 * len(piece)


def test_a_response_before_the_end_of_the_body_is_final(h2_client: Open) -> None:  # noqa: F811
    """RFC 9113 8.1: RST_STREAM with NO_ERROR means that the rest of the body is not needed."""

    def script(peer: Peer, number: int) -> None:
        early = peer.head()
        peer.respond(early, b"too much", 413)
        peer.reset(early, http2_server.NO_ERROR)
        # The received part has used up the connection's window.
        peer.conn.increment_flow_control_window(65_535)
        always(echo)(peer, number)

    with serving(script, auto_credit=False) as server:
        backend = h2_client(base_url=server.url)
        response = backend.call("POST", "/", content=b"x" * MIB)
        assert (response.status_code, response.text) == (413, "too much")
        assert backend.call("POST", "/", content=b"next").text == "next"
    assert len(server.peers) == 1


def test_an_unread_body_stops_at_the_window(h2_client: Open) -> None:  # noqa: F811
    sent: list[int] = []

    def script(peer: Peer, number: int) -> None:
        slow = peer.head()
        peer.begin(slow)
        sent.append(peer.fill(slow))
        other = peer.next_request()
        sent.append(peer.fill(slow))
        # Another stream has its own window, and the connection's window is open.
        peer.respond(other, b"x" * MIB)
        sent.append(peer.fill(slow))
        peer.write(slow, b"y" * MIB, end=True)
        peer.until_closed()

    with serving(script) as server:
        backend = h2_client(base_url=server.url, stream_window=WINDOW)
        with backend.opened("GET", "/slow") as response:
            assert len(backend.get("/fast").content) == MIB
            assert response.buffered <= WINDOW
            assert response.read() == b"x" * sum(sent) + b"y" * MIB
    assert sum(sent) == WINDOW


def test_a_compressed_body_is_decoded_as_it_arrives(h2_client: Open) -> None:  # noqa: F811
    text = b"again and again " * 50_000

    def respond(peer: Peer, request: ReceivedRequest) -> None:
        assert "gzip" in request["accept-encoding"]
        packed = gzip.compress(text)
        peer.respond(
            request, packed, fields=[("content-encoding", "gzip"), ("content-length", str(len(packed)))]
        )

    with serving(always(respond)) as server:
        backend = h2_client(base_url=server.url)
        assert backend.get("/").content == text
        assert b"".join(backend.pieces(f"{server.url}/", "bytes")) == text
        assert gzip.decompress(b"".join(backend.pieces(f"{server.url}/", "raw"))) == text


def test_redirects_to_the_same_and_to_another_origin(h2_client: Open) -> None:  # noqa: F811
    seen: list[tuple[str, str, bool, bytes]] = []

    def respond(peer: Peer, request: ReceivedRequest) -> None:
        seen.append((request.line, request[":authority"], "authorization" in request, request.body))
        to = {"/here": "/end", "/away": f"{other.url}/end"}.get(request[":path"])
        peer.respond(request, b"", 307, [("location", to)]) if to else peer.respond(request, b"end")

    with serving(always(respond)) as other, serving(always(respond)) as server:
        backend = h2_client(base_url=server.url, follow_redirects=True, headers={"Authorization": "Bearer x"})
        for path in ("/here", "/away"):
            response = backend.call("POST", path, content=b"body")
            assert (response.text, len(response.history), response.http_version) == ("end", 1, "HTTP/2")
    here, away = f"127.0.0.1:{server.port}", f"127.0.0.1:{other.port}"
    assert seen == [
        ("POST /here", here, True, b"body"),
        ("POST /end", here, True, b"body"),
        ("POST /away", here, True, b"body"),
        ("POST /end", away, False, b"body"),
    ]
    assert (len(server.peers), len(other.peers)) == (1, 1)


@pytest.mark.parametrize(
    ("fields", "body", "rule"),
    [
        ([("x-large", "v" * 5000)], b"", "header list too long"),
        ([("content-length", "3")], b"hello", "content-length"),
        ([("content-length", "9")], b"hello", "content-length"),
        ([("connection", "close")], b"hello", "connection"),
    ],
)
def test_a_malformed_response_fails_alone(h2_client: Open, fields: Any, body: bytes, rule: str) -> None:  # noqa: F811
    def respond(peer: Peer, request: ReceivedRequest) -> None:
        is_bad = request[":path"] == "/bad"
        peer.conn.config.validate_outbound_headers = peer.conn.config.normalize_outbound_headers = not is_bad
        peer.respond(request, body if is_bad else b"good", fields=fields if is_bad else ())

    with serving(always(respond)) as server:
        backend = h2_client(base_url=server.url, max_header_size=4096)
        with pytest.raises(towline.RemoteProtocolError) as caught:
            backend.get("/bad")
        assert rule in str(caught.value).lower()
        assert backend.get("/good").text == "good"
    assert len(server.peers) == 1


def test_credit_is_sent_when_data_is_read_not_with_the_next_read() -> None:
    may_continue = threading.Event()

    def script(peer: Peer, number: int) -> None:
        request = peer.next_request()
        peer.begin(request)
        peer.fill(request)
        peer.until(lambda: peer.window(request))
        may_continue.set()
        peer.write(request, b"y", end=True)
        peer.until_closed()

    async def main(url: str) -> None:
        client = towline.AsyncClient(http1=False, http2=True, timeout=None)
        async with client, client.stream("GET", url) as response:
            read = 0
            while read <= WINDOW // 2:
                read += len(await response.aread(1024))
            # The program is busy elsewhere, and the server sends meanwhile.
            assert await asyncio.to_thread(may_continue.wait, http2_server.MAX_WAIT)
            while data := await response.aread(WINDOW):
                read += len(data)
            assert read == WINDOW + 1

    with serving(script) as server:
        asyncio.run(main(server.url))


def test_the_window_grows_for_a_reader_that_keeps_up(h2_client: Open) -> None:  # noqa: F811
    """The window grows up to its limit, and only for this stream: throughput is one window per round trip."""
    rounds: list[list[int]] = []

    def script(peer: Peer, number: int) -> None:
        request = peer.next_request()
        peer.begin(request)
        filled = []
        while request[":path"] != f"/{len(filled)}":
            peer.until(lambda: peer.window(request))
            filled.append(peer.fill(request))
        rounds.append(filled)
        peer.conn.end_stream(request.stream)
        peer.flush()
        peer.until_closed()

    def received(limit: int, max_bytes: int) -> None:
        with serving(script) as server:
            backend = h2_client(base_url=server.url, max_stream_window=limit)
            assert len(backend.get("/30").content) == sum(rounds[-1])
        assert rounds[-1][0] == WINDOW
        assert max(rounds[-1]) <= max_bytes
        # On a busy machine the peer sees the window before the reader has returned all of it.
        assert sum(rounds[-1]) > 5 * max_bytes

    holds_once(lambda: received(MIB, MIB))
    holds_once(lambda: received(0, WINDOW))
