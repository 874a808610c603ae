"""TLS that fails: each failure a `TLSError` that says what is wrong, and a handshake that stalls a timeout."""

from __future__ import annotations

import contextlib
import datetime
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
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from .hostile import GOOD, requests_on
from .two_faces import FACES

HOST = "127.0.0.1"


class Server:
    """TLS with one certificate; counts the requests that came through."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context, self.answered = context, 0
        self.listener = socket.create_server((HOST, 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with contextlib.suppress(OSError), self.context.wrap_socket(plain, server_side=True) as connection:
            for _ in requests_on(connection):
                self.answered += 1
                connection.sendall(GOOD)

    def url(self, host: str = HOST) -> str:
        return f"https://{host}:{self.port}/good"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[trustme.CA, str]:
    authority = trustme.CA()
    path = tmp_path_factory.mktemp("authority") / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return authority, str(path)


@contextlib.contextmanager
def serving(certificate: trustme.LeafCert | tuple[Path, Path]) -> Iterator[Server]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if isinstance(certificate, trustme.LeafCert):
        certificate.configure_cert(context)
    else:
        context.load_cert_chain(*certificate)
    server = Server(context)
    try:
        yield server
    finally:
        server.listener.close()


def self_signed(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "self")])
    now = datetime.datetime.now(datetime.timezone.utc)
    alternative = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(alternative, critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return folder / "cert.pem", folder / "key.pem"


@pytest.fixture(params=FACES)
def make(request: pytest.FixtureRequest) -> Iterator[Any]:
    made: list[Any] = []

    def make(**options: Any) -> Any:
        made.append(FACES[request.param](trust_env=False, timeout=towline.Timeout(5, total=15), **options))
        return made[-1]

    yield make
    for face in made:
        face.close()


def test_a_good_one_passes(make: Any, authority: tuple[trustme.CA, str]) -> None:
    """Or the others would prove nothing."""
    ca, path = authority
    with serving(ca.issue_cert(HOST, "localhost")) as server:
        face = make(verify=path)
        assert face.get(server.url()).content == b"good"
        assert face.get(server.url()).content == b"good"
        assert face.get(server.url("localhost")).content == b"good"


@pytest.mark.parametrize("with_context", [False, True], ids=["rustls", "SSLContext"])
@pytest.mark.parametrize(
    ("failure", "words"),
    [
        ("expired", ("expired",)),
        ("wrong host", ("localhost", "mismatch", "not valid for", "not match")),
        ("self-signed", ("self-signed", "self signed", "issuer", "unknown", "authority")),
        ("unknown CA", ("issuer", "unknown", "authority", "unable to get local issuer")),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_a_certificate_that_is_refused(
    make: Any, authority: tuple[trustme.CA, str], tmp_path: Path, failure: str, words: tuple[str, ...],
    with_context: bool,
) -> None:  # fmt: skip
    ca, path = authority
    certificate: Any
    if failure == "expired":
        past = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=2)
        certificate = ca.issue_cert("localhost", not_before=past - datetime.timedelta(days=1), not_after=past)
    elif failure == "wrong host":
        certificate = ca.issue_cert("elsewhere.example")
    elif failure == "self-signed":
        certificate = self_signed(tmp_path)
    else:
        certificate = trustme.CA().issue_cert("localhost")
    with serving(certificate) as server:
        verify = ssl.create_default_context(cafile=path) if with_context else path
        face = make(verify=verify)
        with pytest.raises(towline.TLSError) as raised:
            face.get(server.url("localhost"))
        message = str(raised.value)
        assert any(word in message.lower() for word in words), message
        assert "localhost" in message
        assert server.answered == 0
        # Nothing of the failure stays behind: who does not verify gets through.
        assert make(verify=False).get(server.url("localhost")).content == b"good"


def test_a_name_is_verified_for_each_route(make: Any, authority: tuple[trustme.CA, str]) -> None:
    """A connection that was made for one name is not lent to another."""
    ca, path = authority
    with serving(ca.issue_cert("localhost")) as server:
        face = make(verify=path)
        assert face.get(server.url("localhost")).content == b"good"
        with pytest.raises(towline.TLSError):
            face.get(server.url(HOST))


def test_a_handshake_that_stalls_is_a_connect_timeout(make: Any) -> None:
    with socket.create_server((HOST, 0)) as listener:
        face = make(verify=False)
        began = time.monotonic()
        with pytest.raises(towline.ConnectTimeout) as raised:
            face.get(f"https://{HOST}:{listener.getsockname()[1]}/", timeout=towline.Timeout(5, connect=0.5))
        assert 0.4 < time.monotonic() - began < 4
        assert raised.value.phase == "tls"


def test_a_peer_that_speaks_plainly(make: Any) -> None:
    with socket.create_server((HOST, 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(towline.TLSError):
            make(verify=False).get(f"https://{HOST}:{listener.getsockname()[1]}/")


def test_an_end_without_close_notify_is_not_the_end_of_a_body(
    make: Any, authority: tuple[trustme.CA, str]
) -> None:
    """A body that ends with its connection could be cut by anybody on the way (RFC 9112 9.8)."""
    ca, path = authority
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(HOST).configure_cert(context)
    with socket.create_server((HOST, 0)) as listener:

        def answer() -> None:
            plain, _ = listener.accept()
            connection = context.wrap_socket(plain, server_side=True)
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nthe first half")
            time.sleep(0.1)
            raw = socket.socket(fileno=connection.detach())
            raw.shutdown(socket.SHUT_RDWR)
            raw.close()

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(towline.TransportError):
            make(verify=path).get(f"https://{HOST}:{listener.getsockname()[1]}/")
