"""A server of TLS with a certificate that is to be refused, for one reason or another."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.hostile_peer import GOOD, requests_on

HOST = "127.0.0.1"
# One of these words says in a message what is wrong.
FAILURES = {
    "expired": ("expired",),
    "wrong host": (
        "mismatch",
        "not valid for",
        "not match",
        "elsewhere",
        "notvalidforname",
        "no alternative",
    ),
    "self-signed": ("self-signed", "self signed", "issuer", "unknown", "authority"),
    "unknown CA": ("issuer", "unknown", "authority"),
}


def certificate_that_is(
    failure: str, authority: trustme.CA, folder: Path
) -> trustme.LeafCert | tuple[Path, Path]:
    """For localhost, and refused by who trusts the authority."""
    if failure == "expired":
        past = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=2)
        return authority.issue_cert("localhost", not_before=past - datetime.timedelta(days=1), not_after=past)
    if failure == "wrong host":
        return authority.issue_cert("elsewhere.example")
    if failure == "self-signed":
        return self_signed(folder)
    return trustme.CA().issue_cert("localhost")


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
