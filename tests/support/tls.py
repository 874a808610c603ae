"""Certificates, trust stores, and a TLS server with a certificate that a client must refuse."""

from __future__ import annotations

import contextlib
import datetime
import ssl
from collections.abc import Iterator
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.http1_peer import Listener, Peer, requests_on
from tests.support.http1_scripts import GOOD

HOST = "127.0.0.1"
# The error message must contain one of these texts.
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


def invalid_certificate(
    failure: str, authority: trustme.CA, folder: Path
) -> trustme.LeafCert | tuple[Path, Path]:
    """Certificate for localhost that a client which trusts `authority` refuses."""
    if failure == "expired":
        past = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=2)
        return authority.issue_cert("localhost", not_before=past - datetime.timedelta(days=1), not_after=past)
    if failure == "wrong host":
        return authority.issue_cert("elsewhere.example")
    if failure == "self-signed":
        return self_signed(folder)
    return trustme.CA().issue_cert("localhost")


class Server:
    """TLS with one certificate; counts the requests that arrive."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.requests = 0
        self._listener = Listener(self._serve, tls=context)
        self.port = self._listener.port

    def _serve(self, peer: Peer) -> None:
        for _ in requests_on(peer.sock):
            self.requests += 1
            peer.send(GOOD)

    def url(self, host: str = HOST) -> str:
        return f"https://{host}:{self.port}/good"

    def close(self) -> None:
        self._listener.close()


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
        server.close()


class Trust:
    """Certificate authority, its PEM file, and the contexts of servers that it signs."""

    def __init__(self, folder: Path) -> None:
        self.ca = trustme.CA()
        self.path = str(folder / "ca.pem")
        self.ca.cert_pem.write_to_path(self.path)
        client = self.ca.issue_cert("client.test")
        self.cert = str(folder / "client.pem")
        client.private_key_and_cert_chain_pem.write_to_path(self.cert)

    def server(self, *names: str, require_client_cert: bool = False) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.ca.issue_cert(*(names or ("127.0.0.1", "localhost"))).configure_cert(context)
        if require_client_cert:
            context.verify_mode = ssl.CERT_REQUIRED
            self.ca.configure_trust(context)
        return context

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.path)


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
