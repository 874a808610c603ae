"""TLS that the server refuses: one line of the log names the cause, for clients and for its own files."""

from __future__ import annotations

import http.client
import logging
import shutil
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from towline import Client as OwnClient
from towline.errors import StartupError, TransportError

from tests.support.feature_server import every_kind, exchange, fetch, parse, samples, serving
from tests.support.waiting import until

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "towline.server")
    logging.getLogger("towline").propagate = True
    return caplog


class Authority:
    """An authority, a server's certificate by it, and the options of a server that wants certificates of clients."""

    def __init__(self, folder: Path) -> None:
        self.ca = trustme.CA()
        self.cert, self.roots = folder / "server.pem", folder / "ca.pem"
        self.cert.write_bytes(self.ca.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.bytes())
        self.roots.write_bytes(self.ca.cert_pem.bytes())
        self.options = {
            "ssl_certfile": str(self.cert),
            "ssl_ca_certs": str(self.roots),
            "ssl_cert_reqs": "required",
        }

    def ask(self, port: int, client: trustme.LeafCert | None) -> int:
        context = ssl.create_default_context(cafile=str(self.roots))
        if client is not None:
            client.configure_cert(context)
        conn = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=20)
        conn.request("GET", "/")
        return conn.getresponse().status


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def lines(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if "refused" in record.getMessage()]


@every_kind
def test_a_refused_client_certificate_is_logged_with_subject_and_reason(
    kind: str, authority: Authority, log: pytest.LogCaptureFixture
) -> None:
    stranger = trustme.CA().issue_cert("someone@example.org")
    subject = subject_of(stranger)
    with serving(kind, **authority.options) as server:
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
            authority.ask(server.port, stranger)
        until(lambda: lines(log))
        assert authority.ask(server.port, authority.ca.issue_cert("me@example.org")) == 200
    assert lines(log) == [
        f'refused: the client certificate "{subject}" is signed by an authority that is not trusted here '
        "(unknown CA) (client_certificate) from 127.0.0.1"
    ]


def test_a_client_without_a_certificate_is_logged(
    authority: Authority, log: pytest.LogCaptureFixture
) -> None:
    with serving("asgi", **authority.options) as server:
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
            authority.ask(server.port, None)
        until(lambda: lines(log))
    assert lines(log) == ["refused: the client has sent no certificate (client_certificate) from 127.0.0.1"]


async def names_the_client(scope: Any, receive: Any, send: Any) -> None:
    body = str(scope["extensions"]["tls"]["client_cert_name"]).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def test_client_certificates_over_http3(
    authority: Authority, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    known, unknown = authority.ca.issue_cert("me@example.org"), trustme.CA().issue_cert("someone@example.org")
    with serving(
        "asgi", names_the_client, http3=True, http1=False, http2=False, **authority.options
    ) as server:
        for leaf in (known, unknown, None):
            own = {}
            if leaf is not None:
                pem = tmp_path / "client.pem"
                pem.write_bytes(leaf.private_key_and_cert_chain_pem.bytes())
                own["cert"] = str(pem)
            with OwnClient(verify=str(authority.roots), http1=False, http3=True, **own) as client:
                url = f"https://127.0.0.1:{server.port}/"
                if leaf is known:
                    assert client.get(url).text == subject_of(known)
                else:
                    with pytest.raises(TransportError):
                        client.get(url)
        until(lambda: len(lines(log)) == 2)
    assert lines(log)[0].startswith(f'refused: the client certificate "{subject_of(unknown)}" is signed by')
    assert lines(log)[1] == "refused: the client has sent no certificate (client_certificate) from 127.0.0.1"


def subject_of(leaf: trustme.LeafCert) -> str:
    return x509.load_pem_x509_certificate(leaf.cert_chain_pems[0].bytes()).subject.rfc4514_string()


@every_kind
def test_http_without_tls_gets_an_answer_that_can_be_read(
    kind: str, authority: Authority, log: pytest.LogCaptureFixture
) -> None:
    body = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 20000\r\n\r\n" + b"x" * 20000
    with serving(kind, ssl_certfile=str(authority.cert)) as server:
        for wire in (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", body):
            response = exchange((server.host, server.port), wire)
            assert (response.status, response.field("connection")) == (400, "close")
            assert b"https://" in response.body
        until(lambda: len(lines(log)) == 2)
    assert set(lines(log)) == {
        "refused: HTTP without TLS, sent to an address with TLS (plain_http) from 127.0.0.1"
    }


@every_kind
def test_tls_sent_to_an_address_without_it_is_logged_as_such(
    kind: str, log: pytest.LogCaptureFixture
) -> None:
    with serving(kind, metrics=True) as server:
        with pytest.raises(ssl.SSLError), socket.create_connection((server.host, server.port), 20) as conn:
            ssl.create_default_context().wrap_socket(conn, server_hostname="localhost")
        until(lambda: lines(log))
        page = samples(fetch(server, "/metrics").body.decode())
        assert page['towline_refused_total{reason="malformed"}'] == 1
    assert len(lines(log)) == 1
    assert "a TLS handshake, sent to an address without TLS" in lines(log)[0]


def openssl(*arguments: str, cwd: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=cwd, check=True, capture_output=True)


@needs_openssl
def test_a_certificate_of_version_1_is_served(tmp_path: Path) -> None:
    openssl(
        "req",
        "-new",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        "key",
        "-out",
        "csr",
        "-subj",
        "/CN=a",
        cwd=tmp_path,
    )
    openssl("x509", "-req", "-in", "csr", "-signkey", "key", "-out", "crt", cwd=tmp_path)
    assert x509.load_pem_x509_certificate((tmp_path / "crt").read_bytes()).version is x509.Version.v1
    context = ssl._create_unverified_context()
    files = {"ssl_certfile": str(tmp_path / "crt"), "ssl_keyfile": str(tmp_path / "key")}
    with serving("asgi", **files) as server:
        with context.wrap_socket(socket.create_connection((server.host, server.port), 20)) as conn:
            conn.sendall(b"GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            data = b""
            while part := conn.recv(65536):
                data += part
    assert parse(data).body == b"/a"


def refusal(**files: Any) -> str:
    with pytest.raises(StartupError) as caught, serving("asgi", **files):
        pass
    return str(caught.value)


def test_a_key_of_another_certificate_names_both_files(authority: Authority, tmp_path: Path) -> None:
    key = tmp_path / "other.pem"
    key.write_bytes(authority.ca.issue_cert("127.0.0.1").private_key_pem.bytes())
    assert refusal(ssl_certfile=str(authority.cert), ssl_keyfile=str(key)) == (
        f"TLS: {key}: the private key is not that of the certificate in {authority.cert}"
    )


def test_an_error_about_a_key_lists_the_supported_ones(authority: Authority, tmp_path: Path) -> None:
    key = tmp_path / "p521.pem"
    p521 = ec.generate_private_key(ec.SECP521R1())
    key.write_bytes(p521.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    text = refusal(ssl_certfile=str(authority.cert), ssl_keyfile=str(key))
    assert text.startswith(f"TLS: {key}: the private key cannot be used: ")
    assert "P-256" in text
    assert "P-521" in text


def test_a_certificate_that_is_none_names_its_own_file(authority: Authority, tmp_path: Path) -> None:
    cert = tmp_path / "none.pem"
    cert.write_bytes(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    text = refusal(ssl_certfile=str(cert), ssl_keyfile=str(authority.cert))
    assert text.startswith(f"TLS: {cert}: line 1: not a certificate")
