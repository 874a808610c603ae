"""HTTP/3 between Towline's clients and its server."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import towline

from tests.support.client_backends import rss_bytes
from tests.support.client_fixtures import Make, backend
from tests.support.http3.backends import alone, http3_only
from tests.support.http3.servers import Running, Site, run
from tests.support.interop_app import LARGE, SMALL
from tests.support.server_processes import MAX_WAIT
from tests.support.waiting import holds_once, until
from tests.support.websocket_checks import check
from tests.support.websocket_clients import BACKENDS

# ruff: noqa: F401, F811 - the fixture `backend` is imported

pytest.importorskip("aioquic", reason="aioquic is not installed")

SOCKETS = "tests.support.websocket_checks:application"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@contextlib.contextmanager
def serving(site: Site, app: str = "tests.support.interop_app:app", *options: str) -> Iterator[Running]:
    bind = ["--bind", f"127.0.0.1:{site.port}", "--ssl-certfile", site.cert, "--ssl-keyfile", site.key]
    command = [sys.executable, "-m", "towline", "serve", app, "--http3", *bind, *options]
    with run(site, command) as running:
        yield running


def test_calls_of_every_size(site: Site, backend: Make) -> None:
    with serving(site) as running:
        caller = http3_only(backend, running.port, running.trust)
        responses = caller.concurrently("GET", "/small", 100)
        assert {(response.http_version, response.content) for response in responses} == {("HTTP/3", SMALL)}
        assert {response.content for response in caller.concurrently("GET", "/large", 10)} == {LARGE}
        body = bytes(range(256)) * 8_000
        assert {each.content for each in caller.concurrently("POST", "/echo", 5, content=body)} == {body}
        assert caller.call("POST", "/echo", content=caller.body(b"one", b"two" * 90_000)).content == (
            b"one" + b"two" * 90_000
        )
        assert caller.get("/absent").status_code == 404
        assert caller.call("HEAD", "/small").content == b""


def test_alt_svc_upgrades_on_the_same_port(site: Site, backend: Make) -> None:
    with serving(site) as running:
        trust = towline.TLS(trust=running.trust)
        for http2, first in ((True, "HTTP/2"), (False, "HTTP/1.1")):

            def first_calls(http2: bool = http2, first: str = first) -> None:
                """The first calls of a new client. On a busy machine TCP may win the race with QUIC."""
                caller = backend(http3=True, http2=http2, verify=trust, base_url=running.url)
                assert [caller.get("/small").http_version for _ in range(3)] == [first, "HTTP/3", "HTTP/3"]

            holds_once(first_calls)

        def many_calls() -> None:
            caller = backend(http3=True, verify=trust, base_url=running.url)
            for _ in range(10):
                responses = caller.concurrently("POST", "/echo", 30, content=b"body")
                lost = [response for response in responses if response.content != b"body"]
                if lost:
                    pytest.fail(f"{len(lost)} bodies are lost")
            assert {response.http_version for response in responses} == {"HTTP/3"}

        holds_once(many_calls)


def test_prior_knowledge(site: Site, backend: Make) -> None:
    with serving(site) as running:
        trust = towline.TLS(trust=running.trust)

        def first_calls() -> None:
            caller = backend(http3="prior", verify=trust, base_url=running.url)
            assert {each.http_version for each in caller.concurrently("GET", "/small", 20)} == {"HTTP/3"}

        holds_once(first_calls)


@pytest.mark.parametrize("kind", sorted(BACKENDS))
def test_websockets(site: Site, kind: str) -> None:
    with serving(site, SOCKETS) as running:
        client: Any = BACKENDS[kind](http1=False, http3=True, verify=towline.TLS(trust=running.trust))
        try:
            check(client, running.url.replace("https", "wss"), "3")
        finally:
            client.close()


def test_a_websocket_beside_calls_on_one_connection(site: Site) -> None:
    async def main(running: Running) -> None:
        trust = towline.TLS(trust=running.trust)
        async with towline.AsyncClient(http1=False, http3=True, verify=trust) as client:
            async with client.websocket(running.url.replace("https", "wss")) as ws:
                for number in range(20):
                    responses = await asyncio.gather(*(client.get(running.url) for _ in range(10)))
                    assert {(each.http_version, each.text) for each in responses} == {("HTTP/3", "3")}
                    await ws.send(f"message {number}")
                    assert await ws.recv(timeout=20) == f"message {number}"
            assert client.pool_status()["idle"] == 1

    with serving(site, SOCKETS) as running:
        asyncio.run(main(running))


def test_a_fast_server_and_slow_readers(site: Site, backend: Make) -> None:
    with serving(site) as running:
        caller = http3_only(backend, running.port, running.trust, max_stream_window=65_536)
        assert caller.get("/small").content == SMALL
        before = rss_bytes()
        pieces = [caller.pieces("/large", "bytes", 1000) for _ in range(30)]
        read = [[next(each)] for each in pieces]
        for _ in range(5):
            assert len(caller.get("/large").content) == len(LARGE)
        # 30 bodies of 3 MB are 92 MB.
        assert rss_bytes() - before < 30 * 4 * 65_536 + 8 * 1024 * 1024
        for each, bodies in zip(pieces, read, strict=True):
            bodies.extend(each)
            assert b"".join(bodies) == LARGE


def test_an_orderly_end_of_the_server_loses_no_request(site: Site) -> None:
    done, failed = 0, []
    with (
        serving(site) as running,
        towline.Client(**alone(running.port, running.trust)) as client,
    ):
        client.get("/small")
        stopping = threading.Event()
        lock = threading.Lock()

        def work() -> None:
            nonlocal done
            while True:
                try:
                    assert client.get("/small").content == SMALL
                except towline.ConnectError:
                    return  # nothing listens any more
                except towline.Error as error:
                    failed.append(error)
                    return
                with lock:
                    done += 1
                if stopping.is_set() and running.process.poll() is not None:
                    return

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        until(lambda: done >= 100 or failed, MAX_WAIT)
        running.process.terminate()
        stopping.set()
        running.process.wait(20)
        for thread in threads:
            thread.join(40)
    assert done >= 100
    assert not failed, failed
