"""A server that ends while clients of HTTP/3 are silent, as behind a network that has gone: the grace period bounds it."""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from pathlib import Path

import pytest

pytest.importorskip("aioquic", reason="aioquic is not installed")

from tests.support.http3.client import Client
from tests.support.http3.datagram_proxy import DatagramProxy
from tests.support.http3.servers import Site
from tests.support.process import HERE, eventually, running
from tests.wire.http3_attacks import first_packets

GRACE_S = 1.0
LONGEST_S = 5.0
"""Acknowledgements are awaited for longer than this, and a client that does not read for much longer."""
APPS = [
    pytest.param(["apps:asgi"], id="asgi"),
    pytest.param(["apps:wsgi"], id="wsgi"),
    pytest.param(["apps:wsgi", "--threads", "4"], id="wsgi-threads"),
]
LONG = "/stream/200000/0"
"""A megabyte."""


def handshaking(_: Client, __: DatagramProxy, port: int) -> None:
    """Further connections whose handshakes do not go on."""
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender:
        for packet in first_packets():
            sender.sendto(packet, ("127.0.0.1", port))
        sender.settimeout(10)
        sender.recv(2048)


def idle(client: Client, proxy: DatagramProxy, _: int) -> None:
    assert client.fetch("GET", "/pid").status == 200
    proxy.silent = True


def unacknowledged(client: Client, proxy: DatagramProxy, _: int) -> None:
    """A whole response of which no acknowledgement arrives."""
    assert client.fetch("GET", "/pid").status == 200
    dropped = proxy.dropped
    proxy.deaf = True
    client.begin("GET", "/pid")
    client.until(lambda: proxy.dropped > dropped)
    proxy.silent = True


def blocked(client: Client, proxy: DatagramProxy, _: int) -> None:
    """A response that waits for the credit of its stream."""
    client.withhold_credit()
    stream = client.begin("GET", LONG)
    client.until(lambda: len(client.exchanges[stream].body) > 10_000)
    proxy.silent = True


@pytest.mark.parametrize("silence", [handshaking, idle, unacknowledged, blocked])
@pytest.mark.parametrize("app", APPS)
def test_the_grace_period_bounds_the_end(
    tmp_path: Path, app: list[str], silence: object, request: pytest.FixtureRequest
) -> None:
    assert callable(silence)
    site = Site(tmp_path)
    certificate = ["--ssl-certfile", site.cert, "--ssl-keyfile", site.key]
    options = ["--http3", "--timeout-graceful-shutdown", str(GRACE_S)]
    with (
        running(*app, *options, *certificate, cwd=HERE) as program,
        DatagramProxy(program.port) as proxy,
        Client(("127.0.0.1", proxy.port), ca=site.ca, max_stream_data=50_000) as client,
    ):
        silence(client, proxy, program.port)
        began = time.monotonic()
        program.signal(signal.SIGTERM)
        eventually(lambda: program.process.poll() is not None, "the end of the server")
        assert program.process.returncode == 0
        assert time.monotonic() - began < LONGEST_S
