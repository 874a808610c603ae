"""Early data (0-RTT) in the server: which requests get to the application, how, and what is done when a flight is repeated."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.early_data_app import App
from tests.support.feature_server import every_kind, samples
from tests.support.http3.client import Client
from tests.support.http3.connected import serving
from tests.support.http3.datagram_proxy import DatagramProxy
from tests.support.http3.servers import quic_go_get
from tests.support.waiting import until

pytest.importorskip("aioquic", reason="aioquic is not installed")


class EarlyServer:
    """A server that accepts early data, and clients of it."""

    def __init__(self, app: App, port: int, ca: str) -> None:
        self.app, self.port, self.ca = app, port, ca

    def client(self, port: int | None = None, **options: Any) -> Client:
        return Client(("127.0.0.1", port or self.port), ca=self.ca, **options)

    def ticket(self, port: int | None = None) -> Any:
        with self.client(port) as first:
            assert first.fetch("GET", "/first").status == 200
            first.until(lambda: first.tickets)
            return first.tickets[0]

    def metrics(self) -> dict[str, float]:
        with self.client() as client:
            page = client.fetch("GET", "/metrics").body.decode()
        found = samples(page)
        names = ("accepted", "refused", "requests", "held")
        return {name: found[f"towline_quic_early_{name}_total"] for name in names}


@contextlib.contextmanager
def early(kind: str, folder: Path, **options: Any) -> Iterator[EarlyServer]:
    app = App()
    options = {"http3_early_data": True, "metrics": True, **options}
    with serving(kind, app.of(kind), folder, **options) as (server, certificates):
        yield EarlyServer(app, server.port, str(certificates.ca))


@every_kind
def test_safe_requests_are_passed_with_the_header(kind: str, tmp_path: Path) -> None:
    with early(kind, tmp_path) as served:
        with served.client(ticket=served.ticket(), early=True) as again:
            sent = [("early-data", "0"), ("early-data", "7")]
            response = again.fetch("GET", "/early", headers=sent)
            assert (response.status, response.body) == (200, b"GET /early 1 0")
            assert again.early_data_accepted
            # After the handshake it is not early, and a header is that of a server before this one.
            assert again.fetch("GET", "/late").body == b"GET /late  0"
            assert again.fetch("GET", "/late", headers=[("early-data", "1")]).body == b"GET /late 1 0"
        counts = served.metrics()
        assert counts == {"accepted": 1, "refused": 0, "requests": 1, "held": 0}


@every_kind
def test_other_requests_wait_for_the_handshake(kind: str, tmp_path: Path) -> None:
    body = b"x" * 5_000
    with early(kind, tmp_path) as served:
        ticket = served.ticket()
        with DatagramProxy(served.port) as proxy:
            with served.client(proxy.port, ticket=ticket, early=True, wait=False) as again:
                proxy.deaf = True  # the server's flight does not arrive, so the handshake does not end
                streams = [again.begin("POST", "/posted"), again.begin("DELETE", "/deleted")]
                streams.append(again.begin("POST", "/upload", end=False))
                again.write(streams[2], body, end=True)
                streams.append(again.begin("GET", "/with-body", end=False))
                again.write(streams[3], b"body", end=True)
                streams.append(again.begin("GET", "/early"))
                until(lambda: ("GET", "/early", ("1",)) in served.app.requests)
                time.sleep(0.2)
                assert [path for _, path, _ in served.app.requests] == ["/first", "/early"]
                proxy.deaf = False
                responses = again.finish(*streams)
                assert [response.status for response in responses] == [200] * 5
                assert again.early_data_accepted
                assert responses[2].body == b"POST /upload  5000"
        assert sorted(served.app.requests[2:]) == [
            ("DELETE", "/deleted", ()),
            ("GET", "/with-body", ()),
            ("POST", "/posted", ()),
            ("POST", "/upload", ()),
        ]
        assert served.metrics() == {"accepted": 1, "refused": 0, "requests": 1, "held": 4}


def test_an_application_that_answers_425_is_passed_through(tmp_path: Path) -> None:
    with early("asgi", tmp_path) as served, served.client(ticket=served.ticket(), early=True) as again:
        assert again.fetch("GET", "/refuse").status == 425
        assert again.fetch("GET", "/refuse").status == 200


class Recorder(DatagramProxy):
    """Keeps the datagrams of clients, to send them again."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.recorded: list[bytes] = []

    def _pass(self, sock: socket.socket, data: bytes, to: Any) -> None:
        if to == self._server:
            self.recorded.append(data)
        super()._pass(sock, data, to)

    def replay(self, datagrams: list[bytes]) -> None:
        """Sends them from another address, as an attacker does."""
        with socket.socket(type=socket.SOCK_DGRAM) as attacker:
            attacker.bind(("127.0.0.1", 0))
            for datagram in datagrams:
                attacker.sendto(datagram, self._server)


