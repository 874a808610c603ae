"""Clients that vanish in every state, crowds of silent and idle ones, and crowds of slow ones."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time
from statistics import median

import pytest

from tests.support.nightly import IS_NIGHT
from tests.support.process import eventually, request, running
from tests.support.process_resources import (
    HEAD,
    HERE,
    cpu_seconds,
    descriptor_limit_for,
    descriptors,
    every_front_end,
    open_socket,
    reset,
    response_time,
    stable_descriptors,
    worker,
)

CROWD = int(os.environ.get("TOWLINE_CROWD", "2000" if IS_NIGHT else "500"))
"""Slow clients; TOWLINE_CROWD=10000 is the figure of docs/figures.md."""

STATES = {
    "silent": b"",
    "mid head": b"GET /ok HTTP/1.1\r\nhost: te",
    "mid body": b"POST /listen HTTP/1.1\r\nhost: test\r\ncontent-length: 100\r\n\r\nabc",
    "mid chunk": b"POST /listen HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\nff\r\nabc",
    "mid response": b"GET /stream HTTP/1.1\r\nhost: test\r\n\r\n",
    "kept alive": HEAD,
}


@every_front_end
def test_two_hundred_clients_disconnect_in_every_state(serving: list[str]) -> None:
    with running(*serving, cwd=HERE) as program:
        request(program.port, "/ok")
        pid = worker(program)
        baseline = stable_descriptors(pid)
        for state, data in STATES.items():
            # Responses without an end keep a WSGI thread each, one at a time where there is but one.
            count = 200 if state != "mid response" or "asgi" in serving[0] else 3
            sockets = [open_socket(program.port, data) for _ in range(count)]
            opened = baseline + count
            eventually(lambda opened=opened: len(descriptors(pid)) >= opened, f"{count} connections {state}")
            time.sleep(0.05)
            for number, sock in enumerate(sockets):
                if number % 2:
                    reset(sock)
                else:
                    sock.close()
            elapsed = eventually(
                lambda: len(descriptors(pid)) <= baseline, f"release after vanishing {state}"
            )
            print(f"{state}: released after {elapsed * 1000:.0f} ms")
        assert request(program.port, "/ok").body == b"ok"
        assert worker(program) == pid


@every_front_end
def test_silent_and_idle_connections_do_not_slow_a_new_one(serving: list[str]) -> None:
    with descriptor_limit_for(3200), running(*serving, cwd=HERE) as program, contextlib.ExitStack() as stack:
        for _ in range(1100):
            stack.callback(open_socket(program.port).close)
        for _ in range(2000):
            idle = open_socket(program.port, HEAD)
            stack.callback(idle.close)
            assert idle.recv(4096).startswith(b"HTTP/1.1 200")
        times = [response_time(program.port) for _ in range(50)]
        print(f"beside 1,100 silent and 2,000 idle: {_figures(times)}")
        assert median(times) < 1
        assert max(times) < 10


@pytest.mark.parametrize(
    "serving",
    [["apps:asgi"], ["apps:wsgi"], ["apps:wsgi", "--threads", "3"]],
    ids=["asgi", "wsgi", "threads"],
)
def test_a_crowd_of_slow_clients_does_not_stop_others(serving: list[str]) -> None:
    """A byte of their heads now and then, until each has had its 408: a byte buys no time."""
    # Longer than opening them takes, plus two seconds.
    timeout = 10 if IS_NIGHT else 5
    options = ["--timeout-request-header", str(timeout)]
    with (
        descriptor_limit_for(CROWD),
        running(*serving, *options, cwd=HERE) as program,
        contextlib.ExitStack() as stack,
    ):
        request(program.port, "/ok")
        pid = worker(program)
        baseline = stable_descriptors(pid)
        crowd = [open_socket(program.port, b"GET /ok HTTP/1.1\r\nx: ") for _ in range(CROWD)]
        for sock in crowd:
            stack.callback(sock.close)
        until = time.monotonic() + 2
        times, before = [], cpu_seconds(pid)
        while time.monotonic() < until:
            for sock in crowd:
                sock.send(b"y")
            times += [response_time(program.port) for _ in range(5)]
        used_s = cpu_seconds(pid) - before
        print(f"beside {CROWD} slow ones: {_figures(times)}, {used_s:.2f} CPU seconds in 2 s")
        assert median(times) < 1
        assert max(times) < 10
        refused = _first_responses(crowd, timeout + 10)
        assert (set(refused), len(refused)) == ({b"HTTP/1.1 408"}, CROWD)
        eventually(lambda: len(descriptors(pid)) <= baseline, "the end of their sockets")


def _first_responses(sockets: list[socket.socket], timeout: float) -> list[bytes]:
    """First bytes received on each socket."""
    responses: list[bytes] = []
    deadline = time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        for sock in sockets:
            selector.register(sock, selectors.EVENT_READ)
        while selector.get_map():
            assert time.monotonic() < deadline, f"{len(selector.get_map())} are still waiting"
            for key, _ in selector.select(1):
                selector.unregister(key.fileobj)
                responses.append(key.fileobj.recv(12))  # type: ignore[union-attr]
    return responses


def _figures(times: list[float]) -> str:
    return f"median {median(times) * 1000:.2f} ms, worst {max(times) * 1000:.1f} ms"
