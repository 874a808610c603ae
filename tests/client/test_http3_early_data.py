"""Early data (0-RTT) in both clients: which calls are sent in it, and what happens when it is refused, lost or too early."""

# ruff: noqa: F401, F811 - the fixture `backend` is imported

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import towline

from tests.support.client_fixtures import Make, backend
from tests.support.early_data_app import App
from tests.support.http3.backends import Origin, http3_only, server_context
from tests.support.http3.connected import serving as serving_own
from tests.support.http3.datagram_proxy import DatagramProxy
from tests.support.http3.server import Server, serving
from tests.support.http3.servers import Site, quic_go
from tests.support.interop_app import SMALL
from tests.support.waiting import until

pytest.importorskip("aioquic", reason="aioquic is not installed")

EXPIRY = 0.05
"""Idle connections are closed after this time, so that the next call begins a new one."""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def server(site: Site) -> Iterator[Server]:
    with serving(site, early=True) as running:
        yield running


def early_client(backend: Make, port: int, ca: str, **options: Any) -> Any:
    """A client that has tickets, and no connection."""
    limits = towline.Limits(keepalive_expiry=EXPIRY)
    caller = http3_only(backend, port, ca, early_data=True, limits=limits, **options)
    first = caller.get("/small")
    assert (first.status_code, first.early_data) == (200, False)
    caller.rest(4 * EXPIRY)
    return caller


def test_safe_calls_are_sent_early(backend: Make, server: Server, site: Site) -> None:
    caller = early_client(backend, server.port, site.ca)
    for method in ("GET", "HEAD", "OPTIONS"):
        response = caller.call(method, "/small")
        assert (response.status_code, response.early_data, response.http_version) == (200, True, "HTTP/3")
        # On the same connection, after its handshake.
        later = caller.get("/small")
        assert (later.content, later.early_data, later.reused) == (SMALL, False, True)
        caller.rest(4 * EXPIRY)
    found = [(request.fields[":method"], request.early) for request in server.requests[1:]]
    assert found == [
        ("GET", True),
        ("GET", False),
        ("HEAD", True),
        ("GET", False),
        ("OPTIONS", True),
        ("GET", False),
    ]
    assert not any("early-data" in request.fields for request in server.requests)


def test_other_calls_wait_for_the_handshake(backend: Make, server: Server, site: Site) -> None:
    caller = early_client(backend, server.port, site.ca)
    calls = [
        lambda: caller.call("POST", "/echo", content=b"body"),
        lambda: caller.call("POST", "/echo"),
        lambda: caller.call("GET", "/echo", content=b"body"),
        lambda: caller.call("POST", "/echo", content=caller.body(b"one", b"two")),
    ]
    bodies = [b"body", b"", b"body", b"onetwo"]
    for call, body in zip(calls, bodies, strict=True):
        response = call()
        assert (response.content, response.early_data) == (body, False)
        caller.rest(4 * EXPIRY)
    assert [(request.early, bytes(request.body)) for request in server.requests[1:]] == [
        (False, body) for body in bodies
    ]


def test_off_by_default(backend: Make, server: Server, site: Site) -> None:
    limits = towline.Limits(keepalive_expiry=EXPIRY)
    caller = http3_only(backend, server.port, site.ca, limits=limits)
    for _ in range(2):
        assert not caller.get("/small").early_data
        caller.rest(4 * EXPIRY)
    assert [request.early for request in server.requests] == [False, False]


def test_many_calls_at_once(backend: Make, server: Server, site: Site) -> None:
    caller = early_client(backend, server.port, site.ca)
    responses = caller.concurrently("GET", "/small", 50)
    assert {response.content for response in responses} == {SMALL}
    assert any(response.early_data for response in responses)
    caller.rest(4 * EXPIRY)
    assert {
        response.content for response in caller.concurrently("POST", "/echo", 20, content=b"x" * 9_000)
    } == {b"x" * 9_000}
    assert not any(request.early for request in server.requests if request.fields[":method"] == "POST")
    assert len(server.requests) == 1 + 50 + 20


@pytest.mark.parametrize("count", [1, 30])
def test_refused_early_data_is_sent_again(backend: Make, server: Server, site: Site, count: int) -> None:
    caller = early_client(backend, server.port, site.ca)
    server._tickets.clear()  # as by a restart
    before = len(server.connections)
    responses = caller.concurrently("GET", "/small", count)
    assert {(response.content, response.early_data) for response in responses} == {(SMALL, False)}
    assert len(server.requests) == 1 + count
    assert not any(request.early for request in server.requests)
    # The connection that was begun with it is used.
    assert len(server.connections) == before + 1