@every_kind
def test_a_repeated_flight_runs_nothing_again(kind: str, tmp_path: Path) -> None:
    with early(kind, tmp_path) as served:
        ticket = served.ticket()
        with Recorder(served.port) as proxy:
            with served.client(proxy.port, ticket=ticket, early=True) as again:
                streams = [again.begin("GET", "/once"), again.begin("POST", "/posted")]
                again.finish(*streams)
                assert again.early_data_accepted
                flight = list(proxy.recorded)
                # While the connection lives its packets are duplicates.
                proxy.replay(flight)
                assert again.fetch("GET", "/still-here").status == 200
            before = list(served.app.requests)
            # Afterwards they begin a new connection, whose ticket has been used.
            for _ in range(3):
                proxy.replay(flight)
                time.sleep(0.1)
            assert served.client().fetch("GET", "/served").status == 200
        assert served.app.requests == [*before, ("GET", "/served", ())]


@every_kind
def test_a_flight_without_its_client_changes_nothing(kind: str, tmp_path: Path) -> None:
    """An attacker that holds a flight back and sends it instead of the client: the handshake never ends."""
    with early(kind, tmp_path) as served:
        ticket = served.ticket()
        with Recorder(served.port) as proxy:
            proxy.silent = True
            held_back = served.client(proxy.port, ticket=ticket, early=True, wait=False)
            held_back.begin("POST", "/posted")
            held_back.begin("GET", "/early")
            until(lambda: len(proxy.recorded) >= 2)
            time.sleep(0.1)
            flight = list(proxy.recorded)
            held_back.abort()
            for _ in range(3):
                proxy.replay(flight)
                time.sleep(0.1)
            until(lambda: len(served.app.requests) >= 2)
            time.sleep(0.3)
        # Once, as a safe request, and marked.
        assert served.app.requests[1:] == [("GET", "/early", ("1",))]


def test_a_ticket_is_accepted_once(tmp_path: Path) -> None:
    with early("asgi", tmp_path) as served:
        ticket = served.ticket()
        for is_first in (True, False):
            with served.client(ticket=ticket, early=True) as again:
                assert again.fetch("GET", "/").status == 200
                assert again.early_data_accepted == is_first
        assert served.metrics() == {"accepted": 1, "refused": 1, "requests": 1, "held": 0}


def test_off_by_default(tmp_path: Path) -> None:
    with early("asgi", tmp_path, http3_early_data=False) as served:
        ticket = served.ticket()
        assert not ticket.max_early_data_size
        with served.client(ticket=ticket) as again:
            assert again.fetch("GET", "/").body == b"GET /  0"
            assert again.resumed


def test_early_data_is_bounded(tmp_path: Path) -> None:
    """The window that clients remember is 64 KiB, and grows with the end of the handshake."""
    with early("asgi", tmp_path) as served:
        with served.client() as first:
            stream = first.begin("POST", "/upload", end=False)
            first.write(stream, b"x" * 400_000, end=True)
            assert first.finish(stream)[0].body == b"POST /upload  400000"
            first.until(lambda: first.tickets)
        ticket = first.tickets[0]
        with DatagramProxy(served.port) as proxy:
            with served.client(proxy.port, ticket=ticket, early=True, wait=False) as again:
                assert again.quic._remote_max_data == 64 * 1024
                proxy.deaf = True
                stream = again.begin("POST", "/upload", end=False)
                again.write(stream, b"x" * 400_000, end=True)
                time.sleep(0.2)
                proxy.deaf = False
                assert again.finish(stream)[0].body == b"POST /upload  400000"


def test_a_client_certificate_is_known_in_early_data(tmp_path: Path) -> None:
    """The scope of a request in early data has its TLS facts, which come from the session that is resumed."""
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["scheme"], scope["extensions"]["tls"]["tls_version"], dict(scope["headers"])))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    with serving("asgi", app, tmp_path, http3_early_data=True) as (server, certificates):
        served = EarlyServer(App(), server.port, str(certificates.ca))
        with served.client() as first:
            assert first.fetch("GET", "/").status == 204
            first.until(lambda: first.tickets)
        with served.client(ticket=first.tickets[0], early=True) as again:
            assert again.fetch("GET", "/").status == 204
    assert [scheme for scheme, _, _ in seen] == ["https"] * 2
    assert [version for _, version, _ in seen] == [0x0304] * 2
    assert seen[1][2][b"early-data"] == b"1"


def test_quic_go(tmp_path: Path) -> None:
    with early("asgi", tmp_path) as served:
        # On a busy machine its request may come after the handshake.
        for _ in range(20):
            found = quic_go_get(f"https://127.0.0.1:{served.port}/", ca=served.ca, early=True)
            assert [one["status"] for one in found] == [200]
            if ("GET", "/", ("1",)) in served.app.requests:
                break
        else:
            raise AssertionError(served.app.requests)
        assert served.metrics()["accepted"] >= 1
