"""Limits over all workers: what they share, what a killed worker gives back, and what a reload keeps."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading

import pytest

from tests.support.process import Program, connect, eventually, request, running

APPS = pytest.mark.parametrize("app", ["apps:asgi", "apps:wsgi"])
WORKERS = pytest.mark.parametrize("workers", [1, 2])
CLIENTS = ("--forwarded-allow-ips", "unix")
"""127.0.0.1 is no proxy here."""


def status(program: Program) -> int:
    return request(program.port, "/pid").status


def hold(stack: contextlib.ExitStack, port: int) -> bytes:
    """Opens a connection that stays open if it is admitted; returns the status."""
    client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
    client.sendall(b"GET /pid HTTP/1.1\r\nHost: a\r\n\r\n")
    try:
        return client.recv(65536)[9:12]
    except ConnectionResetError:
        return b"503"


@APPS
@WORKERS
def test_workers_share_the_allowance_of_a_client(app: str, workers: int) -> None:
    allowance, threads = 200, 4
    options = ("--workers", str(workers), "--limit-rate", "1/h", "--limit-rate-burst", "70")
    with running(app, *options) as program:
        eventually(lambda: len(program.children()) == workers, "all workers")
        admitted, refused = [], []

        def ask() -> None:
            for _ in range(allowance // threads):
                # A new connection each time, for any worker.
                (admitted if status(program) == 200 else refused).append(1)

        asking = [threading.Thread(target=ask) for _ in range(threads)]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
        assert len(admitted) == 70
        assert len(refused) == allowance - 70


@APPS
def test_a_reload_keeps_what_clients_have_spent(app: str) -> None:
    with running(app, "--workers", "2", "--limit-rate", "1/h", "--limit-rate-burst", "3") as program:
        assert [status(program) for _ in range(4)] == [200, 200, 200, 429]
        before = program.children()
        program.signal(signal.SIGHUP)
        eventually(lambda: not set(before) & set(program.children()), "new workers")
        assert status(program) == 429


@APPS
@WORKERS
def test_a_killed_worker_gives_its_connections_back(app: str, workers: int) -> None:
    options = ("--workers", str(workers), "--limit-connections", "6", "--limit-connections-per-client", "4")
    with running(app, *options, *CLIENTS) as program, contextlib.ExitStack() as stack:
        eventually(lambda: len(program.children()) == workers, "all workers")
        assert [hold(stack, program.port) for _ in range(6)] == [b"200"] * 4 + [b"503"] * 2
        for pid in program.children():
            os.kill(pid, signal.SIGKILL)

        def all_admitted() -> bool:
            with contextlib.ExitStack() as again:
                return [hold(again, program.port) for _ in range(5)] == [b"200"] * 4 + [b"503"]

        def tried() -> bool:
            with contextlib.suppress(OSError):
                return all_admitted()
            return False

        eventually(tried, "the connections of the killed workers")


def test_all_workers_together_have_as_many_connections_as_allowed() -> None:
    with (
        running("apps:asgi", "--workers", "2", "--limit-connections", "5") as program,
        contextlib.ExitStack() as stack,
    ):
        eventually(lambda: len(program.children()) == 2, "both workers")
        found: list[bytes] = []
        stacks = [stack.enter_context(contextlib.ExitStack()) for _ in range(20)]
        asking = [
            threading.Thread(target=lambda own=own: found.append(hold(own, program.port))) for own in stacks
        ]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
        # Two that come at the same moment may both be refused.
        assert 1 <= found.count(b"200") <= 5, found
        assert len(found) == 20
        with connect(program.port):
            pass
