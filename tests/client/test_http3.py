"""HTTP/3 in both clients, against servers of other projects."""

# ruff: noqa: F401, F811 - the fixture `backend` is imported

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import towline
import towline.httpx
import towline.httpx2

from tests.support.client_backends import rss_bytes
from tests.support.client_fixtures import Make, backend, check_forking, run_program
from tests.support.http3.backends import Origin, alone, http3_only, server_context
from tests.support.http3.client import HAS_INTERIM
from tests.support.http3.datagram_proxy import DatagramProxy
from tests.support.http3.server import Server, serving
from tests.support.http3.servers import SERVERS, Site
from tests.support.interop_app import LARGE, SMALL
from tests.support.nightly import IS_NIGHT
from tests.support.server_processes import MAX_WAIT
from tests.support.waiting import holds_once, until, until_async

pytest.importorskip("aioquic", reason="aioquic is not installed")

H3_REQUEST_CANCELLED = 0x10C


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def server(site: Site) -> Iterator[Server]:
    with serving(site) as running:
        yield running


@pytest.fixture
def make(backend: Make, server: Server, site: Site) -> Make:
    """Makes clients of the server in this process."""

    def make(**options: Any) -> Any:
        return http3_only(backend, server.port, site.ca, **options)

    return make


@pytest.mark.parametrize("name", SERVERS)
def test_servers_of_other_projects(backend: Make, site: Site, name: str) -> None:
    with SERVERS[name](site) as running:
        caller = http3_only(backend, running.port, running.trust)
        responses = caller.concurrently("GET", "/small", 100)
        assert {(response.http_version, response.content) for response in responses} == {("HTTP/3", SMALL)}
        assert {response.content for response in caller.concurrently("GET", "/large", 5)} == {LARGE}
        assert caller.get("/absent").status_code == 404
        head = caller.call("HEAD", "/small")
        assert (head.status_code, head.content) == (200, b"")
        if running.has_echo:
            body = bytes(range(256)) * 2_000
            assert caller.call("POST", "/echo", content=body).content == body
            assert caller.call("POST", "/echo", content=caller.body(b"one", b"two" * 50_000)).content == (
                b"one" + b"two" * 50_000
            )


def test_all_calls_share_one_connection(make: Make, server: Server) -> None:
    caller = make()
    assert {response.content for response in caller.concurrently("GET", "/small", 100)} == {SMALL}
    assert caller.client.pool_status() == {"active": 0, "idle": 1, "connecting": 0, "waiting": 0}
    assert len(server.connections) == 1


