"""The choices of `--ssl-*`: certificates by server name, oldest version, cipher suites, revocation lists."""

from __future__ import annotations

import datetime
import http.client
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from towline.errors import StartupError

from tests.support.feature_server import serving


class Authority:
    """An authority, and files of certificates that it has issued."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = trustme.CA()

    def issue(self, *names: str, key_type: trustme.KeyType = trustme.KeyType.ECDSA) -> str:
        """A file with a chain and its key."""
        leaf = self.ca.issue_cert(*names, key_type=key_type)
        path = self.folder / f"{names[0].replace('*', 'any')}-{key_type.name}.pem"
        leaf.private_key_and_cert_chain_pem.write_to_path(str(path))
        return str(path)

    def client(self, **changes: Any) -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.check_hostname = False
        self.ca.configure_trust(context)
        for name, value in changes.items():
            setattr(context, name, value)
        return context

    def connect(self, port: int, name: str | None, context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", port), timeout=10)
        return (context or self.client()).wrap_socket(plain, server_hostname=name)

    def names(self, port: int, name: str | None, context: ssl.SSLContext | None = None) -> list[str]:
        """The names of the certificate that the server sends for a server name."""
        with self.connect(port, name, context) as connected:
            found = connected.getpeercert() or {}
            return [str(value) for _, value in found["subjectAltName"]]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_the_server_name_selects_a_certificate(kind: str, authority: Authority) -> None:
    files = (authority.issue("one.example"), authority.issue("*.two.example"), authority.issue("127.0.0.1"))
    with serving(kind, ssl_certfile=files) as server:
        assert authority.names(server.port, "one.example") == ["one.example"]
        assert authority.names(server.port, "a.two.example") == ["*.two.example"]
        assert authority.names(server.port, "a.b.two.example") == ["one.example"]
        assert authority.names(server.port, "unknown.example") == ["one.example"]
        assert authority.names(server.port, None) == ["one.example"]


def test_a_certificate_that_the_client_can_verify_is_selected(authority: Authority) -> None:
    files = (authority.issue("one.example"), authority.issue("one.example", key_type=trustme.KeyType.RSA))
    only_rsa = authority.client(maximum_version=ssl.TLSVersion.TLSv1_2)
    only_rsa.set_ciphers("ECDHE-RSA-AES128-GCM-SHA256")
    with serving("asgi", ssl_certfile=files) as server:
        with authority.connect(server.port, "one.example", only_rsa) as connected:
            assert (connected.cipher() or ("",))[0] == "ECDHE-RSA-AES128-GCM-SHA256"
        assert authority.names(server.port, "one.example") == ["one.example"]


def test_keys_in_files_of_their_own(authority: Authority, tmp_path: Path) -> None:
    certs, keys = [], []
    for name in ("one.example", "two.example"):
        leaf = authority.ca.issue_cert(name)
        certs.append(str(tmp_path / f"{name}.crt"))
        keys.append(str(tmp_path / f"{name}.key"))
        Path(certs[-1]).write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        leaf.private_key_pem.write_to_path(keys[-1])
    with serving("asgi", ssl_certfile=certs, ssl_keyfile=keys) as server:
        assert authority.names(server.port, "two.example") == ["two.example"]
    with pytest.raises(StartupError, match=r"two\.example\.key: "):
        with serving("asgi", ssl_certfile=certs, ssl_keyfile=keys[::-1]):
            pass


def test_the_oldest_version(authority: Authority) -> None:
    tls12 = authority.client(maximum_version=ssl.TLSVersion.TLSv1_2)
    certificate = authority.issue("127.0.0.1")
    with serving("asgi", ssl_certfile=certificate) as server:
        with authority.connect(server.port, "127.0.0.1", tls12) as connected:
            assert connected.version() == "TLSv1.2"
    with serving("asgi", ssl_certfile=certificate, ssl_min_version="1.3") as server:
        with pytest.raises(ssl.SSLError, match=r"(?i)protocol version"):
            authority.connect(server.port, "127.0.0.1", tls12)
        with authority.connect(server.port, "127.0.0.1") as connected:
            assert connected.version() == "TLSv1.3"


@pytest.mark.parametrize("name", ["TLS_CHACHA20_POLY1305_SHA256", "tls_chacha20_poly1305_sha256"])
def test_cipher_suites(name: str, authority: Authority) -> None:
    certificate = authority.issue("127.0.0.1")
    with serving("asgi", ssl_certfile=certificate, ssl_ciphers=(name,)) as server:
        with authority.connect(server.port, "127.0.0.1") as connected:
            assert (connected.cipher() or ("",))[0] == "TLS_CHACHA20_POLY1305_SHA256"
        tls12 = authority.client(maximum_version=ssl.TLSVersion.TLSv1_2)
        with pytest.raises(ssl.SSLError):
            authority.connect(server.port, "127.0.0.1", tls12)
    tls12_suite = ("ECDHE-ECDSA-AES256-GCM-SHA384",)
    with serving("asgi", ssl_certfile=certificate, ssl_ciphers=tls12_suite) as server:
        with authority.connect(server.port, "127.0.0.1") as connected:
            assert (connected.cipher() or ("",))[:2] == (tls12_suite[0], "TLSv1.2")


@pytest.mark.parametrize("name", ["HIGH", "ECDHE+AESGCM", "RC4-SHA"])
def test_an_unknown_cipher_suite_is_named(name: str, authority: Authority) -> None:
    with pytest.raises(
        StartupError, match=r"is not supported .* choose from TLS_AES_256_GCM_SHA384:"
    ) as caught:
        with serving("asgi", ssl_certfile=authority.issue("127.0.0.1"), ssl_ciphers=(name,)):
            pass
    assert name in str(caught.value)


def test_a_revoked_client_certificate_is_refused(authority: Authority, tmp_path: Path) -> None:
    good, revoked = authority.ca.issue_cert("good.example"), authority.ca.issue_cert("revoked.example")
    (tmp_path / "ca.pem").write_bytes(authority.ca.cert_pem.bytes())
    (tmp_path / "revoked.crl").write_bytes(revocation_list(authority.ca, revoked))
    options = {
        "ssl_certfile": authority.issue("127.0.0.1"),
        "ssl_ca_certs": str(tmp_path / "ca.pem"),
        "ssl_cert_reqs": "required",
        "ssl_crl": (str(tmp_path / "revoked.crl"),),
    }
    with serving("asgi", **options) as server:
        assert status(server.port, authority, good) == 200
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
            status(server.port, authority, revoked)


def status(port: int, authority: Authority, client: trustme.LeafCert) -> int:
    context = authority.client()
    client.configure_cert(context)
    conn = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=10)
    conn.request("GET", "/")
    return conn.getresponse().status


def revocation_list(ca: trustme.CA, leaf: trustme.LeafCert) -> bytes:
    issuer = x509.load_pem_x509_certificate(ca.cert_pem.bytes())
    key = serialization.load_pem_private_key(ca.private_key_pem.bytes(), None)
    serial = x509.load_pem_x509_certificate(leaf.cert_chain_pems[0].bytes()).serial_number
    now = datetime.datetime.now(datetime.timezone.utc)
    day = datetime.timedelta(days=1)
    entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now - day).build()
    builder = x509.CertificateRevocationListBuilder().issuer_name(issuer.subject)
    builder = builder.last_update(now - day).next_update(now + day).add_revoked_certificate(entry)
    builder = builder.add_extension(x509.CRLNumber(1), critical=False).add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()), critical=False
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)  # type: ignore[arg-type]
