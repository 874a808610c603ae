"""Certificates by ACME, from Pebble: orders, challenges, renewals, and what may go wrong in between."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509

from tests.support.feature_server import samples
from tests.support.nightly import by_night
from tests.support.pebble import Pebble, pebble
from tests.support.process import Program, children, eventually, request, running
from tests.support.programs import free_port

NAME = "example.test"


def certificate(port: int, trust: ssl.SSLContext, name: str = NAME) -> x509.Certificate | None:
    """The certificate that a client gets for a name; None if the handshake fails."""
    try:
        with (
            socket.create_connection(("127.0.0.1", port), 10) as plain,
            trust.wrap_socket(plain, server_hostname=name) as conn,
        ):
            der = conn.getpeercert(binary_form=True)
    except (ssl.SSLError, ConnectionError):
        return None
    assert der is not None
    return x509.load_der_x509_certificate(der)


@contextmanager
def served(ca: Pebble, *options: str, names: tuple[str, ...] = (NAME,)) -> Iterator[Program]:
    with running("apps:asgi", *ca.options(*names), *options) as server:
        yield server


def is_certified(server: Program, ca: Pebble, name: str = NAME, timeout: float = 40.0) -> x509.Certificate:
    """Wait for a certificate that the clients of the CA accept."""
    found: list[x509.Certificate] = []
    trust = ca.trust()

    def look() -> bool:
        found.extend(filter(None, [certificate(server.port, trust, name)]))
        return bool(found)

    eventually(look, f"a certificate for {name}: {server.log}", timeout)
    return found[0]


def is_logged(server: Program, text: str, timeout: float = 40.0) -> None:
    eventually(lambda: text in server.log, f"the log line {text!r}", timeout)


@pytest.mark.parametrize("app", ["apps:asgi", "apps:wsgi"])
def test_a_certificate_by_tls_alpn(app: str, tmp_path: Path) -> None:
    metrics = free_port()
    with pebble(tmp_path) as ca:
        address = ("--metrics-address", f"127.0.0.1:{metrics}", "--workers", "2")
        with running(app, *ca.options(NAME), *address) as server:
            assert certificate(server.port, ca.trust()) is None
            assert f"there is no certificate for {NAME} yet" in server.log
            found = is_certified(server, ca)
            assert certificate(server.port, ca.trust(), "other.test") is None
            is_logged(server, f"ACME: a certificate for {NAME}, valid until")

            def expiries() -> set[float]:
                page = samples(request(metrics, "/metrics").body.decode())
                assert page["towline_acme_failed_orders_total"] == 0
                name = "towline_tls_certificate_expiry_timestamp_seconds"
                return {value for series, value in page.items() if series.startswith(name)}

            eventually(lambda: expiries() == {found.not_valid_after_utc.timestamp()}, "the metric follows")
        for path in [tmp_path / "store", *(tmp_path / "store").rglob("*")]:
            mode = stat.S_IMODE(path.stat().st_mode)
            assert mode == (0o700 if path.is_dir() else 0o600), path
        with running(app, *ca.options(NAME), *address) as server:
            # The certificate and the account are found again.
            again = certificate(server.port, ca.trust())
            assert again == found
            assert "no certificate" not in server.log
        assert ca.orders() == 1
        assert ca.log.count("There are now 1 accounts") <= 1


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param({"PEBBLE_WFE_NONCEREJECT": "60"}, id="nonces"),
        *by_night(
            [
                pytest.param(
                    {"PEBBLE_WFE_NONCEREJECT": "75", "PEBBLE_VA_ALWAYS_VALID": "0"}, id="many nonces"
                ),
                pytest.param(
                    {"PEBBLE_VA_NOSLEEP": "0", "PEBBLE_VA_SLEEPTIME": "10", "PEBBLE_WFE_NONCEREJECT": "15"},
                    id="slow validation",
                ),
            ]
        ),
    ],
)
def test_faults_of_the_ca(faults: dict[str, str], tmp_path: Path) -> None:
    with pebble(tmp_path, environment=faults) as ca, served(ca) as server:
        is_certified(server, ca, timeout=80)
        assert ca.orders() == 1


def test_an_authorization_that_is_valid_is_used_again(tmp_path: Path) -> None:
    with pebble(tmp_path, environment={"PEBBLE_AUTHZREUSE": "100"}, validity=6) as ca, served(ca) as server:
        first = is_certified(server, ca)
        eventually(lambda: is_certified(server, ca).serial_number != first.serial_number, "a renewal", 40)
        assert ca.log.count("Pulled a task") == 1


class TlsLoad:
    """Threads that send requests on new and on kept TLS connections until the end."""

    def __init__(self, port: int, trust: ssl.SSLContext) -> None:
        self.port, self.trust = port, trust
        self.serials: set[int] = set()
        self.requests = 0
        self.failures: list[str] = []
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,), daemon=True) for n in (1, 50)]

    def __enter__(self) -> TlsLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(20)

    def _run(self, requests: int) -> None:
        while not self._ended.is_set():
            try:
                with (
                    socket.create_connection(("127.0.0.1", self.port), 10) as plain,
                    self.trust.wrap_socket(plain, server_hostname=NAME) as conn,
                ):
                    der = conn.getpeercert(binary_form=True)
                    assert der is not None
                    self.serials.add(x509.load_der_x509_certificate(der).serial_number)
                    for _ in range(requests):
                        conn.sendall(f"GET /pid HTTP/1.1\r\nhost: {NAME}\r\n\r\n".encode())
                        assert conn.recv(65536).startswith(b"HTTP/1.1 200")
                        self.requests += 1
            except (OSError, AssertionError) as error:
                self.failures.append(repr(error))


def test_a_renewal_under_load_without_a_failed_request(tmp_path: Path) -> None:
    # Clients check the validity as well: 30 s leave time to a slow machine, and a third of them is the earliest renewal.
    with pebble(tmp_path, validity=30) as ca, served(ca, "--workers", "2") as server:
        is_certified(server, ca)
        with TlsLoad(server.port, ca.trust()) as load:
            eventually(lambda: len(load.serials) >= 3, f"two renewals {load.failures[:3]}", 60)
        assert load.failures == []
        assert load.requests > 100
        assert "worker" not in server.log.partition("Towline ")[2].partition("\n")[2]


def test_a_restart_in_the_middle_of_an_order(tmp_path: Path) -> None:
    slow = {"PEBBLE_VA_NOSLEEP": "0", "PEBBLE_VA_SLEEPTIME": "4"}
    with pebble(tmp_path, environment=slow) as ca:
        with served(ca) as server:
            eventually(lambda: "Pulled a task" in ca.log, "a challenge", 40)
            ca.signal(signal.SIGSTOP)  # the CA looks for the response while there is a server
            server.signal(signal.SIGTERM)
            server.wait()
        assert "a certificate for" not in server.log
        order = re.search(f"the order for {NAME} is (https://.*)", server.log)
        assert order is not None
        with served(ca) as server:
            ca.signal(signal.SIGCONT)
            is_logged(server, f"the order for {NAME} is {order[1]}")
            is_certified(server, ca)
        assert ca.orders() == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the group")
def test_the_store_is_of_the_workers(tmp_path: Path) -> None:
    with pebble(tmp_path) as ca:
        for group in (12345, 12346):
            with served(ca, "--group", str(group)) as server:
                is_certified(server, ca)
                is_logged(server, "Towline")
                eventually(lambda: not acme_process(server), "the end of the process")
                assert {path.stat().st_gid for path in (tmp_path / "store").rglob("*")} == {group}
        assert ca.orders() == 1


def test_the_process_is_killed(tmp_path: Path) -> None:
    slow = {"PEBBLE_VA_NOSLEEP": "0", "PEBBLE_VA_SLEEPTIME": "4"}
    with pebble(tmp_path, environment=slow) as ca, served(ca) as server:
        (worker,) = {int(pid) for pid in server.children()} - acme_process(server)
        eventually(lambda: "Pulled a task" in ca.log, "a challenge", 40)
        for pid in acme_process(server):
            os.kill(pid, signal.SIGKILL)
        is_logged(server, "the process has died; it is started again in")
        is_certified(server, ca)
        assert ca.orders() == 1
        assert worker in children(server.pid)


def acme_process(server: Program) -> set[int]:
    """The child that is no worker: it holds no listening socket."""

    def listens(pid: int) -> bool:
        try:
            links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        except FileNotFoundError:
            return True  # it has just ended
        return any("eventpoll" in link for link in links)

    return {pid for pid in server.children() if not listens(pid)}


def test_two_servers_with_one_store_make_one_order(tmp_path: Path) -> None:
    with pebble(tmp_path) as ca, served(ca) as one:
        with running("apps:asgi", *ca.options(NAME, bind=("127.0.0.1:0",))) as two:
            serials = {is_certified(server, ca).serial_number for server in (one, two)}
        assert len(serials) == 1
        assert ca.orders() == 1


def test_a_ca_that_is_down(tmp_path: Path) -> None:
    metrics = free_port()
    with pebble(tmp_path) as ca:
        ca.stop()
        with served(ca, "--metrics-address", f"127.0.0.1:{metrics}") as server:
            is_logged(server, f"ACME: no certificate for {NAME}: ")
            assert "Connection refused (attempt 1; the next in 1" in server.log
            page = samples(request(metrics, "/metrics").body.decode())
            assert page["towline_acme_failed_orders_total"] == 1
        record = json.loads((ca.store / f"{NAME}.json").read_text())
        assert record["due"] > time.time() + 60
        ca.start(ca.dns_port)
        # A restart keeps the back-off, HUP does not.
        with served(ca) as server:
            is_logged(server, f"ACME: {NAME} is tried again in 1")
            assert ca.orders() == 0
            server.signal(signal.SIGHUP)
            is_certified(server, ca)
            is_logged(server, "valid until")
        assert "failures" not in json.loads((ca.store / f"{NAME}.json").read_text())


def test_a_name_that_the_ca_refuses_does_not_stop_the_others(tmp_path: Path) -> None:
    with (
        pebble(tmp_path, blocked=("blocked.test",)) as ca,
        served(ca, names=("blocked.test", NAME)) as server,
    ):
        is_certified(server, ca)
        assert "ACME: no certificate for blocked.test: rejectedIdentifier; " in server.log
        assert certificate(server.port, ca.trust(), "blocked.test") is None


def test_a_challenge_that_does_not_reach_the_server(tmp_path: Path) -> None:
    with pebble(tmp_path) as ca, running("apps:asgi", *ca.options(NAME, bind=("127.0.0.1:0",))) as server:
        is_logged(server, f"ACME: no certificate for {NAME}: tls-alpn-01: ")
        assert "Connection refused" in server.log or "refused" in server.log
        assert ca.orders() == 1
        assert not list((ca.store / "tls-alpn-01").iterdir())


@pytest.mark.parametrize("app", ["apps:asgi", "apps:wsgi"])
def test_a_certificate_by_http(app: str, tmp_path: Path) -> None:
    """Only the plain address is over TCP. HTTP/3 serves the certificate."""
    from tests.support.http3.client import Client as Http3Client

    port = free_port()
    with pebble(tmp_path) as ca:
        addresses = (f"http://127.0.0.1:{ca.http_port}", f"https://127.0.0.1:{port}?http=3")
        with running(app, *ca.options(NAME, bind=addresses)) as server:
            is_logged(server, f"ACME: a certificate for {NAME}, valid until")
            assert request(ca.http_port, "/pid").status == 200
            (roots := tmp_path / "roots.pem").write_bytes(ca.ask("/roots/0"))
            with Http3Client(("127.0.0.1", port), ca=str(roots), server_name=NAME) as client:
                assert client.fetch("GET", "/pid").status == 200
        assert "tls-alpn-01/" not in ca.log
        assert not list((ca.store / "http-01").iterdir())


def test_the_other_challenge_is_tried_after_a_failure(tmp_path: Path) -> None:
    with pebble(tmp_path) as ca:
        addresses = ("https://127.0.0.1:0", f"http://127.0.0.1:{ca.http_port}")
        with running("apps:asgi", *ca.options(NAME, bind=addresses)) as server:
            is_logged(server, f"ACME: no certificate for {NAME}: tls-alpn-01: ")
            server.signal(signal.SIGHUP)
            is_certified(server, ca)


def test_a_certificate_from_a_file_serves_its_own_names(tmp_path: Path) -> None:
    authority = trustme.CA()
    own = tmp_path / "own.pem"
    own.write_bytes(authority.issue_cert("own.test").private_key_and_cert_chain_pem.bytes())
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with pebble(tmp_path) as ca, served(ca, "--ssl-certfile", str(own)) as server:
        assert certificate(server.port, context, "own.test")
        is_certified(server, ca)
        assert certificate(server.port, context, "own.test")
        assert certificate(server.port, ca.trust(), "own.test") is None


def test_renewal_information_renews_at_once(tmp_path: Path) -> None:
    """ARI (RFC 9773) is asked with each run; the age of a certificate bounds what it can ask for."""
    with pebble(tmp_path) as ca:
        with served(ca) as server:
            first = is_certified(server, ca)
            is_logged(server, "valid until")
        path = ca.store / f"{NAME}.json"
        record: dict[str, Any] = json.loads(path.read_text())
        window = {"suggestedWindow": {"start": "2020-01-01T00:00:00Z", "end": "2020-01-02T00:00:00Z"}}
        pem = (ca.store / f"{NAME}.pem").read_text()
        ca.ask("/set-renewal-info/", {"certificate": pem, "ariResponse": json.dumps(window)})
        # As if it were a day old, and looked at again now.
        path.write_text(json.dumps({**record, "issued": record["issued"] - 86400, "due": 0}))
        with served(ca) as server:
            eventually(lambda: is_certified(server, ca).serial_number != first.serial_number, "renewal", 40)
            assert ca.orders() == 2
        assert json.loads(path.read_text())["renew_at"] > time.time() + 3000
