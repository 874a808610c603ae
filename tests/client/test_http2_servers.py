"""The client over HTTP/2 with other servers: downloads, uploads, many at once, and how connections end."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import towline
from towline.bench.subjects.ports import free_port

from tests.support.http2_clients import Open, h2_client  # noqa: F401
from tests.support.interop_app import LARGE, SMALL
from tests.support.interop_servers import SERVERS, Running, Site, nginx
from tests.support.server_processes import MAX_WAIT

UPLOAD = bytes(reversed(range(256))) * 4096


@pytest.fixture(params=[True, False], ids=["tls", "plain"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    return Site(tmp_path, free_port(), request.param)


def opened(h2_client: Open, server: Running, **options: Any) -> Any:  # noqa: F811
    return h2_client(base_url=server.url, verify=server.trust, **options)


@pytest.mark.parametrize("name", SERVERS)
def test_exchanges_of_every_kind(h2_client: Open, site: Site, name: str) -> None:  # noqa: F811
    with SERVERS[name](site) as server:
        backend = opened(h2_client, server)
        small = backend.get("/small")
        assert (small.http_version, small.status_code, small.content) == ("HTTP/2", 200, SMALL)
        assert backend.get("/absent").status_code == 404
        head = backend.call("HEAD", "/large")
        assert (head.headers["content-length"], head.content) == (str(len(LARGE)), b"")
        responses = backend.at_once(*(("GET", path, {}) for path in ["/small"] * 100 + ["/large"] * 5))
        assert {response.content for response in responses} == {SMALL, LARGE}
        with backend.opened("GET", "/large") as response:
            # The first response is not read, and the others complete.
            assert [response.content for response in backend.at_once(*[("GET", "/large", {})] * 3)] == [
                LARGE
            ] * 3
            assert response.buffered <= backend.client._options.stream_window
            assert response.read() == LARGE
        with backend.opened("GET", "/large") as response:
            assert LARGE.startswith(response.read(10))
        assert backend.get("/small").content == SMALL


@pytest.mark.parametrize("name", [name for name in SERVERS if name != "nginx"])
def test_uploads_are_echoed(h2_client: Open, site: Site, name: str) -> None:  # noqa: F811
    with SERVERS[name](site) as server:
        assert server.echo is not None
        backend = opened(h2_client, server)
        pieces = [UPLOAD[at : at + 50_000] for at in range(0, len(UPLOAD), 50_000)]
        calls = [
            ("POST", server.echo, {"content": content})
            for content in (UPLOAD, backend.body(*pieces), b"x", b"")
        ]
        responses = backend.at_once(*calls)
        assert [response.content for response in responses] == [UPLOAD, UPLOAD, b"x", b""]


def test_uploads_to_nginx(h2_client: Open, site: Site) -> None:  # noqa: F811
    with nginx(site) as server:
        backend = opened(h2_client, server)
        responses = backend.at_once(
            ("PUT", "/up/whole", {"content": UPLOAD}),
            ("PUT", "/up/pieces", {"content": backend.body(UPLOAD[:300_000], UPLOAD[300_000:])}),
        )
        assert [response.status_code for response in responses] == [201, 201]
        assert {backend.get(path).content for path in ("/up/whole", "/up/pieces")} == {UPLOAD}
        # Refused before the body was received: the response counts, not the reset after it (RFC 9113 8.1).
        for _ in range(3):
            assert backend.call("PUT", "/up/large", content=UPLOAD * 4).status_code == 413
        assert backend.get("/small").content == SMALL


def test_goaway_every_few_requests(h2_client: Open, site: Site) -> None:  # noqa: F811
    """nginx sends GOAWAY after that many requests, and refuses those in flight (RFC 9113 6.8)."""
    with nginx(site, "keepalive_requests 20; http2_max_concurrent_streams 5;") as server:
        backend = opened(h2_client, server)
        for _ in range(5):
            responses = backend.at_once(*(("GET", "/small", {}) for _ in range(40)))
            assert {getattr(response, "content", response) for response in responses} == {SMALL}
        for _ in range(30):
            assert backend.get("/small").content == SMALL


def test_a_server_that_is_reloaded_under_load(h2_client: Open, site: Site) -> None:  # noqa: F811
    with nginx(site) as server:
        backend = opened(h2_client, server)
        assert server.process is not None
        before = (site.folder / "log").read_text().count("start worker process ")
        for turn in itertools.count():
            if turn < 3:
                server.process.send_signal(signal.SIGHUP)
            responses = backend.at_once(*(("GET", ("/small", "/large")[n % 2], {}) for n in range(20)))
            assert {getattr(response, "content", response) for response in responses} == {SMALL, LARGE}
            if turn >= 3 and (site.folder / "log").read_text().count("start worker process ") > before:
                break


def test_a_server_that_closes_idle_connections(h2_client: Open, site: Site) -> None:  # noqa: F811
    with nginx(site, "keepalive_timeout 1s;") as server:
        backend = opened(h2_client, server)
        assert backend.get("/small").content == SMALL
        assert backend.client.pool_status()["idle"] == 1
        # The blocking client does not notice it before the next call.
        is_over = (
            (lambda: backend.client.pool_status()["idle"] == 0)
            if backend.name == "async"
            else (lambda: not is_connected(site.port))
        )
        wait_until(lambda: (backend.rest(0.02), is_over())[1])
        assert backend.call("PUT", "/up/after", content=backend.body(b"x")).status_code == 201


@pytest.mark.parametrize("name", ["nginx", "nghttpd"])
def test_a_server_that_is_restarted(h2_client: Open, site: Site, name: str) -> None:  # noqa: F811
    with SERVERS[name](site) as server:
        backend = opened(h2_client, server, retries=towline.Retry(connect=5, backoff=0.1))
        assert backend.get("/small").content == SMALL
        again = Site.__new__(Site)
        again.__dict__.update(site.__dict__)
    if name == "nginx":
        (site.folder / "tmp").rename(site.folder / "tmp-before")
    with SERVERS[name](again):
        assert backend.get("/small").content == SMALL


def is_connected(port: int) -> bool:
    """Some connection to that port has been closed by neither end (TCP_ESTABLISHED)."""
    rows = (line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:])
    return any(row[2].endswith(f":{port:04X}") and row[3] == "01" for row in rows)


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + MAX_WAIT
    while not condition():
        assert time.monotonic() < until
