"""HTTP/3 ends of the tests (tests/support/http3) against each other, so that a failure with Towline is Towline's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.http3.client import LIBRARIES, Client
from tests.support.http3.datagram_proxy import DatagramProxy
from tests.support.http3.server import serving
from tests.support.http3.servers import SERVERS, Site, curl, quic_go_get
from tests.support.interop_app import LARGE, SMALL

pytest.importorskip("aioquic", reason="aioquic is not installed")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize("library", LIBRARIES)
def test_clients(site: Site, library: str) -> None:
    with serving(site) as server:
        with Client(("127.0.0.1", server.port), library=library, ca=site.ca) as client:
            assert client.fetch("GET", "/small").body == SMALL
            assert client.fetch("GET", "/large").body == LARGE
            body = bytes(range(256)) * 1_000
            echoed = client.fetch("POST", "/echo", body, [("x-name", "value")])
            assert (echoed.status, echoed.body) == (200, body)
            assert client.fetch("GET", "/status/404").status == 404
    assert [request.path for request in server.requests] == ["/small", "/large", "/echo", "/status/404"]


def test_parts_of_a_response(site: Site) -> None:
    with serving(site) as server, Client(("127.0.0.1", server.port), ca=site.ca) as client:
        assert client.fetch("GET", "/trailers").trailers == {"x-after": "yes"}
        hinted = client.fetch("GET", "/early-hints")
        assert [status for status, _ in hinted.interim] == [103]
        assert (hinted.status, hinted.body) == (200, SMALL)
        reset = client.fetch("GET", "/reset/267")
        assert (reset.status, reset.reset, reset.ended) == (200, 267, False)
        assert client.fetch("GET", "/refuse").reset == 0x10B
        stream = client.open_websocket("/ws")
        client.write(stream, b"bytes", end=True)
        assert client.finish(stream)[0].body == b"bytes"


def test_close(site: Site) -> None:
    with serving(site) as server, Client(("127.0.0.1", server.port), ca=site.ca) as client:
        client.begin("GET", "/close/258")
        closed = client.until_closed()
        assert (closed.code, closed.application) == (258, True)


def test_resumption_and_early_data(site: Site) -> None:
    with serving(site, early=True) as server:
        with Client(("127.0.0.1", server.port), ca=site.ca) as client:
            client.fetch("GET", "/small")
            client.until(lambda: client.tickets)
        with Client(("127.0.0.1", server.port), ca=site.ca, ticket=client.tickets[0], early=True) as again:
            assert again.fetch("GET", "/small").body == SMALL
            assert again.resumed
            assert again.early_data_accepted
        assert server.requests[1].early


def test_retry_and_ping_and_keys(site: Site) -> None:
    with serving(site, retry=True) as server, Client(("127.0.0.1", server.port), ca=site.ca) as client:
        client.update_keys()
        client.change_connection_id()
        client.ping()
        assert client.fetch("GET", "/small").body == SMALL


def test_migration(site: Site) -> None:
    with serving(site) as server, Client(("127.0.0.1", server.port), ca=site.ca) as client:
        assert client.fetch("GET", "/small").body == SMALL
        client.migrate()
        assert client.fetch("GET", "/large").body == LARGE
        assert len(server.connections) == 1


def test_proxy_loses_and_rebinds(site: Site) -> None:
    with (
        serving(site) as server,
        DatagramProxy(server.port, loss=0.02, duplicates=0.02, delay=0.001, jitter=0.002) as proxy,
        Client(("127.0.0.1", proxy.port), ca=site.ca) as client,
    ):
        assert client.fetch("GET", "/large").body == LARGE
        assert proxy.dropped
        proxy.loss = 0.0
        proxy.rebind()
        assert client.fetch("GET", "/small").body == SMALL
        assert len(server.connections) == 1


def test_credit_that_is_withheld(site: Site) -> None:
    with (
        serving(site) as server,
        Client(("127.0.0.1", server.port), ca=site.ca, max_data=100_000, max_stream_data=50_000) as client,
    ):
        client.fetch("GET", "/small")
        client.withhold_credit()
        stream = client.begin("GET", "/large")
        client.until(lambda: len(client.exchanges[stream].body) > 40_000)
        client.ping()
        assert len(client.exchanges[stream].body) <= 50_000


def test_silence(site: Site) -> None:
    with serving(site) as server, DatagramProxy(server.port, silent=True) as proxy:
        with Client(("127.0.0.1", proxy.port), ca=site.ca, wait=False) as client:
            client.until(lambda: proxy.dropped >= 2)
            assert client.handshake is None
            proxy.silent = False
            client.until(lambda: client.handshake)
            assert client.fetch("GET", "/small").body == SMALL
        assert len(server.requests) == 1


@pytest.mark.parametrize("name", SERVERS)
def test_servers_of_other_projects(site: Site, name: str) -> None:
    with SERVERS[name](site) as server, Client(("127.0.0.1", server.port), ca=site.ca) as client:
        assert client.fetch("GET", "/small").body == SMALL
        assert client.fetch("GET", "/large").body == LARGE
        if server.has_echo:
            assert client.fetch("POST", "/echo", b"x" * 100_000).body == b"x" * 100_000


def test_client_of_quic_go(site: Site) -> None:
    with serving(site) as server:
        found = quic_go_get(f"https://127.0.0.1:{server.port}/small", ca=site.ca, count=20, concurrent=4)
        assert [(one["status"], one["proto"], one["length"]) for one in found] == [(200, "HTTP/3.0", 5)] * 20
        (echoed,) = quic_go_get(f"https://127.0.0.1:{server.port}/echo", ca=site.ca, body=200_000)
        assert echoed["length"] == 200_000


def test_curl(site: Site) -> None:
    with serving(site) as server:
        found = curl(f"https://127.0.0.1:{server.port}/small", ca=site.ca)
        assert (found.status, found.version, found.body) == (200, "3", SMALL)