def test_a_response_has_the_facts_of_its_connection(
    make: Make, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("towline.client").setLevel(logging.DEBUG)
    first, second = (caller := make()).get("/small"), caller.get("/small")
    assert (first.http_version, first.reused, second.reused) == ("HTTP/3", False, True)
    assert first.timings["quic"] > 0
    assert "tls" not in first.timings
    assert "connect" not in first.timings
    assert "quic" not in second.timings
    assert any("QUIC " in record.getMessage() for record in caplog.records)
    assert '"HTTP/3 200' in caplog.text


def test_parts_of_a_response(make: Make) -> None:
    caller, seen = make(), []
    with caller.opened("GET", "/trailers") as response:
        assert response.read() == SMALL
        assert dict(response.trailers) == {"x-after": "yes"}
    if HAS_INTERIM:
        hinted = caller.get("/early-hints", extensions={"on_informational": lambda *head: seen.append(head)})
        assert hinted.content == SMALL
        assert seen
        assert seen[0][0] == 103
    assert caller.get("/status/204").status_code == 204
    names = caller.get("/headers", headers={"X-Name": "value"}).text.splitlines()
    assert "x-name: value" in names
    assert not [name for name in names if name.startswith(("connection:", "host:", "transfer-encoding:"))]


def test_a_stream_that_fails_concerns_no_other(make: Make, server: Server) -> None:
    caller = make(retries=None)
    slow = caller.pieces("/slow", "bytes")
    with pytest.raises(towline.RemoteProtocolError, match="RFC 9114"):
        caller.get("/reset/258")
    with pytest.raises(towline.RemoteProtocolError):
        caller.get("/truncated")
    with pytest.raises(towline.RemoteProtocolError, match=r"did not process|REJECTED"):
        caller.call("POST", "/refuse", content=b"x")
    assert b"".join(slow) == SMALL
    assert caller.get("/small").content == SMALL
    assert len(server.connections) == 1


def test_a_rejected_request_is_sent_again(make: Make, server: Server) -> None:
    with pytest.raises(towline.RemoteProtocolError) as failed:
        make().call("POST", "/refuse", content=b"x")
    assert failed.value.retryable
    # The first time and six more.
    assert [request.path for request in server.requests] == ["/refuse"] * 7


def test_goaway_moves_later_calls_to_another_connection(make: Make, server: Server) -> None:
    caller = make()
    for _ in range(3):
        assert caller.get("/goaway").content == SMALL
        caller.rest(0.05)
    assert len(server.connections) > 1


def test_a_connection_that_the_server_closes(make: Make, server: Server) -> None:
    caller = make(retries=None)
    assert caller.get("/small").content == SMALL
    with pytest.raises((towline.RemoteProtocolError, towline.NetworkError)):
        caller.get("/close/258")
    assert caller.get("/small").content == SMALL
    assert len(server.connections) == 2


def test_a_timeout_ends_its_stream_only(make: Make, server: Server) -> None:
    caller = make()
    slow = caller.pieces("/slow", "bytes")
    with pytest.raises(towline.ReadTimeout):
        caller.get("/silent", timeout=towline.Timeout(read=0.2))
    assert b"".join(slow) == SMALL
    silent = next(request for request in server.requests if request.path == "/silent")
    until(lambda: silent.stopped is not None or silent.reset is not None, MAX_WAIT)
    assert silent.stopped == H3_REQUEST_CANCELLED
    assert caller.get("/small").content == SMALL


def test_closing_a_body_stops_its_stream(make: Make, server: Server) -> None:
    caller = make()
    unread = caller.pieces("/large", "bytes")
    next(unread)
    for _ in range(5):
        closed = caller.pieces("/large", "bytes")
        next(closed)
        closed.close()
    assert sum(map(len, unread)) < len(LARGE)
    assert caller.get("/small").content == SMALL
    assert len(server.connections) == 1


def test_cancelled_tasks_do_not_affect_others(server: Server, site: Site) -> None:
    async def main() -> None:
        async with towline.AsyncClient(**alone(server.port, site.ca)) as client:
            await client.get("/small")
            paths = ["/silent", "/slow"] * 20
            tasks = [asyncio.create_task(client.get(path)) for path in paths]
            await until_async(lambda: len(server.requests) == 1 + len(paths))
            for task in tasks[::2]:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(result, asyncio.CancelledError) for result in done[::2])
            assert {result.content for result in done[1::2]} == {SMALL}  # type: ignore[union-attr]
            await until_async(lambda: sum(one.stopped is not None for one in server.requests) == 20)
            assert client.pool_status()["idle"] == 1
            # The slots are free again, however often calls are cancelled.
            for _ in range(300):
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(client.get("/silent"), 0.001)
            assert (await client.get("/small")).content == SMALL

    asyncio.run(main())


