"""HTTP/3 both ways with other implementations: our server with their clients, our client with their servers.

aioquic, qh3 and Hypercorn come from PyPI, quic-go from Go's modules; curl, nginx, Caddy and HAProxy with HTTP/3 from
scripts/http3_interop.sh.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import towline

from tests.support.http3.client import LIBRARIES, Client
from tests.support.http3.servers import SERVERS, Running, Site, curl, haproxy, ours, quic_go_get
from tests.support.interop_app import LARGE, SMALL

pytest.importorskip("aioquic", reason="aioquic is not installed")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with ours(Site(tmp_path_factory.mktemp("ours"))) as running:
        yield running


@pytest.mark.parametrize("library", LIBRARIES)
def test_python_clients(server: Running, library: str) -> None:
    with Client(("127.0.0.1", server.port), library=library, ca=server.trust) as client:
        assert client.fetch("GET", "/small").body == SMALL
        assert client.fetch("GET", "/small").fields["x-version"] == "3"
        assert client.fetch("GET", "/large").body == LARGE
        body = bytes(range(256)) * 4000
        assert client.fetch("POST", "/echo", body).body == body
        streams = client.begin_many(100, "GET", "/small")
        assert [one.body for one in client.finish(*streams)] == [SMALL] * 100


def test_quic_go(server: Running) -> None:
    found = quic_go_get(f"{server.url}/small", ca=server.trust, count=500, concurrent=20)
    assert [(one["status"], one["proto"], one["length"]) for one in found] == [(200, "HTTP/3.0", 5)] * 500
    found = quic_go_get(f"{server.url}/large", ca=server.trust, count=8, concurrent=4)
    assert {one["sha256"] for one in found} == {hashlib.sha256(LARGE).hexdigest()}
    (echoed,) = quic_go_get(f"{server.url}/echo", ca=server.trust, body=2_000_000)
    assert echoed["length"] == 2_000_000


def test_curl(server: Running, tmp_path: Path) -> None:
    small = curl(f"{server.url}/small", ca=server.trust)
    assert (small.status, small.version, small.body) == (200, "3", SMALL)
    assert curl(f"{server.url}/large", ca=server.trust).body == LARGE
    upload = tmp_path / "upload"
    upload.write_bytes(LARGE)
    echoed = curl(f"{server.url}/echo", "--data-binary", f"@{upload}", ca=server.trust)
    assert (echoed.version, echoed.body) == ("3", LARGE)
    assert curl(f"{server.url}/small", "--head", ca=server.trust).status == 200


def test_curl_after_alt_svc(server: Running, tmp_path: Path) -> None:
    cache = str(tmp_path / "alt-svc")
    first = curl(f"{server.url}/small", "--alt-svc", cache, ca=server.trust, only=False)
    assert (first.version, "alt-svc" in first.headers) == ("2", True)
    again = curl(f"{server.url}/small", "--alt-svc", cache, ca=server.trust, only=False)
    assert (again.version, again.body) == ("3", SMALL)


def test_haproxy_in_front(tmp_path: Path) -> None:
    """HAProxy has HTTP/3 towards clients, HTTP/1.1 towards our server."""
    with (
        ours(Site(tmp_path), tls=False) as backend,
        haproxy(Site(tmp_path), backend.port) as proxy,
        Client(("127.0.0.1", proxy.port), ca=proxy.trust) as client,
    ):
        assert client.fetch("GET", "/small").fields["x-version"] == "1.1"
        assert client.fetch("GET", "/large").body == LARGE
        assert client.fetch("POST", "/echo", LARGE).body == LARGE


@pytest.mark.parametrize("name", [name for name in SERVERS if name != "ours"])
def test_our_client(tmp_path: Path, name: str) -> None:
    with (
        SERVERS[name](Site(tmp_path)) as server,
        towline.Client(http1=False, http3=True, verify=server.trust) as client,
    ):
        small = client.get(f"{server.url}/small")
        assert (small.http_version, small.content) == ("HTTP/3", SMALL)
        assert client.get(f"{server.url}/large").content == LARGE
        assert client.head(f"{server.url}/small").status_code == 200
        if server.has_echo:
            assert client.post(f"{server.url}/echo", content=LARGE).content == LARGE
        with ThreadPoolExecutor(10) as threads:
            urls = [f"{server.url}/small"] * 200
            assert {one.content for one in threads.map(client.get, urls)} == {SMALL}


@pytest.mark.parametrize("name", ["nginx", "caddy", "haproxy", "hypercorn"])
def test_our_client_after_alt_svc(tmp_path: Path, name: str) -> None:
    with (
        SERVERS[name](Site(tmp_path)) as server,
        towline.Client(http2=True, http3=True, verify=server.trust) as client,
    ):
        assert client.get(f"{server.url}/small").http_version in ("HTTP/1.1", "HTTP/2")
        deadline = time.monotonic() + 20
        while (one := client.get(f"{server.url}/small")).http_version != "HTTP/3":
            assert time.monotonic() < deadline, one.headers
        assert one.content == SMALL
