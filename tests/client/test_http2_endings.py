"""Calls over HTTP/2 that end early; their connection and the other calls on it continue."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import struct
import threading
import time
from typing import Any

import pytest
import towline

from tests.support.http2_clients import Open, h2_client  # noqa: F401
from tests.support.http2_server import (
    CANCEL,
    ENHANCE_YOUR_CALM,
    INADEQUATE_SECURITY,
    INTERNAL_ERROR,
    MAX_STREAMS,
    NO_ERROR,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    Peer,
    ReceivedRequest,
    always,
    serving,
)

MIB = 1 << 20


def get(url: str, **arguments: Any) -> tuple[str, str, dict[str, Any]]:
    return "GET", url, arguments


def post(url: str, content: Any, **arguments: Any) -> tuple[str, str, dict[str, Any]]:
    return "POST", url, {"content": content, **arguments}


def good(peer: Peer, request: ReceivedRequest) -> None:
    peer.respond(request, b"good")


def test_closing_a_response_resets_its_stream(h2_client: Open) -> None:  # noqa: F811
    codes: list[int] = []

    def script(peer: Peer, number: int) -> None:
        pending = peer.next_request()
        peer.begin(pending)
        peer.write(pending, b"x" * 10)
        codes.append(peer.until_reset(pending))
        always(good)(peer, number)

    with serving(script) as server:
        backend = h2_client(base_url=server.url)
        with backend.opened("GET", "/left") as response:
            assert response.read(4) == b"xxxx"
        assert backend.get("/").text == "good"
    assert codes == [CANCEL]
    assert len(server.peers) == 1


def test_cancelled_tasks_reset_their_streams() -> None:
    reset: list[int] = []

    def script(peer: Peer, number: int) -> None:
        calls = [peer.next_request() for _ in range(10)]
        arrived.set()
        for call in calls[::2]:
            reset.append(peer.until_reset(call))
        for call in calls[1::2]:
            peer.respond(call, b"good")
        always(good)(peer, number)

    async def main(url: str) -> None:
        # Without a timeout, which would check the connection sooner or later.
        async with towline.AsyncClient(http1=False, http2=True, base_url=url, timeout=None) as client:
            tasks = [asyncio.ensure_future(client.get(f"/{n}")) for n in range(10)]
            await asyncio.to_thread(arrived.wait, 20)
            for task in tasks[::2]:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(result, asyncio.CancelledError) for result in done[::2])
            assert [result.text for result in done[1::2]] == ["good"] * 5  # type: ignore[union-attr]
            assert (await client.get("/")).text == "good"

    arrived = threading.Event()
    with serving(script) as server:
        asyncio.run(main(server.url))
    assert reset == [CANCEL] * 5
    assert len(server.peers) == 1


def test_a_timeout_does_not_affect_other_calls(h2_client: Open) -> None:  # noqa: F811
    codes: list[int | None] = []

    def script(peer: Peer, number: int) -> None:
        requests = {request[":path"]: request for request in (peer.next_request() for _ in range(3))}
        peer.begin(requests["/body"])
        peer.write(requests["/body"], b"half")
        # A sign of life, without which the connection would be in doubt too.
        while not all(requests[path].reset for path in ("/head", "/body")):
            peer.conn.ping(b"here I am"[:8])
            peer.flush()
            with contextlib.suppress(TimeoutError):
                while True:
                    peer.take(within=0.05)
        codes.extend(requests[path].reset for path in ("/head", "/body"))
        peer.respond(requests["/kept"], b"good")
        always(good)(peer, number)

    with serving(script) as server:
        backend = h2_client(base_url=server.url)
        # The head must arrive before.
        short = towline.Timeout(5, read=1.5)
        head, body, kept = backend.at_once(
            get("/head", timeout=short), get("/body", timeout=short), get("/kept")
        )
        assert isinstance(head, towline.ReadTimeout)
        assert (head.phase, body.phase, kept.text) == ("head", "body", "good")
        assert head.bytes_sent > 9
        assert head.bytes_received == 0
        assert 9 + 9 + 4 < body.bytes_received < 100
        assert backend.get("/").text == "good"
    assert codes == [CANCEL, CANCEL]
    assert len(server.peers) == 1


def test_a_total_timeout_ends_a_slow_body(h2_client: Open) -> None:  # noqa: F811
    def script(peer: Peer, number: int) -> None:
        request = peer.next_request()
        peer.begin(request)
        while request.reset is None:
            peer.write(request, b"drop")
            with contextlib.suppress(TimeoutError):
                peer.take(within=0.05)
        always(good)(peer, number)

    with serving(script) as server:
        backend = h2_client(base_url=server.url)
        with pytest.raises(towline.TotalTimeout):
            backend.get("/", timeout=towline.Timeout(5, total=0.4))
        assert backend.get("/").text == "good"
    assert len(server.peers) == 1


def test_a_call_that_receives_nothing_retires_its_connection(h2_client: Open) -> None:  # noqa: F811
    def script(peer: Peer, number: int) -> None:
        if number == 0:
            peer.respond(peer.next_request(), b"good")
            return peer.until_closed()
        return always(good)(peer, number)

    for timeout in (towline.Timeout(5, read=0.3), towline.Timeout(5, total=0.3)):
        with serving(script) as server:
            backend = h2_client(base_url=server.url)
            assert backend.get("/").text == "good"
            with pytest.raises(towline.TimeoutError):
                backend.get("/", timeout=timeout)
            assert backend.get("/").text == "good"
        assert len(server.peers) == 2


def test_a_write_timeout_is_on_time(h2_client: Open) -> None:  # noqa: F811
    def script(peer: Peer, number: int) -> None:
        stuck = peer.head()
        assert peer.until_reset(stuck) == CANCEL
        peer.conn.increment_flow_control_window(MIB)
        peer.flush()
        always(good)(peer, number)

    elapsed = 2.0
    # Counted from the last byte sent, not from the last check, which would be 2 s each time.
    for _ in range(5):
        with serving(script, auto_credit=False) as server:
            backend = h2_client(base_url=server.url)
            started = time.monotonic()
            with pytest.raises(towline.WriteTimeout):
                backend.call("POST", "/", content=b"x" * MIB, timeout=towline.Timeout(30, write=1))
            elapsed = time.monotonic() - started
            assert backend.get("/").text == "good"
        assert elapsed >= 1
        if elapsed < 1.9:
            break
    assert elapsed < 1.9


def test_requests_after_the_last_stream_of_goaway_are_resent(h2_client: Open) -> None:  # noqa: F811
    seen: list[list[str]] = [[], []]

    def script(peer: Peer, number: int) -> None:
        if number == 0:
            calls = [peer.next_request() for _ in range(6)]
            calls.sort(key=lambda call: call.stream)
            peer.send_goaway(calls[2].stream)
            for call in calls[:3]:
                seen[0].append(call.line)
                peer.respond(call, b"old")
            return peer.until_closed()

        def respond(peer: Peer, request: ReceivedRequest) -> None:
            seen[1].append(request.line)
            peer.respond(request, b"new")

        return always(respond)(peer, number)

    with serving(script) as server:
        backend = h2_client(base_url=server.url)
        # A POST too: the server has not processed it (RFC 9113 6.8).
        responses = backend.at_once(*(post(f"/{n}", b"body") for n in range(6)))
        assert sorted(response.text for response in responses) == ["new"] * 3 + ["old"] * 3
        assert backend.get("/after").text == "new"
    assert len(server.peers) == 2
    assert (len(seen[0]), len(seen[1])) == (3, 4)
    assert not set(seen[0]) & set(seen[1])


def test_a_request_that_cannot_be_resent_fails_with_its_reason(h2_client: Open) -> None:  # noqa: F811
    def script(peer: Peer, number: int) -> None:
        if number == 0:
            peer.head()
            peer.send_goaway(0)
            return peer.until_closed()
        return always(good)(peer, number)

    with serving(script) as server:
        backend = h2_client(base_url=server.url)
        with pytest.raises(towline.RemoteProtocolError, match="GOAWAY") as caught:
            backend.call("POST", "/", content=backend.body(b"a", b"b"))
        assert not caught.value.retryable
        assert backend.get("/").text == "good"
    assert len(server.peers) == 2


def test_refused_calls_are_sent_again_up_to_six_times_ever_later(h2_client: Open) -> None:  # noqa: F811
    seen: list[str] = []
    times: list[float] = []

    def script(peer: Peer, number: int) -> None:
        while True:
            request = peer.next_request()
            seen.append(request[":path"])
            times.append(time.monotonic())
            refusals = int(request[":path"][1:])
            if seen.count(request[":path"]) <= refusals:
                peer.reset(request, REFUSED_STREAM)
            else:
                peer.respond(request, b"good")

    with serving(script) as server:
        backend = h2_client(base_url=server.url)
        assert backend.call("POST", "/6", content=b"body").text == "good"
        pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert all(pause >= least for pause, least in zip(pauses, (0, 0.1, 0.2, 0.4, 0.8, 1.6), strict=True))
        with pytest.raises(towline.RemoteProtocolError, match="REFUSED_STREAM") as caught:
            backend.call("POST", "/7", content=b"body")
        assert caught.value.retryable
        with pytest.raises(towline.RemoteProtocolError, match="REFUSED_STREAM"):
            backend.get("/1", retries=None)
        # The pause counts against the total timeout.
        with pytest.raises(towline.TotalTimeout):
            backend.get("/5", timeout=towline.Timeout(5, total=0.5))
    assert [seen.count(path) for path in ("/6", "/7", "/1")] == [7, 7, 1]
    assert len(server.peers) == 1


@pytest.mark.parametrize("code", [PROTOCOL_ERROR, ENHANCE_YOUR_CALM, INADEQUATE_SECURITY])
def test_a_connection_refused_with_an_error_gets_no_second_request(h2_client: Open, code: int) -> None:  # noqa: F811
    seen: list[str] = []

    def script(peer: Peer, number: int) -> None:
        seen.append(peer.next_request()[":method"])
        peer.send_goaway(0, code, b"too_many_pings\x00\xff")
        peer.until_closed()

    with serving(script) as server:
        backend = h2_client(base_url=server.url)
        for method in ("GET", "POST"):
            with pytest.raises(towline.RemoteProtocolError, match="not process") as caught:
                backend.call(method, "/")
            assert caught.value.retryable
            # Code and debug data, of which only printable characters are shown.
            name = {PROTOCOL_ERROR: "PROTOCOL", ENHANCE_YOUR_CALM: "CALM", INADEQUATE_SECURITY: "SECURITY"}[
                code
            ]
            assert name in str(caught.value)
            assert r'"too_many_pings\x00\xff"' in str(caught.value)
    assert seen == ["GET", "POST"]


def test_a_busy_server_gets_the_request_after_a_second(h2_client: Open) -> None:  # noqa: F811
    times: list[float] = []

    def script(peer: Peer, number: int) -> None:
        peer.respond(peer.next_request(), b"good")
        if number == 0:
            first = peer.next_request()
            times.append(time.monotonic())
            peer.send_goaway(first.stream - 2, ENHANCE_YOUR_CALM)
        else:
            times.append(time.monotonic())
        peer.until_closed()

    with serving(script) as server:
        backend = h2_client(base_url=server.url)
        assert backend.get("/").text == "good"
        assert backend.call("POST", "/", content=b"body").text == "good"
    assert times[1] - times[0] >= 1


def test_an_error_that_ends_a_request_in_progress_is_named(h2_client: Open) -> None:  # noqa: F811
    def script(peer: Peer, number: int) -> None:
        request = peer.next_request()
        peer.send_goaway(request.stream, INTERNAL_ERROR, b"out of memory")
        # Not a reset, which could overtake the frame.
        peer.socket.shutdown(socket.SHUT_WR)
        peer.until_closed()

    with serving(script) as server:
        backend = h2_client(base_url=server.url)
        with pytest.raises(towline.RemoteProtocolError, match='INTERNAL_ERROR: "out of memory"') as caught:
            backend.call("POST", "/", content=b"body")
        assert not caught.value.retryable


def test_a_polite_end_on_each_connection_is_no_endless_loop(h2_client: Open) -> None:  # noqa: F811
    seen: list[str] = []

    def script(peer: Peer, number: int) -> None:
        seen.append(peer.next_request()[":path"])
        peer.send_goaway(0)
        peer.until_closed()

    with serving(script) as server:
        backend = h2_client(base_url=server.url)
        with pytest.raises(towline.RemoteProtocolError, match="GOAWAY"):
            backend.get("/")
    assert len(seen) == 7


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_reset_after_possible_processing_is_not_retried(
    h2_client: Open,  # noqa: F811
    method: str,
) -> None:
    seen: list[str] = []

    def respond(peer: Peer, request: ReceivedRequest) -> None:
        seen.append(request[":path"])
        peer.reset(request, INTERNAL_ERROR) if request[":path"] == "/bad" else peer.respond(request, b"good")

    with serving(always(respond)) as server:
        backend = h2_client(base_url=server.url)
        assert backend.get("/").text == "good"
        with pytest.raises(towline.RemoteProtocolError, match="INTERNAL_ERROR"):
            backend.call(method, "/bad")
        assert backend.get("/").text == "good"
    assert seen == ["/", "/bad", "/"]
    assert len(server.peers) == 1


@pytest.mark.parametrize("with_goaway", [False, True])
def test_a_connection_lost_with_fifty_calls_on_it(h2_client: Open, with_goaway: bool) -> None:  # noqa: F811
    seen: list[str] = []

    def script(peer: Peer, number: int) -> None:
        if number == 0:
            peer.respond(peer.next_request(), b"good")
            calls = [peer.next_request() for _ in range(50)]
            seen.extend(call.line for call in calls)
            if with_goaway:
                # All of them may have been processed (RFC 9113 6.8).
                peer.send_goaway(2**31 - 1, NO_ERROR)
            return
        while True:
            request = peer.next_request()
            seen.append(request.line)
            peer.respond(request, b"again")

    with serving(script) as server:
        backend = h2_client(base_url=server.url, limits=towline.Limits(max_connections_per_host=1))
        assert backend.get("/").text == "good"
        calls = [(("GET", "POST")[n % 2], f"/{n}", {}) for n in range(50)]
        responses = backend.at_once(*calls)
        # Idempotent requests on a reused connection are sent again; others are not.
        assert [response.text for response in responses[::2]] == ["again"] * 25
        for error in responses[1::2]:
            assert isinstance(error, (towline.ReadError, towline.ServerDisconnected))
            assert (error.retryable, error.reused) == (False, True)
        assert backend.client.pool_status()["waiting"] == 0
    assert all(seen.count(f"GET /{n}") == 2 for n in range(0, 50, 2))
    assert all(seen.count(f"POST /{n}") == 1 for n in range(1, 50, 2))
    assert len(server.peers) == 2


def test_a_limit_of_streams_that_is_lowered_and_raised(h2_client: Open) -> None:  # noqa: F811
    def script(peer: Peer, number: int) -> None:
        assert number == 0
        for limit in (8, 2, 8):
            peer.settings({MAX_STREAMS: limit})
            peer.respond(peer.next_request(), b"told")
            pending = 20
            while pending:
                peer.until(lambda pending=pending, limit=limit: len(waiting(peer)) >= min(limit, pending))  # type: ignore[misc]
                assert len(waiting(peer)) <= limit
                peer.respond(waiting(peer)[0], b"good")
                peer.delivered += 1
                pending -= 1
        peer.until_closed()

    def waiting(peer: Peer) -> list[ReceivedRequest]:
        return [request for request in list(peer.requests.values())[peer.delivered :] if request.ended]

    with serving(script, settings={MAX_STREAMS: 1}) as server:
        backend = h2_client(base_url=server.url, limits=towline.Limits(max_connections_per_host=1))
        for _ in range(3):
            # The new limit arrives before this response.
            assert backend.get("/").text == "told"
            responses = backend.at_once(*(get(f"/{n}") for n in range(20)))
            assert [response.text for response in responses] == ["good"] * 20


def test_an_idle_connection_after_goaway_is_not_reused(h2_client: Open) -> None:  # noqa: F811
    closed = threading.Event()

    def script(peer: Peer, number: int) -> None:
        request = peer.next_request()
        peer.respond(request, b"good")
        if number == 0:
            peer.send_goaway(request.stream)
            closed.set()
        peer.until_closed()

    with serving(script) as server:
        backend = h2_client(base_url=server.url)
        assert backend.get("/").text == "good"
        assert closed.wait(20)
        # Not idempotent, so it must not be sent on the closing connection.
        assert backend.call("POST", "/", content=backend.body(b"streamed")).text == "good"
    assert len(server.peers) == 2


def test_pings_of_the_server_are_acknowledged(h2_client: Open) -> None:  # noqa: F811
    def script(peer: Peer, number: int) -> None:
        request = peer.next_request()
        peer.conn.ping(b"hello...")
        peer.flush()
        peer.until(lambda: peer.pongs)
        peer.respond(request, b"good")
        peer.until_closed()

    with serving(script) as server:
        assert h2_client(base_url=server.url).get("/").text == "good"


def test_a_closed_client_sends_goaway(h2_client: Open) -> None:  # noqa: F811
    def script(peer: Peer, number: int) -> None:
        peer.respond(peer.next_request(), b"good")
        peer.until_closed()
        ended.set()

    ended = threading.Event()
    with serving(script) as server:
        backend = h2_client(base_url=server.url)
        assert backend.get("/").text == "good"
        backend.close()
        assert ended.wait(20)
        (peer,) = server.peers
        assert peer.goaway == [(0, NO_ERROR)]


def test_an_error_reports_the_bytes_of_its_own_stream(h2_client: Open) -> None:  # noqa: F811
    def script(peer: Peer, number: int) -> None:
        calls = {request[":path"]: request for request in (peer.next_request() for _ in range(2))}
        peer.begin(calls["/up"])
        peer.write(calls["/up"], b"x" * 1000)
        peer.respond(calls["/other"], b"y" * 100_000)
        peer.reset(calls["/up"], INTERNAL_ERROR)
        peer.until_closed()

    with serving(script) as server:
        backend = h2_client(base_url=server.url)
        error, other = backend.at_once(post("/up", b"z" * 20_000), get("/other"))
        assert len(other.content) == 100_000
        assert (type(error), error.phase, error.retryable) == (towline.RemoteProtocolError, "body", False)
        # The head, and two frames of DATA with nine bytes of their own each (RFC 9113 4.1); the same for the response.
        assert 20_000 + 2 * 9 + 20 < error.bytes_sent < 20_500
        assert 1000 + 9 + 9 < error.bytes_received < 1100


def test_a_response_is_kept_when_the_connection_breaks_right_after_it(h2_client: Open) -> None:  # noqa: F811
    """A server that refuses an upload responds and closes; its unread data becomes a reset."""

    def script(peer: Peer, number: int) -> None:
        request = peer.next_request()
        peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.conn.send_headers(request.stream, [(":status", "413")])
        peer.conn.send_data(request.stream, b"too much", end_stream=True)
        peer.flush()
        peer.socket.close()

    with serving(script) as server:
        # Many times: the result depends on the order of events.
        for number in range(30):
            backend = h2_client(base_url=server.url)
            response = backend.call("POST", f"/{number}", content=b"x" * 10)
            assert (response.status_code, response.text) == (413, "too much")
