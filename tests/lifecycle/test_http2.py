"""HTTP/2 connections when workers end: GOAWAY, streams that finish, requests that are not lost."""

from __future__ import annotations

import signal
import struct
import threading
import time

import pytest

from tests.support.http2_client import MAX_WAIT, Client, open_websocket
from tests.support.process import eventually, running
from tests.support.websocket_server import CLOSE, TEXT, close_frame, frame

SERVING = [
    pytest.param(["apps:asgi"], id="asgi"),
    pytest.param(["apps:wsgi"], id="wsgi"),
    pytest.param(["apps:wsgi", "--threads", "8"], id="wsgi-threads"),
]
RESTART = struct.pack("!BBH", 0x80 | CLOSE, 2, 1012)
NO_ERROR, HIGHEST = 0, 2**31 - 1


class Load:
    """Threads of which each keeps several streams of a connection busy. `failures` must stay empty.

    A request above the last stream of a GOAWAY was not taken: it is sent again elsewhere (RFC 9113 6.8).
    """

    STREAMS = 6

    def __init__(self, port: int, path: str, threads: int = 3) -> None:
        self.address, self.path = ("127.0.0.1", port), path
        self.responses: list[bytes] = []
        self.failures: list[str] = []
        self.goaways: list[tuple[int, int]] = []
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        self.more(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(MAX_WAIT)

    def more(self, count: int) -> None:
        target = len(self.responses) + count
        eventually(lambda: len(self.responses) >= target or self.failures, "more answers")

    def _run(self) -> None:
        while not self._stopped.is_set() and not self.failures:
            try:
                with Client(self.address) as client:
                    self._use(client)
                    self.goaways += client.goaway
            except ConnectionRefusedError:
                return  # the server has ended
            except Exception as error:
                self.failures.append(repr(error))

    def _use(self, client: Client) -> None:
        """Sends requests until GOAWAY, or the end of the test."""
        last, open_streams = HIGHEST, set[int]()
        while True:
            last = min([last, *(stream for stream, _ in client.goaway)])
            for stream in sorted(open_streams):
                exchange = client.exchanges[stream]
                if exchange.ended and exchange.status == 200:
                    self.responses.append(exchange.body)
                elif exchange.over:
                    self.failures.append(f"stream {stream}: {exchange}, {client.goaway}")
                elif stream <= last:
                    continue
                open_streams.discard(stream)
            if not open_streams and (client.goaway or self._stopped.is_set()):
                return
            while len(open_streams) < self.STREAMS and not client.goaway and not self._stopped.is_set():
                open_streams.add(client.begin("GET", self.path))
            if not client.take():
                lost = {stream for stream in open_streams if stream <= last}
                # A connection that a stopping server never accepted from its backlog is lost.
                if lost and client.conn.remote_settings.get(8):
                    self.failures.append(f"closed with {lost}, {client.goaway}")
                return


@pytest.mark.parametrize("serving", SERVING)
def test_sigterm_finishes_the_streams_in_flight(serving: list[str]) -> None:
    with running(*serving, "--workers", "2") as program, Client(("127.0.0.1", program.port)) as client:
        slow = [client.begin("GET", "/sleep/0.3") for _ in range(3)]
        pieces = [client.begin("GET", "/stream/3/0.1") for _ in range(3)]
        client.until_read()
        program.signal(signal.SIGTERM)
        assert [one.body for one in client.finish(*slow)] == [b"slept"] * 3
        assert [one.body for one in client.finish(*pieces)] == [b"chunk" * 3] * 3
        client.until_closed()
        client.close()
        assert client.goaway[-1] == (pieces[-1], NO_ERROR)
        assert program.wait() == 0
        assert "cancelling" not in program.log


@pytest.mark.parametrize("serving", SERVING)
def test_sighup_under_load_fails_no_request(serving: list[str]) -> None:
    with running(*serving, "--workers", "2") as program:
        before = set(program.children())
        with Load(program.port, "/pid") as load:
            program.signal(signal.SIGHUP)
            eventually(lambda: not before & set(program.children()), "the old workers' end")
            load.more(100)
        assert not load.failures
        after = set(program.children())
        assert len(after) == 2
        assert {int(body) for body in load.responses[-10:]} <= after
        assert {code for _, code in load.goaways} == {NO_ERROR}


@pytest.mark.parametrize("serving", SERVING)
def test_sigterm_under_load_loses_nothing(serving: list[str]) -> None:
    with running(*serving, "--workers", "2") as program:
        with Load(program.port, "/stream/3/0.01") as load:
            load.more(20)
            program.signal(signal.SIGTERM)
            assert program.wait() == 0
        assert not load.failures
        assert set(load.responses) == {b"chunk" * 3}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_websockets_are_closed_when_their_worker_ends(number: signal.Signals) -> None:
    """Together with a request on the same connection, which finishes."""
    with running("apps:asgi") as program, Client(("127.0.0.1", program.port)) as client:
        (old,) = program.children()
        sockets = [open_websocket(client, "/echo") for _ in range(2)]
        for stream in sockets:
            client.write(stream, frame(TEXT, b"hello"))
            client.until_body(stream, 7)
        request = client.begin("GET", "/sleep/0.3")
        client.until_read()
        program.signal(number)
        for stream in sockets:
            client.until_body(stream, 11)
            assert client.exchanges[stream].body.endswith(RESTART)
            client.write(stream, close_frame(1012))
        assert [one.ended for one in client.finish(*sockets)] == [True, True]
        assert client.finish(request)[0].body == b"slept"
        client.until_closed()
        client.close()
        assert client.goaway[-1][1] == NO_ERROR
        if number == signal.SIGTERM:
            assert program.wait() == 0
        else:
            eventually(lambda: program.children() and old not in program.children(), "the new worker")


def test_the_drain_ends_at_its_deadline_with_endless_streams() -> None:
    """A WebSocket whose client does not reply to the close frame."""
    with (
        running("apps:asgi", "--timeout-graceful-shutdown", "1") as program,
        Client(("127.0.0.1", program.port)) as client,
    ):
        endless, silent = client.begin("GET", "/endless"), open_websocket(client, "/echo")
        client.until(lambda: client.exchanges[endless].body)
        started = time.monotonic()
        program.signal(signal.SIGTERM)
        client.until_closed()
        assert program.wait() == 0
        assert time.monotonic() - started >= 0.9
        assert not client.exchanges[endless].ended
        assert client.exchanges[silent].body == RESTART
        assert "shut down" in program.log
