"""Servers with which rustls has nothing in common: drop-ins connect with OpenSSL, clients name the line that does."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import towline
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.client_backends import BACKENDS
from tests.support.tls import Server

CBC = "ECDHE-ECDSA-AES256-SHA384:ECDHE-RSA-AES256-SHA384:@SECLEVEL=0"


def p521(folder: Path) -> tuple[str, str]:
    """A self-signed certificate with a key of P-521, and the key."""
    key = ec.generate_private_key(ec.SECP521R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA512())
    )
    paths = str(folder / "p521.pem"), str(folder / "p521_key.pem")
    Path(paths[0]).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    Path(paths[1]).write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return paths


@pytest.fixture(params=["CBC", "P-521"])
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Server, str]]:
    """A server, and the file of its authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if request.param == "CBC":
        ca, path = trustme.CA(), str(tmp_path / "ca.pem")
        ca.cert_pem.write_to_path(path)
        ca.issue_cert("localhost").configure_cert(context)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(CBC)
    else:
        path, key = p521(tmp_path)
        context.load_cert_chain(path, key)
    server = Server(context)
    yield server, path
    server.close()


def _httpx(url: str, verify: Any) -> Any:
    httpx = pytest.importorskip("towline.httpx")
    with httpx.Client(verify=verify, trust_env=False) as client:
        return [client.get(url).content for _ in range(2)]


def _httpx_async(url: str, verify: Any) -> Any:
    httpx = pytest.importorskip("towline.httpx")

    async def call() -> Any:
        async with httpx.AsyncClient(verify=verify, trust_env=False) as client:
            return [(await client.get(url)).content for _ in range(2)]

    return asyncio.run(call())


def _requests(url: str, verify: Any) -> Any:
    requests = pytest.importorskip("requests")
    adapter = pytest.importorskip("towline.requests").Adapter()
    with requests.Session() as session:
        session.trust_env = False
        session.mount("https://", adapter)
        return [session.get(url, verify=verify).content for _ in range(2)]


DROPINS: dict[str, Callable[[str, Any], Any]] = {
    "httpx": _httpx,
    "httpx, async": _httpx_async,
    "requests": _requests,
}


@pytest.mark.parametrize("dropin", DROPINS)
def test_a_drop_in_connects_with_openssl(legacy: tuple[Server, str], dropin: str) -> None:
    server, path = legacy
    assert DROPINS[dropin](server.url("localhost"), path) == [b"good"] * 2
    assert DROPINS[dropin](server.url("localhost"), False) == [b"good"] * 2


@pytest.mark.parametrize("dropin", DROPINS)
def test_openssl_verifies_the_certificate(legacy: tuple[Server, str], dropin: str, tmp_path: Path) -> None:
    server, _ = legacy
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    with pytest.raises(Exception, match=r"verif|issuer|unknown|self"):
        DROPINS[dropin](server.url("localhost"), str(tmp_path / "other.pem"))
    assert server.requests == 0


@pytest.mark.parametrize("name", BACKENDS)
def test_a_client_names_the_line_that_helps(legacy: tuple[Server, str], name: str) -> None:
    server, path = legacy
    backend = BACKENDS[name](verify=path, trust_env=False)
    with pytest.raises(towline.TLSError, match=r"verify=ssl\.create_default_context\(\)") as raised:
        backend.get(server.url("localhost"))
    assert raised.value.phase == "tls"
    backend.close()
    backend = BACKENDS[name](verify=ssl.create_default_context(cafile=path), trust_env=False)
    assert backend.get(server.url("localhost")).content == b"good"
    backend.close()