def test_loops_one_after_another_and_at_once(server: Server, site: Site) -> None:
    client = towline.AsyncClient(**alone(server.port, site.ca))

    async def calls() -> set[bytes]:
        responses = await asyncio.gather(*(client.get("/small") for _ in range(20)))
        return {response.content for response in responses}

    for _ in range(3):
        assert asyncio.run(calls()) == {SMALL}
    found: list[set[bytes]] = []
    threads = [threading.Thread(target=lambda: found.append(asyncio.run(calls()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [{SMALL}] * 4
    asyncio.run(client.aclose())


def test_threads_share_a_connection(server: Server, site: Site) -> None:
    with towline.Client(**alone(server.port, site.ca)) as client:
        client.get("/small")
        bodies: list[bytes] = []

        def work() -> None:
            bodies.extend(client.get("/small").content for _ in range(50))

        threads = [threading.Thread(target=work) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert bodies == [SMALL] * 800
        assert len(server.connections) == 1


def test_a_slow_reader_holds_its_window_and_stops_no_other(backend: Make, site: Site) -> None:
    with SERVERS["aioquic"](site) as running:
        caller = http3_only(backend, running.port, running.trust, max_stream_window=65_536)
        assert caller.get("/small").content == SMALL
        before = rss_bytes()
        pieces = [caller.pieces("/large", "bytes", 1000) for _ in range(20)]
        read = [[next(each)] for each in pieces]
        assert len(caller.get("/large").content) == len(LARGE)
        caller.rest(0.3)
        # 20 bodies of 3 MB: the window, what is read ahead, and what is held to make pieces, of each.
        assert rss_bytes() - before < 20 * 4 * 65_536 + 8 * 1024 * 1024
        for each, bodies in zip(pieces, read, strict=True):
            bodies.extend(each)
            assert b"".join(bodies) == LARGE


def test_a_large_window_is_still_bounded(backend: Make, site: Site) -> None:
    with SERVERS["aioquic"](site) as running:
        caller = http3_only(backend, running.port, running.trust)
        with caller.opened("GET", "/large") as response:
            first = response.read(10)
            caller.rest(0.3)
            assert response.buffered <= 1024 * 1024 + 2 * 65_536
            rest = b""
            while piece := response.read(100_000):
                rest += piece
            assert first + rest == LARGE


def test_losses_cost_time_and_nothing_else(make: Make, server: Server, site: Site, backend: Make) -> None:
    loss, jitter = (0.1, 0.01) if IS_NIGHT else (0.03, 0.002)
    with DatagramProxy(server.port, loss=loss, duplicates=0.1, jitter=jitter) as proxy:
        caller = http3_only(backend, proxy.port, site.ca, timeout=60)
        assert {response.content for response in caller.concurrently("GET", "/small", 50)} == {SMALL}
        assert caller.get("/large").content == LARGE
        body = bytes(range(256)) * 1_000
        assert caller.call("POST", "/echo", content=body).content == body
        assert proxy.dropped > 0


def test_nat_rebinding_does_not_disturb(server: Server, site: Site, backend: Make) -> None:
    with DatagramProxy(server.port) as proxy:
        caller = http3_only(backend, proxy.port, site.ca)
        for _ in range(3):
            assert caller.get("/small").content == SMALL
            proxy.rebind()
        assert caller.get("/small").content == SMALL
        assert len(server.connections) == 1


def test_retry_and_version(site: Site, backend: Make) -> None:
    with serving(site, retry=True) as validating:
        assert http3_only(backend, validating.port, site.ca).get("/small").content == SMALL


def test_a_server_that_dies_ends_its_calls(backend: Make, site: Site) -> None:
    with SERVERS["aioquic"](site) as running:
        caller = http3_only(backend, running.port, running.trust, retries=None)
        assert caller.get("/small").content == SMALL
        killer = threading.Timer(0.3, running.process.kill)
        killer.start()
        started = time.monotonic()
        with pytest.raises(towline.NetworkError):
            caller.get("/silent", timeout=60)
        assert time.monotonic() - started < 15
        with pytest.raises(towline.ConnectError):
            caller.get("/small")


def test_a_server_that_restarts_without_a_word_loses_one_connection(backend: Make, site: Site) -> None:
    with SERVERS["aioquic"](site) as running:
        caller = http3_only(backend, running.port, running.trust)
        assert caller.get("/small").content == SMALL
        running.process.kill()
        running.process.wait()
    # The new process knows nothing of the connection, and sends no stateless reset.
    with SERVERS["aioquic"](site):
        with pytest.raises(towline.ReadTimeout):
            caller.get("/small", timeout=towline.Timeout(read=0.5))
        assert caller.get("/small").content == SMALL


def test_a_misdirected_request_goes_to_the_origin(server: Server, site: Site, backend: Make) -> None:
    """421 from the alternative (RFC 9110 15.5.20), which has been told its name (`Alt-Used`, RFC 7838 5)."""
    with Origin(server_context(site.key, site.cert), f'h3=":{server.port}"; ma=60') as origin:

        def on_alternative(**options: Any) -> Any:
            """A new client that knows the alternative and has reached it. On a busy machine TCP may win the race."""
            verify = towline.TLS(trust=site.ca)
            caller = backend(http3=True, verify=verify, base_url=origin.url, **options)
            assert caller.get("/").http_version == "HTTP/1.1"
            assert caller.get("/small").http_version == "HTTP/3"
            assert server.requests[-1].fields["alt-used"] == f"127.0.0.1:{server.port}"
            assert server.requests[-1].fields[":authority"] == origin.url.removeprefix("https://")
            return caller

        for method, content in (("GET", None), ("POST", b"x" * 100_000)):
            caller = holds_once(on_alternative)
            response = caller.call(method, "/status/421", content=content)
            assert (response.status_code, response.http_version, response.content) == (200, "HTTP/1.1", SMALL)
            assert server.requests[-1].path == "/status/421"
            assert origin.targets[-1] == b"/status/421"
        # The body cannot be sent again, so the response is the program's, and the next call uses the origin.
        caller = holds_once(on_alternative)
        response = caller.call("POST", "/status/421", content=caller.body(b"one", b"two"))
        assert (response.status_code, response.http_version) == (421, "HTTP/3")
        assert caller.get("/next").http_version == "HTTP/1.1"
        # A header of the program's own is kept.
        caller = holds_once(on_alternative)
        caller.get("/small", headers={"Alt-Used": "own"})
        assert server.requests[-1].fields["alt-used"] == "own"


def test_the_origin_itself_is_no_alternative(make: Make, server: Server) -> None:
    response = make().get("/status/421")
    assert (response.status_code, response.http_version) == (421, "HTTP/3")
    assert [request.path for request in server.requests] == ["/status/421"]
    assert "alt-used" not in server.requests[0].fields


def test_alt_svc_moves_calls_to_http3_and_loses_none(
    server: Server,
    site: Site,
    backend: Make,
) -> None:
    context = server_context(site.key, site.cert)
    with Origin(context, f'h3=":{server.port}"; ma=60') as origin:

        def first_calls() -> Any:
            """The first calls of a new client. On a busy machine TCP may win the race with QUIC."""
            caller = backend(http3=True, verify=towline.TLS(trust=site.ca), base_url=origin.url)
            server.requests.clear()
            origin.targets.clear()
            versions = [caller.get("/small").http_version for _ in range(5)]
            assert versions == ["HTTP/1.1"] + ["HTTP/3"] * 4
            assert origin.targets == [b"/small"]
            return caller

        caller = holds_once(first_calls)
        responses = caller.concurrently("GET", "/small", 50)
        assert {(response.http_version, response.content) for response in responses} == {("HTTP/3", SMALL)}
        assert {request.fields[":authority"] for request in server.requests} == {
            origin.url.removeprefix("https://")
        }
        # Under load, from the first call on: each request is served exactly once.
        fresh = backend(http3=True, verify=towline.TLS(trust=site.ca), base_url=origin.url)
        before = len(server.requests) + len(origin.targets)
        for _ in range(10):
            responses = fresh.concurrently("POST", "/echo", 20, content=b"hello")
            assert {response.content for response in responses} == {b"hello"}
        assert len(server.requests) + len(origin.targets) - before == 200


def test_http3_that_falls_silent_gives_way_to_tcp(server: Server, site: Site, backend: Make) -> None:
    context = server_context(site.key, site.cert)
    with DatagramProxy(server.port) as proxy, Origin(context, f'h3=":{proxy.port}"') as origin:
        caller = backend(http3=True, verify=towline.TLS(trust=site.ca), base_url=origin.url)
        caller.get("/small")
        assert caller.get("/small").http_version == "HTTP/3"
        proxy.silent = True
        with pytest.raises(towline.ReadTimeout):
            caller.get("/small", timeout=towline.Timeout(read=0.3))
        # The silent connection carries no further call, and QUIC loses the race.
        assert caller.get("/small").http_version == "HTTP/1.1"
        assert caller.get("/small").reused


def test_the_drop_ins(server: Server, site: Site) -> None:
    for package in (towline.httpx, towline.httpx2):
        options: Any = {"verify": site.ca, "http1": False, "http3": True}
        with package.Client(transport=package.Transport(**options)) as client:
            events: list[str] = []
            response = client.get(
                f"https://127.0.0.1:{server.port}/small",
                extensions={"trace": lambda name, info, events=events: events.append(name)},
            )
            assert (response.http_version, response.content) == ("HTTP/3", SMALL)
            assert "connection.connect_quic.complete" in events
            assert "http3.receive_response_headers.complete" in events

        async def asynchronous(package: Any = package, options: Any = options) -> Any:
            async with package.AsyncClient(transport=package.AsyncTransport(**options)) as client:
                return await client.get(f"https://127.0.0.1:{server.port}/small")

        assert asyncio.run(asynchronous()).http_version == "HTTP/3"


def test_the_command_line(server: Server, site: Site) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "towline",
            "get",
            "--http3",
            "--cacert",
            site.ca,
            "--timings",
            "-i",
            f"https://127.0.0.1:{server.port}/small",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith("HTTP/3 200")
    assert done.stdout.endswith("hello")
    assert "QUIC" in done.stderr
    assert "TLS" not in done.stderr


def test_a_forked_child_uses_a_connection_of_its_own(server: Server, site: Site) -> None:
    options = f"http1=False, http3=True, verify=towline.TLS(trust={site.ca!r})"
    check_forking(f"https://127.0.0.1:{server.port}", options, "/small")


def test_control_c_ends_one_call_and_the_connection_stays_open(server: Server, site: Site) -> None:
    program = """
import os, signal, sys, threading, time, towline
signal.signal(signal.SIGINT, signal.default_int_handler)
client = towline.Client(http1=False, http3=True, base_url=sys.argv[1], verify=towline.TLS(trust=sys.argv[2]))
client.get("/small")
other = threading.Thread(target=lambda: client.get("/silent", timeout=20.0), daemon=True)
other.start()
threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
begun = time.monotonic()
try:
    client.get("/silent", timeout=20.0)
except KeyboardInterrupt:
    assert time.monotonic() - begun < 10
    assert client.get("/small").reused
    print("interrupted")
"""
    url = f"https://127.0.0.1:{server.port}"
    run_program(program, url, site.ca, says="interrupted\n", timeout=2 * MAX_WAIT)


def test_nothing_is_left_open(server: Server, site: Site) -> None:
    def udp_sockets() -> int:
        count = 0
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        return count

    before = udp_sockets()
    for _ in range(3):
        with towline.Client(**alone(server.port, site.ca)) as client:
            client.get("/small")
    until(lambda: udp_sockets() <= before, MAX_WAIT)


def test_names_that_the_certificate_has_not(
    server: Server, site: Site, backend: Make, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    caller = http3_only(backend, server.port, Site(other).ca, retries=0)
    with pytest.raises(towline.TLSError, match="TLS failed"):
        caller.get("/small")
    named = http3_only(backend, server.port, site.ca, resolve={"elsewhere.example": "127.0.0.1"}, retries=0)
    with pytest.raises(towline.TLSError):
        named.get(f"https://elsewhere.example:{server.port}/small")
    assert named.get("/small").content == SMALL