def test_a_lost_answer_costs_a_second_and_no_call(backend: Make, server: Server, site: Site) -> None:
    with DatagramProxy(server.port) as proxy:
        caller = early_client(backend, proxy.port, site.ca)
        proxy.silent = True
        threading.Timer(1.5, lambda: setattr(proxy, "silent", False)).start()
        started = time.monotonic()
        response = caller.get("/small")
        assert (response.content, response.early_data) == (SMALL, False)
        assert 1.0 < time.monotonic() - started < 8.0
        assert len(server.requests) == 2


def test_losses_cost_no_call(backend: Make, server: Server, site: Site) -> None:
    """At least ten times, and until the server has read early data, which losses and a busy machine can prevent."""
    number = 0
    with DatagramProxy(server.port, loss=0.05, delay=0.005, jitter=0.005) as proxy:
        caller = early_client(backend, proxy.port, site.ca)
        while number < 10 or (number < 40 and not any(request.early for request in server.requests)):
            assert caller.get("/small").content == SMALL
            caller.rest(4 * EXPIRY)
            body = b"%d" % number
            assert caller.call("POST", "/echo", content=body).content == body
            caller.rest(4 * EXPIRY)
            number += 1
    posts = [bytes(request.body) for request in server.requests if request.fields[":method"] == "POST"]
    assert sorted(posts) == sorted(b"%d" % sent for sent in range(number))
    assert any(request.early for request in server.requests)


def test_a_server_that_has_lost_http3_is_called_over_tcp(backend: Make, site: Site) -> None:
    """Early data to a port that is silent now: the call goes to TCP."""
    with serving(site, early=True) as server, DatagramProxy(server.port) as proxy:
        with Origin(server_context(site.key, site.cert), f'h3=":{proxy.port}"; ma=3600') as origin:
            caller = backend(
                http3=True,
                early_data=True,
                verify=towline.TLS(trust=site.ca),
                base_url=origin.url,
                limits=towline.Limits(keepalive_expiry=EXPIRY),
            )
            for _ in range(8):
                caller.get("/small")
                caller.rest(4 * EXPIRY)
                # The blocking client does not wait for the ticket that comes after a response to early data.
                if any(request.early for request in server.requests) and not server.requests[-1].early:
                    break
            assert any(request.early for request in server.requests)
            proxy.silent = True
            response = caller.get("/small")
            assert (response.http_version, response.content) == ("HTTP/1.1", b"hello")


def early_to_the_application(caller: Any, app: Any, path: str) -> Any:
    """Call until the server has read the request before the end of the handshake, which a busy machine can prevent."""
    for _ in range(5):
        caller.rest(4 * EXPIRY)
        response = caller.get(path)
        if ("GET", path, ("1",)) in app.requests[-2:]:
            break
    return response


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_too_early_is_sent_again_after_the_handshake(backend: Make, tmp_path: Path, kind: str) -> None:
    app = App()
    with serving_own(kind, app.of(kind), tmp_path, http3_early_data=True) as (server, certificates):
        caller = early_client(backend, server.port, str(certificates.ca))
        early = early_to_the_application(caller, app, "/early")
        assert (early.content, early.early_data) == (b"GET /early 1 0", True)
        response = early_to_the_application(caller, app, "/refuse")
        assert (response.status_code, response.content) == (200, b"GET /refuse  0")
        assert not response.early_data
        assert app.requests[-2:] == [("GET", "/refuse", ("1",)), ("GET", "/refuse", ())]
        # A second 425 is the response.
        assert early_to_the_application(caller, app, "/always").status_code == 425
        assert app.requests[-2:] == [("GET", "/always", ("1",)), ("GET", "/always", ())]
        # Without early data the first one is.
        assert caller.get("/always").status_code == 425
        assert app.requests[-2:] == [("GET", "/always", ()), ("GET", "/always", ())]


def test_streamed_responses_and_their_tls(backend: Make, server: Server, site: Site) -> None:
    caller = early_client(backend, server.port, site.ca)
    with caller.opened("GET", "/large") as response:
        assert response.early_data
        assert len(response.read()) > 100_000


def test_quic_go(backend: Make, site: Site) -> None:
    with quic_go(site, "-early") as running:
        caller = early_client(backend, running.port, running.trust)
        response = caller.get("/small")
        assert (response.content, response.early_data) == (SMALL, True)
