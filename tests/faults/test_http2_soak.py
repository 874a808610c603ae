"""Thousands of requests over a few HTTP/2 connections: slow ones, fast ones, uploads, and streams that are reset midway.

No stream may be left without a response, no request in flight, and memory may not grow from one half to the other.
"""

from __future__ import annotations

import random
import threading
import urllib.request

import pytest

from tests.support.http2_client import Client
from tests.support.process import eventually, running
from tests.support.process_resources import HERE, resident_bytes, worker

CONNECTIONS, ROUNDS, STREAMS = 4, 30, 24
HALVES = 2
# The server accepts 100 resets at once and 33 a second of each connection; the package h2 sends one more for each frame
# that crosses the first.
RESETS = 1
GROWTH = 2 << 20

BACKENDS = [
    pytest.param(["apps:asgi"], id="asgi"),
    pytest.param(["apps:wsgi"], id="wsgi"),
    pytest.param(["apps:wsgi", "--threads", "4"], id="wsgi-threads"),
]


class Soak:
    """One connection. `chance` draws what each stream does."""

    def __init__(self, port: int, seed: int) -> None:
        self.address, self.rng = ("127.0.0.1", port), random.Random(seed)
        self.responses, self.reset = 0, 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with Client(self.address) as client:
                for _ in range(ROUNDS):
                    self.round(client)
        except BaseException as error:
            self.error = error

    def round(self, client: Client) -> None:
        streams = [self.open_stream(client) for _ in range(STREAMS)]
        client.flush()
        # In any state.
        if self.rng.random() < 0.5:
            client.take()
        for stream in self.rng.sample(streams, RESETS):
            if not client.exchanges[stream].over:
                client.conn.reset_stream(stream, 8)
                streams.remove(stream)
                self.reset += 1
        client.flush()
        for exchange in client.finish(*streams):
            assert (exchange.status, exchange.ended) == (200, True), exchange
            assert exchange.body == b"ok" or len(exchange.body) == 1 << 20
            self.responses += 1
        for stream in list(client.exchanges):
            del client.exchanges[stream]

    def open_stream(self, client: Client) -> int:
        path = self.rng.choice(["/ok", "/ok", "/ok", "/block/0.002", "/read", "/read", "/large"])
        if path == "/large" and self.rng.random() < 0.8:
            path = "/ok"
        if path != "/read":
            return client.begin("GET", path, send=False)
        stream = client.begin("POST", path, end=False, send=False)
        client.write(stream, bytes(self.rng.randrange(1, 40_000)), end=True)
        return stream


def metric(port: int, name: str) -> float:
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name))


@pytest.mark.parametrize("serving", BACKENDS)
def test_a_soak(serving: list[str]) -> None:
    with running(*serving, "--metrics", cwd=HERE) as program:
        resident = []
        for half in range(HALVES):
            soaks = [Soak(program.port, half * CONNECTIONS + number) for number in range(CONNECTIONS)]
            threads = [threading.Thread(target=soak.run, daemon=True) for soak in soaks]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(200)
            for soak in soaks:
                assert soak.error is None, soak.error
                assert soak.responses + soak.reset == ROUNDS * STREAMS
                assert soak.reset > ROUNDS // 3
            eventually(
                lambda: metric(program.port, "towline_requests_in_flight ") <= 1, "no request in flight"
            )
            eventually(lambda: metric(program.port, "towline_connections_open ") <= 1, "no connection left")
            resident.append(resident_bytes(worker(program)))
        print(f"resident after each half: {[size >> 10 for size in resident]} KiB")
        assert resident[1] - resident[0] < GROWTH
        assert "Traceback" not in program.log
