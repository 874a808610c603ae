"""KeyboardInterrupt and other signals while a thread waits in native code."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import towline

from tests.support.http1_peer import OK, read_head, respond_with, scripted, serving


def _silent(connection: socket.socket, number: int) -> None:
    while read_head(connection):
        time.sleep(10)


def _stalls_in_body(connection: socket.socket, number: int) -> None:
    read_head(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nab")
    time.sleep(10)


@pytest.fixture
def handlers() -> Iterator[None]:
    """pytest may run where SIGINT is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    alarm = signal.getsignal(signal.SIGALRM)
    yield
    signal.signal(signal.SIGINT, before)
    signal.signal(signal.SIGALRM, alarm)


def _interrupted(call: Callable[[], object], after: float = 0.3) -> float:
    """How long after the signal the call ended."""
    sent: list[float] = []

    def send() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(after, send)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        call()
    timer.join()
    return time.monotonic() - sent[0]


# Noticed at once or within 100 ms; the rest is for a busy machine.
SOON = 8.0


@pytest.mark.usefixtures("handlers")
def test_waiting_for_a_head_is_interrupted_and_the_client_stays_usable() -> None:
    with serving(_silent) as server, scripted(respond_with(OK)) as other, towline.Client() as client:
        assert _interrupted(lambda: client.get(server.url)) < SOON
        assert client.pool_status()["active"] == 0
        assert client.get(other.url).text == "hello"


@pytest.mark.usefixtures("handlers")
def test_waiting_for_a_body_is_interrupted() -> None:
    with serving(_stalls_in_body) as server, towline.Client() as client:
        assert _interrupted(lambda: client.get(server.url)) < SOON
        with client.stream("GET", server.url) as response:
            assert _interrupted(lambda: response.read()) < SOON
        assert client.pool_status()["active"] == 0


@pytest.mark.usefixtures("handlers")
def test_waiting_for_a_connection_is_interrupted() -> None:
    limits = towline.Limits(max_connections=1)
    with serving(_stalls_in_body) as server, towline.Client(limits=limits) as client:
        with client.stream("GET", server.url):
            assert _interrupted(lambda: client.get(server.url)) < SOON
            assert client.pool_status()["waiting"] == 0


@pytest.mark.usefixtures("handlers")
def test_sending_is_interrupted() -> None:
    def never_read(connection: socket.socket, number: int) -> None:
        time.sleep(10)

    with serving(never_read) as server, towline.Client() as client:
        body = bytes(64 * 1024 * 1024)
        assert _interrupted(lambda: client.post(server.url, content=body)) < SOON


@pytest.mark.usefixtures("handlers")
def test_a_handler_that_does_not_raise_does_not_end_the_call() -> None:
    seen: list[float] = []

    def slow(connection: socket.socket, number: int) -> None:
        read_head(connection)
        for _ in range(400):
            if len(seen) >= 3:
                break
            time.sleep(0.05)
        connection.sendall(OK)

    signal.signal(signal.SIGALRM, lambda *_: seen.append(time.monotonic()))
    with serving(slow) as server, towline.Client() as client:
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        try:
            assert client.get(server.url).text == "hello"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        assert len(seen) >= 3


@pytest.mark.usefixtures("handlers")
def test_a_thread_that_waits_does_not_take_the_main_thread_s_signal() -> None:
    with serving(_silent) as server, towline.Client() as client:

        def wait() -> None:
            # The peer closes its connections when the test ends.
            with pytest.raises((towline.ReadTimeout, towline.ServerDisconnected)):
                client.get(server.url, timeout=9)

        worker = threading.Thread(target=wait, daemon=True)
        worker.start()
        assert _interrupted(lambda: time.sleep(5)) < SOON
        assert worker.is_alive()
