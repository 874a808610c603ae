"""The logger `towline.client`, and `extensions={"trace": f}`: lines and events of real exchanges, none of a secret."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import towline
from towline import _native, testing

from tests.support.client_callers import BACKENDS, Caller
from tests.support.http1_peer import OK, Listener, Peer, respond_with, scripted
from tests.support.tls import Trust

LOGGER = "towline.client"
ENDS = r"127\.0\.0\.1:\d+ -> 127\.0\.0\.1:\d+"
TRACE_OF_A_CALL = [
    "http11.send_request_headers.started",
    "connection.connect_tcp.started",
    "connection.connect_tcp.complete",
    "http11.send_request_headers.complete",
    "http11.send_request_body.started",
    "http11.send_request_body.complete",
    "http11.receive_response_headers.started",
    "http11.receive_response_headers.complete",
    "http11.receive_response_body.started",
    "http11.receive_response_body.complete",
    "http11.response_closed.started",
    "http11.response_closed.complete",
]


def by_path(peer: Peer) -> None:
    """/away redirects to /, /busy responds 503 once on each connection, /last closes, /short breaks off its body."""
    was_busy = False
    while head := peer.head():
        path = head.split(b" ")[1].partition(b"?")[0]
        if path == b"/away":
            peer.send(b"HTTP/1.1 302 Found\r\nLocation: /?token=t0p\r\nContent-Length: 0\r\n\r\n")
        elif path == b"/busy" and not was_busy:
            was_busy = True
            peer.send(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
        elif path == b"/last":
            peer.send(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
            return
        elif path == b"/short":
            peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello")
            return
        else:
            peer.send(OK)


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


@pytest.fixture
def server() -> Iterator[Listener]:
    with scripted(by_path) as listener:
        yield listener


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def lines(caplog: pytest.LogCaptureFixture, level: int | None = None) -> list[str]:
    records = [record for record in caplog.records if record.name == LOGGER]
    return [record.getMessage() for record in records if level is None or record.levelno == level]


# Logging.


def test_a_call_is_one_info_line(server: Listener, backend: str, caplog: pytest.LogCaptureFixture) -> None:
    caller = Caller(backend)
    with caplog.at_level(logging.INFO, LOGGER):
        caller.get(f"{server.url}/x?a=1")
        caller.read_stream("GET", f"{server.url}/stream")
        caller.post(f"{server.url}/form", json={})
    caller.close()
    assert lines(caplog) == [
        f'HTTP Request: GET {server.url}/x?a=1 "HTTP/1.1 200 OK"',
        f'HTTP Request: GET {server.url}/stream "HTTP/1.1 200 OK"',
        f'HTTP Request: POST {server.url}/form "HTTP/1.1 200 OK"',
    ]


def test_redirects_and_retries_are_logged(
    server: Listener, backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    retry = towline.Retry(status=(503,), backoff=0.001)
    caller = Caller(backend, follow_redirects=True, retries=retry)
    with caplog.at_level(logging.DEBUG, LOGGER):
        caller.get(f"{server.url}/away")
        caller.get(f"{server.url}/busy")
    caller.close()
    assert f"redirect: 302, following to GET {server.url}/?token=[secure]" in lines(caplog, logging.DEBUG)
    retried = [line for line in lines(caplog, logging.DEBUG) if line.startswith("retry 1 in ")]
    assert len(retried) == 1
    assert retried[0].endswith(f"GET {server.url}/busy responded 503")
    statuses = [line.rpartition('"HTTP/1.1 ')[2] for line in lines(caplog, logging.INFO)]
    assert statuses == ['302 Found"', '200 OK"', '503 Service Unavailable"', '200 OK"']


def test_the_life_of_a_connection_is_logged(server: Listener, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, LOGGER), towline.Client() as client:
        for path in ("", "", "last", ""):
            client.get(f"{server.url}/{path}")
    kinds = [re.sub(ENDS, "ENDS", line) for line in lines(caplog, logging.DEBUG)]
    kinds = [re.sub(r"\d+\.\d ms", "TIME", line) for line in kinds]
    opened, reused, closed = (
        "connection opened: ENDS (connect TIME)",
        "connection reused: ENDS",
        "connection closed: ENDS",
    )
    assert kinds == [opened, reused, reused, closed, opened, closed]


def test_the_life_of_an_asynchronous_connection_is_logged(
    server: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with towline.AsyncClient() as client:
            for path in ("", "", "last", ""):
                await client.get(f"{server.url}/{path}")

    with caplog.at_level(logging.DEBUG, LOGGER):
        asyncio.run(main())
    kinds = [line.partition(":")[0] for line in lines(caplog, logging.DEBUG)]
    opened, reused, closed = "connection opened", "connection reused", "connection closed"
    assert kinds == [opened, reused, reused, closed, opened, closed]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_request_that_is_sent_again_is_logged(asynchronous: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The server closes the idle connection when the second request arrives."""

    def once(peer: Peer) -> None:
        peer.head()
        peer.send(OK)
        if peer.number == 0:
            peer.head()

    async def amain(url: str) -> None:
        async with towline.AsyncClient() as client:
            await client.get(url)
            await client.get(url)

    with caplog.at_level(logging.DEBUG, LOGGER), scripted(once) as server:
        if asynchronous:
            asyncio.run(amain(server.url))
        else:
            with towline.Client() as client:
                client.get(server.url)
                client.get(server.url)
    again = [line for line in lines(caplog) if line.startswith("request sent again")]
    assert len(again) == 1
    assert re.fullmatch(f"request sent again: the connection {ENDS} ended without a response", again[0])


