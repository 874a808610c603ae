"""Certificates of servers and clients over HTTP/1.1, HTTP/2 and HTTP/3: files of any form, clients of any name."""

from __future__ import annotations

import datetime
import logging
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from towline import Client
from towline.errors import TransportError

from tests.support.feature_server import serving
from tests.support.http3.client import Client as Http3Client
from tests.support.waiting import until

VERSIONS: dict[str, dict[str, bool]] = {
    "HTTP/1.1": {"http2": False},
    "HTTP/2": {"http1": False, "http2": True},
    "HTTP/3": {"http1": False, "http3": True},
}
every_version = pytest.mark.parametrize("version", VERSIONS)
every_front_end = pytest.mark.parametrize("kind", ["asgi", "wsgi", "wsgi-threads"])


async def names_client(scope: Any, receive: Any, send: Any) -> None:
    tls = scope["extensions"]["tls"]
    body = f"{len(tls['client_cert_chain'])} {tls['client_cert_name']!r}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def names_client_wsgi(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    start_response("200 OK", [])
    chain = int("SSL_CLIENT_CERT" in environ)
    return [f"{chain} {environ.get('SSL_CLIENT_S_DN')!r}".encode()]


class Files:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = trustme.CA()
        self.roots = folder / "roots.pem"
        self.ca.cert_pem.write_to_path(self.roots)
        self.cert = folder / "server.pem"
        self.cert.write_bytes(self.ca.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.bytes())

    def client(self, subject: x509.Name, issuer: trustme.CA | None = None) -> str:
        """A client certificate with this subject."""
        key = ec.generate_private_key(ec.SECP256R1())
        authority = self.ca if issuer is None else issuer
        signer = serialization.load_pem_private_key(authority.private_key_pem.bytes(), None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        parent = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
        now = datetime.datetime.now(datetime.timezone.utc)
        builder = x509.CertificateBuilder()
        builder = builder.subject_name(subject).issuer_name(parent.subject).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(days=1))
        builder = builder.not_valid_after(now + datetime.timedelta(days=1))
        names = x509.SubjectAlternativeName([x509.DNSName("client.test")])
        certificate = builder.add_extension(names, critical=True).sign(signer, hashes.SHA256())
        path = self.folder / "client.pem"
        path.write_bytes(
            certificate.public_bytes(Encoding.PEM)
            + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )
        return str(path)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@contextmanager
def clients(version: str, verify: Any, **own: Any) -> Iterator[Client]:
    with Client(verify=verify, **VERSIONS[version], **own) as client:
        yield client


@every_front_end
@every_version
def test_a_client_certificate_has_a_name(kind: str, version: str, files: Files) -> None:
    app = names_client if kind == "asgi" else names_client_wsgi
    options = {"ssl_ca_certs": str(files.roots), "ssl_cert_reqs": "optional"}
    attribute = x509.NameAttribute(x509.NameOID.COMMON_NAME, "me")
    expected = {"none": "0 None", "empty": "1 ''", "named": "1 'CN=me'"}
    with serving(kind, app, ssl_certfile=str(files.cert), http3=True, **options) as server:
        for name, text in expected.items():
            subject = x509.Name([attribute] if name == "named" else [])
            own = {} if name == "none" else {"cert": files.client(subject)}
            with clients(version, str(files.roots), **own) as client:
                response = client.get(server.url)
            assert (response.http_version, response.text) == (version, text)


@every_version
def test_a_refused_client_certificate_is_one_line(
    version: str, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "towline.server")
    logging.getLogger("towline").propagate = True

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]

    options = {"ssl_ca_certs": str(files.roots), "ssl_cert_reqs": "required"}
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "stranger")])
    cert = files.client(subject, issuer=trustme.CA())
    with serving("asgi", ssl_certfile=str(files.cert), http3=True, **options) as server:
        with pytest.raises(TransportError), clients(version, str(files.roots), cert=cert) as client:
            client.get(server.url)
        until(lines)
    reason = "is signed by an authority that is not trusted here (unknown CA)"
    assert lines() == [
        f'refused: the client certificate "CN=stranger" {reason} (client_certificate) from 127.0.0.1'
    ]


@every_version
@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_a_certificate_of_version_1_is_served(kind: str, version: str, files: Files) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here")
    request = "req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout key -out csr -subj /CN=a"
    for command in (request, "x509 -req -in csr -signkey key -out crt"):
        subprocess.run(["openssl", *command.split()], cwd=files.folder, check=True, capture_output=True)
    certificate = files.folder / "crt"
    assert x509.load_pem_x509_certificate(certificate.read_bytes()).version is x509.Version.v1
    options = {"ssl_certfile": str(certificate), "ssl_keyfile": str(files.folder / "key")}
    # Our own client refuses such a certificate.
    with serving(kind, http3=True, **options) as server:
        if version == "HTTP/3":
            with Http3Client((server.host, server.port)) as client:
                assert client.fetch("GET", "/a").body == b"/a"
        else:
            with httpx.Client(verify=False, http1=version == "HTTP/1.1", http2=version == "HTTP/2") as other:
                response = other.get(f"{server.url}/a")
            assert (response.http_version, response.text) == (version, "/a")


@every_version
@pytest.mark.parametrize("label", ["CERTIFICATE", "X509 CERTIFICATE", "TRUSTED CERTIFICATE"])
def test_the_whole_chain_of_a_file_is_served(label: str, version: str, files: Files) -> None:
    """The client has only the root: it needs the intermediate certificate, behind a byte order mark and a label."""
    leaf = files.ca.create_child_ca().issue_cert("127.0.0.1")
    assert len(leaf.cert_chain_pems) == 2
    parts = [
        b"\xef\xbb\xbf" + blob.bytes().replace(b"CERTIFICATE", label.encode())
        for blob in leaf.cert_chain_pems
    ]
    files.cert.write_bytes(b"".join([*parts, leaf.private_key_pem.bytes()]))
    with (
        serving("asgi", ssl_certfile=str(files.cert), http3=True) as server,
        clients(version, str(files.roots)) as client,
    ):
        response = client.get(f"{server.url}/a")
    assert (response.http_version, response.text) == (version, "/a")
