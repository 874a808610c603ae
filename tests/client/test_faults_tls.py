"""TLS failures: each is a `TLSError` that names the reason; a stalled handshake is a timeout."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import towline
import trustme

from tests.support.client_backends import BACKENDS
from tests.support.tls import FAILURES, HOST, invalid_certificate, serving


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[trustme.CA, str]:
    authority = trustme.CA()
    path = tmp_path_factory.mktemp("authority") / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return authority, str(path)


@pytest.fixture(params=BACKENDS)
def make(request: pytest.FixtureRequest) -> Iterator[Any]:
    created: list[Any] = []

    def make(**options: Any) -> Any:
        options = {"trust_env": False, **options}
        created.append(BACKENDS[request.param](timeout=towline.Timeout(5, total=15), **options))
        return created[-1]

    yield make
    for backend in created:
        backend.close()


def test_a_valid_certificate_passes(make: Any, authority: tuple[trustme.CA, str]) -> None:
    """Precondition of the other tests."""
    ca, path = authority
    with serving(ca.issue_cert(HOST, "localhost")) as server:
        backend = make(verify=path)
        assert backend.get(server.url()).content == b"good"
        assert backend.get(server.url()).content == b"good"
        assert backend.get(server.url("localhost")).content == b"good"


@pytest.mark.parametrize("with_context", [False, True], ids=["rustls", "SSLContext"])
@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.replace(" ", "-"))
def test_a_certificate_that_is_refused(
    make: Any,
    authority: tuple[trustme.CA, str],
    tmp_path: Path,
    failure: str,
    with_context: bool,
) -> None:
    ca, path = authority
    with serving(invalid_certificate(failure, ca, tmp_path)) as server:
        verify = ssl.create_default_context(cafile=path) if with_context else path
        backend = make(verify=verify)
        with pytest.raises(towline.TLSError) as raised:
            backend.get(server.url("localhost"))
        message = str(raised.value)
        assert any(word in message.lower() for word in FAILURES[failure]), message
        assert "localhost" in message
        assert server.requests == 0
        # The failure leaves no state: a client without verification connects.
        assert make(verify=False).get(server.url("localhost")).content == b"good"


@pytest.mark.parametrize("trust_env", [True, False])
def test_an_environment_that_is_not_trusted_adds_no_authority(
    make: Any, authority: tuple[trustme.CA, str], monkeypatch: pytest.MonkeyPatch, trust_env: bool
) -> None:
    ca, path = authority
    monkeypatch.setenv("SSL_CERT_FILE", path)
    with serving(ca.issue_cert(HOST)) as server:
        client = make(trust_env=trust_env)
        if trust_env:
            assert client.get(server.url()).status_code == 200
        else:
            with pytest.raises(towline.TLSError):
                client.get(server.url())


def test_a_name_is_verified_for_each_route(make: Any, authority: tuple[trustme.CA, str]) -> None:
    """A connection that was made for one name is not lent to another."""
    ca, path = authority
    with serving(ca.issue_cert("localhost")) as server:
        backend = make(verify=path)
        assert backend.get(server.url("localhost")).content == b"good"
        with pytest.raises(towline.TLSError):
            backend.get(server.url(HOST))


def test_a_handshake_that_stalls_is_a_connect_timeout(make: Any) -> None:
    with socket.create_server((HOST, 0)) as listener:
        backend = make(verify=False)
        started = time.monotonic()
        with pytest.raises(towline.ConnectTimeout) as raised:
            backend.get(
                f"https://{HOST}:{listener.getsockname()[1]}/", timeout=towline.Timeout(30, connect=0.5)
            )
        assert 0.4 < time.monotonic() - started < 10
        assert raised.value.phase == "tls"


def test_a_peer_without_tls(make: Any) -> None:
    with socket.create_server((HOST, 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(towline.TLSError):
            make(verify=False).get(f"https://{HOST}:{listener.getsockname()[1]}/")


def test_an_end_without_close_notify_is_not_the_end_of_a_body(
    make: Any, authority: tuple[trustme.CA, str]
) -> None:
    """A body that ends with its connection could have been truncated by an attacker (RFC 9112 9.8)."""
    ca, path = authority
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(HOST).configure_cert(context)
    with socket.create_server((HOST, 0)) as listener:

        def serve() -> None:
            plain, _ = listener.accept()
            connection = context.wrap_socket(plain, server_side=True)
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nthe first half")
            time.sleep(0.1)
            raw = socket.socket(fileno=connection.detach())
            raw.shutdown(socket.SHUT_RDWR)
            raw.close()

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(towline.TransportError):
            make(verify=path).get(f"https://{HOST}:{listener.getsockname()[1]}/")


@pytest.mark.parametrize("with_context", [False, True])
def test_a_close_notify_with_the_last_data_is_received(
    make: Any, authority: tuple[trustme.CA, str], with_context: bool
) -> None:
    """Some servers keep the connection open until the client's close_notify: no event of the socket reports theirs."""
    ca, path = authority
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(HOST).configure_cert(context)
    done = threading.Event()
    with socket.create_server((HOST, 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            received, records = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = context.wrap_bio(received, records, server_side=True)
            for step in (tls.do_handshake, lambda: tls.read(65536)):
                while True:
                    try:
                        step()
                        break
                    except ssl.SSLWantReadError:
                        connection.sendall(records.read())
                        received.write(connection.recv(65536))
            tls.write(b"HTTP/1.1 200 OK\r\n\r\nthe whole")
            with pytest.raises(ssl.SSLWantReadError):
                tls.unwrap()
            connection.sendall(records.read())
            done.wait(30)
            connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        verify = ssl.create_default_context(cafile=path) if with_context else path
        try:
            response = make(verify=verify).get(f"https://{HOST}:{listener.getsockname()[1]}/")
        finally:
            done.set()
            thread.join(5)
        assert response.content == b"the whole"
