"""Certificates and keys on disk: what is served with them, and what is said about bad ones."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import Encoding, PrivateFormat
from towline.config import ServerConfig
from towline.errors import StartupError

from tests.support.feature_server import KINDS, parse, serving

PASSWORD = "open sesame"
FORMS = {
    "pkcs8": PrivateFormat.PKCS8,
    "traditional": PrivateFormat.TraditionalOpenSSL,
}


class Files:
    """The certificate and the key of 127.0.0.1, the key under a password."""

    def __init__(self, folder: Path, form: str, key_type: trustme.KeyType) -> None:
        self.ca = trustme.CA(key_type=key_type)
        leaf = self.ca.issue_cert("127.0.0.1", key_type=key_type)
        self.cert, self.key = folder / "cert.pem", folder / "key.pem"
        self.cert.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        plain = leaf.private_key_pem.bytes()
        protection = serialization.BestAvailableEncryption(PASSWORD.encode())
        key = serialization.load_pem_private_key(plain, None)
        self.key.write_bytes(key.private_bytes(Encoding.PEM, FORMS[form], protection))
        self.plain = folder / "plain.pem"
        self.plain.write_bytes(plain)

    def options(self, password: str | None, **other: Any) -> dict[str, Any]:
        options = {"ssl_certfile": str(self.cert), "ssl_keyfile": str(self.key), **other}
        return {**options, "ssl_keyfile_password": password} if password is not None else options

    def ask(self, kind: str, **options: Any) -> bytes:
        context = ssl.create_default_context()
        self.ca.configure_trust(context)
        with serving(kind, **options) as server:
            with (
                socket.create_connection((server.host, server.port), timeout=10) as plain,
                context.wrap_socket(plain, server_hostname="127.0.0.1") as client,
            ):
                client.sendall(b"GET /a HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
                received = b""
                while part := client.recv(65536):
                    received += part
        return parse(received).body


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[trustme.KeyType.ECDSA, trustme.KeyType.RSA], ids=["ecdsa", "rsa"])
def files(form: str, tmp_path: Path, request: pytest.FixtureRequest) -> Files:
    return Files(tmp_path, form, request.param)


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_an_encrypted_key_with_its_password(kind: str, files: Files) -> None:
    assert files.ask(kind, **files.options(PASSWORD)) == b"/a"


def test_certificate_and_encrypted_key_in_one_file(files: Files) -> None:
    files.cert.write_bytes(files.key.read_bytes() + files.cert.read_bytes())
    options = {"ssl_certfile": str(files.cert), "ssl_keyfile_password": PASSWORD}
    assert files.ask("asgi", **options) == b"/a"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("password", "expected"),
    [(None, "no password was given"), ("shut sesame", "the password is not the right one")],
)
def test_mistakes_name_the_file(kind: str, password: str | None, expected: str, files: Files) -> None:
    with pytest.raises(StartupError) as caught, serving(kind, **files.options(password)):
        pass
    assert str(caught.value) == f"TLS: {files.key}: the private key is encrypted, and {expected}"
    assert "sesame" not in repr(ServerConfig("app:app", **files.options("open sesame")))


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_files_as_editors_write_them(kind: str, files: Files) -> None:
    cert, key = files.cert.read_bytes(), files.key.read_bytes()
    authority, written = files.ca.cert_pem.bytes(), files.cert.with_name("ca.pem")
    written.write_bytes(b"\xef\xbb\xbf" + authority.replace(b"CERTIFICATE", b"X509 CERTIFICATE"))
    files.cert.write_bytes(cert.replace(b"CERTIFICATE", b"X509 CERTIFICATE").decode().encode("utf-16"))
    files.key.write_bytes(b"\xef\xbb\xbfKey Attributes: <none>\n  " + key.replace(b"\n", b"\r\n  "))
    client_certs: dict[str, Any] = {"ssl_ca_certs": str(written), "ssl_cert_reqs": "optional"}
    assert files.ask(kind, **files.options(PASSWORD, **client_certs)) == b"/a"
    written.write_bytes(authority + b"-----BEGIN CERTIFICATE-----\n")
    lines = authority.count(b"\n")
    with (
        pytest.raises(StartupError, match=rf"ca\.pem: line {lines + 1}: .* has no -----END"),
        serving(kind, **files.options(PASSWORD, **client_certs)),
    ):
        pass


def test_a_missing_file_is_a_clear_error(tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    with pytest.raises(StartupError) as caught, serving("asgi", ssl_certfile=str(missing)):
        pass
    assert str(caught.value) == f"TLS: {missing}: No such file or directory (os error 2)"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here")
@pytest.mark.parametrize(
    "command",
    [
        ["pkcs8", "-topk8", "-v2", "aes128"],
        ["pkcs8", "-topk8", "-v2", "aes256"],
        ["pkcs8", "-topk8", "-v2", "des3"],
        ["pkcs8", "-topk8", "-v2", "aes256", "-v2prf", "hmacWithSHA1"],
        ["pkcs8", "-topk8", "-scrypt"],
        ["rsa", "-aes128", "-traditional"],
        ["rsa", "-aes192", "-traditional"],
        ["rsa", "-aes256", "-traditional"],
        ["rsa", "-des3", "-traditional"],
    ],
    ids=" ".join,
)
def test_keys_that_openssl_wrote(command: list[str], tmp_path: Path) -> None:
    files = Files(tmp_path, "pkcs8", trustme.KeyType.RSA)
    openssl = ["openssl", *command, "-in", str(files.plain), "-passout", f"pass:{PASSWORD}"]
    subprocess.run([*openssl, "-out", str(files.key)], check=True, capture_output=True)
    text = files.key.read_bytes()
    assert b"ENCRYPTED" in text
    files.key.write_bytes(b"a remark in Latin-1: \xe9\r\n" + text.replace(b"\n", b"\r\n"))
    assert files.ask("asgi", **files.options(PASSWORD)) == b"/a"


def test_a_plain_key_is_taken_before_an_encrypted_one(tmp_path: Path) -> None:
    files = Files(tmp_path, "traditional", trustme.KeyType.ECDSA)
    files.key.write_bytes(files.key.read_bytes() + files.plain.read_bytes())
    assert files.ask("asgi", **files.options(None)) == b"/a"