def test_a_wait_for_a_connection_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def slow(peer: Peer) -> None:
        while peer.head():
            time.sleep(0.05)
            peer.send(OK)

    async def main(url: str) -> None:
        async with towline.AsyncClient(limits=towline.Limits(max_connections=1)) as client:
            await asyncio.gather(client.get(url), client.get(url))

    with caplog.at_level(logging.DEBUG, LOGGER), scripted(slow) as server:
        asyncio.run(main(server.url))
    waits = [line for line in lines(caplog) if line.startswith("waited")]
    assert len(waits) == 1
    match = re.fullmatch(rf"waited (\S+) ms for a connection to 127\.0\.0\.1:{server.port}", waits[0])
    assert match is not None
    assert float(match[1]) > 30


def test_a_failure_is_logged(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    caller = Caller(backend, retries=None)
    with caplog.at_level(logging.DEBUG, LOGGER), pytest.raises(towline.ConnectError):
        caller.get(f"http://127.0.0.1:{port}/")
    caller.close()
    (line,) = lines(caplog)
    assert line.startswith(f"HTTP Request failed: GET http://127.0.0.1:{port}/: ConnectError: ")


def test_no_credential_is_logged(server: Listener, backend: str, caplog: pytest.LogCaptureFixture) -> None:
    url = server.url.replace("://", "://user:pa55@")
    caller = Caller(backend, follow_redirects=True)
    with caplog.at_level(logging.DEBUG, LOGGER):
        caller.get(f"{url}/away?Signature=pa55&b=2&api_key=pa55", headers={"Authorization": "Bearer pa55"})
    caller.close()
    text = "\n".join(lines(caplog))
    assert "/away?Signature=[secure]&b=2&api_key=[secure] " in text
    assert "pa55" not in text
    assert "t0p" not in text


def test_a_reason_phrase_is_logged_in_ascii(caplog: pytest.LogCaptureFixture) -> None:
    """A C1 control character, which some terminals obey."""
    reply = b"HTTP/1.1 200 a\x9b31mb\r\nContent-Length: 0\r\n\r\n"
    with scripted(respond_with(reply)) as server, towline.Client() as client:
        with caplog.at_level(logging.INFO, LOGGER):
            client.get(server.url)
    assert lines(caplog) == [f'HTTP Request: GET {server.url} "HTTP/1.1 200 a?31mb"']


def test_tls_is_logged(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    trust = Trust(tmp_path)
    with scripted(respond_with(OK), trust.server()) as server, towline.Client(verify=trust.path) as client:
        with caplog.at_level(logging.DEBUG, LOGGER):
            response = client.get(server.url)
    (opened,) = [line for line in lines(caplog) if line.startswith("connection opened")]
    assert re.search(r"\(connect [\d.]+ ms, TLS [\d.]+ ms, TLSv1\.3, TLS\w+", opened)
    assert response.timings["tls"] > 0


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_level_is_effective_at_once(
    server: Listener, asynchronous: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The level of a parent counts too, and `logging.disable`. Without logging no Python code of the slow path runs."""
    slow: list[str] = []
    kind = towline.AsyncClient if asynchronous else towline.Client
    original = kind._slow_request

    def counted(self: Any, method: str, url: Any, **arguments: Any) -> Any:
        slow.append(url)
        return original(self, method, url, **arguments)

    monkeypatch.setattr(kind, "_slow_request", counted)
    caller = Caller("asyncio" if asynchronous else "blocking")
    caplog.set_level(logging.NOTSET, LOGGER)

    def is_slow() -> bool:
        slow.clear()
        caller.get(server.url)
        return bool(slow)

    assert not is_slow()
    with caplog.at_level(logging.INFO, "towline"):
        assert is_slow()
        logging.disable(logging.INFO)
        assert not is_slow()
        logging.disable(logging.NOTSET)
        assert is_slow()
    assert not is_slow()
    with caplog.at_level(logging.INFO):
        assert is_slow()
        with caplog.at_level(logging.ERROR, LOGGER):
            assert not is_slow()
    assert not is_slow()
    caller.close()


def test_basic_config_after_the_client_is_enough(server: Listener) -> None:
    """As a program does it, in a fresh interpreter."""
    program = (
        "import logging, sys, towline\n"
        f"with towline.Client() as client:\n    client.get({server.url!r})\n"
        f"    logging.basicConfig(level=logging.INFO)\n    client.get({server.url + '/later'!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == f'INFO:towline.client:HTTP Request: GET {server.url}/later "HTTP/1.1 200 OK"\n'


@pytest.mark.parametrize("level", [None, "INFO"])
def test_the_log_level_of_a_server_is_not_that_of_its_application(
    server: Listener, level: str | None
) -> None:
    """`towline serve --log-level debug` logs no calls of the application, unless that sets the level."""
    program = (
        "import logging, towline\n"
        "from towline.config import ServerConfig\n"
        "from towline.server import logs\n"
        + (f"logging.getLogger('towline.client').setLevel({level!r})\n" if level else "")
        + "logs.configure(ServerConfig('app:app', log_level='debug'))\n"
        f"with towline.Client() as client:\n    client.get({server.url!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ("HTTP Request" in done.stderr) is (level is not None)
    assert bool(done.stderr) is (level is not None)


def test_events_are_bounded_and_dropped_when_logging_stops(server: Listener) -> None:
    _native.observe_calls(calls=False, connections=True)
    try:
        for _ in range(3):
            with towline.Client() as client:
                client.get(server.url)
        assert [event for event, _, _ in _native.take_connection_events()] == ["closed"] * 3
        with towline.Client() as client:
            client.get(server.url)
    finally:
        _native.observe_calls(calls=False, connections=False)
    assert _native.take_connection_events() == []


# Tracing.


def test_trace_has_httpcores_events(server: Listener, backend: str) -> None:
    events: list[tuple[str, dict[str, Any]]] = []
    caller = Caller(backend)
    caller.get(server.url, extensions={"trace": lambda name, info: events.append((name, info))})
    caller.close()
    assert [name for name, _ in events] == TRACE_OF_A_CALL
    infos = dict(events)
    head = infos["http11.receive_response_headers.complete"]["return_value"]
    assert head == (b"HTTP/1.1", 200, b"OK", [(b"Content-Length", b"5")])
    stream = infos["connection.connect_tcp.complete"]["return_value"]
    assert stream.get_extra_info("server_addr") == ("127.0.0.1", server.port)


def test_trace_of_a_stream_and_of_every_exchange(server: Listener, backend: str) -> None:
    events: list[str] = []
    extensions = {"trace": lambda name, info: events.append(name)}
    caller = Caller(backend, follow_redirects=True)
    _, body = caller.read_stream("GET", server.url, extensions=extensions)
    assert body == b"hello"
    assert events == TRACE_OF_A_CALL
    events.clear()
    caller.get(f"{server.url}/away", extensions=extensions)
    assert events.count("http11.send_request_headers.started") == 2
    assert events.count("http11.response_closed.complete") == 2
    caller.close()


def test_http2(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    events: list[str] = []
    with testing.serve(hello, lifespan="off") as server, caplog.at_level(logging.INFO, LOGGER):
        caller = Caller(backend, http1=False, http2=True)
        caller.get(server.url, extensions={"trace": lambda name, info: events.append(name)})
        caller.close()
    assert lines(caplog) == [f'HTTP Request: GET {server.url} "HTTP/2 200 OK"']
    assert events == [name.replace("http11", "http2") for name in TRACE_OF_A_CALL]


def test_trace_of_failures(server: Listener, backend: str) -> None:
    events: list[tuple[str, dict[str, Any]]] = []
    extensions = {"trace": lambda name, info: events.append((name, info))}
    caller = Caller(backend, retries=None)
    with pytest.raises(towline.TransportError) as caught:
        caller.get(f"{server.url}/short", extensions=extensions)
    failed = dict(events)["http11.receive_response_body.failed"]
    assert failed == {"exception": caught.value}
    assert events[-1][0] == "http11.response_closed.complete"
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(towline.ConnectError):
        caller.get(f"http://127.0.0.1:{port}", extensions=extensions)
    assert events[-1][0] == "connection.connect_tcp.failed"
    caller.close()


def test_an_asynchronous_trace_function(server: Listener) -> None:
    events: list[str] = []

    async def trace(name: str, info: dict[str, Any]) -> None:
        events.append(name)

    async def main() -> None:
        async with towline.AsyncClient() as client:
            await client.get(server.url, extensions={"trace": trace})

    asyncio.run(main())
    assert events == TRACE_OF_A_CALL
    with towline.Client() as client, pytest.raises(towline.UsageError, match="needs a plain function"):
        client.get(server.url, extensions={"trace": trace})


def test_trace_is_refused_where_there_are_no_events(server: Listener) -> None:
    extensions = {"trace": lambda name, info: None}
    with towline.Client() as client:
        with pytest.raises(towline.UsageError, match="expected a function, not str"):
            client.get(server.url, extensions={"trace": "yes"})
        with pytest.raises(towline.UsageError, match="Urllib3Transport has no events"):
            client.get(server.url, transport="urllib3", extensions=extensions)
        with pytest.raises(towline.UsageError, match="a WebSocket has no events"):
            with client.websocket(server.url, extensions=extensions):
                pass
    with towline.Client(transport=towline.WSGITransport(print)) as client:
        with pytest.raises(towline.UsageError, match="WSGITransport has no events"):
            client.get("http://app/", extensions=extensions)


def test_the_httpx_transport_passes_the_trace_on(server: Listener) -> None:
    pytest.importorskip("httpx")
    events: list[str] = []
    with towline.Client(transport="httpx") as client:
        client.get(server.url, extensions={"trace": lambda name, info: events.append(name)})
    assert "http11.send_request_headers.started" in events


# Timings.


@pytest.mark.parametrize("http2", [False, True], ids=["h1", "h2"])
def test_timings_have_the_tls_handshake(tmp_path: Any, backend: str, http2: bool) -> None:
    """docs/call.md: the phases that took place."""
    trust = Trust(tmp_path)
    context = trust.server()
    with scripted(respond_with(OK), context) as server:
        caller = Caller(backend, verify=trust.path, http2=http2)
        timings = caller.get(server.url).timings
        caller.close()
    assert 0 < timings["tls"] < timings["total"]
    with scripted(respond_with(OK)) as server:
        caller = Caller(backend)
        assert "tls" not in caller.get(server.url).timings
        caller.close()
