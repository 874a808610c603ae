"""Files of certificates as editors, scripts and OpenSSL write them: each certificate counts, or the error has the line."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import towline
import trustme

from tests.support.client_backends import BACKENDS
from tests.support.tls import Server, Trust, serving

BEGIN = b"-----BEGIN CERTIFICATE-----"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(params=BACKENDS)
def make(request: pytest.FixtureRequest) -> Iterator[Any]:
    created: list[Any] = []

    def make(**options: Any) -> Any:
        created.append(BACKENDS[request.param](**{"trust_env": False, **options}))
        return created[-1]

    yield make
    for backend in created:
        backend.close()


def der_of(pem: bytes) -> bytes:
    return base64.b64decode(b"".join(pem.split(b"\n")[1:-2]))


def relabelled(pem: bytes, label: bytes, behind: bytes = b"") -> bytes:
    content = base64.encodebytes(der_of(pem) + behind)
    return b"-----BEGIN %b-----\n%b-----END %b-----\n" % (label, content, label)


def test_every_certificate_of_a_file_counts(make: Any, authority: trustme.CA, tmp_path: Path) -> None:
    pem, other = authority.cert_pem.bytes(), trustme.CA().cert_pem.bytes()
    files = {
        "byte order mark": b"\xef\xbb\xbf" + pem,
        "byte order mark between": other + b"\xef\xbb\xbf" + pem,
        "UTF-16": pem.decode().encode("utf-16"),
        "CRLF": pem.replace(b"\n", b"\r\n"),
        "CR": pem.replace(b"\n", b"\r"),
        "indented": b"  " + pem.replace(b"\n", b"\n  "),
        "text": b"Issuer: \xe9\n# comment\n" + other + b"\nmore text\n\n" + pem,
        "glued": other.rstrip() + pem.rstrip(),
        "X509": relabelled(pem, b"X509 CERTIFICATE"),
        "TRUSTED": relabelled(
            pem, b"TRUSTED CERTIFICATE", b"\x30\x0a\x30\x08\x06\x06\x2b\x06\x01\x05\x05\x07"
        ),
        "DER": der_of(pem),
        "key in it": trustme.CA().private_key_pem.bytes() + pem,
    }
    with serving(authority.issue_cert("localhost")) as server:
        for name, content in files.items():
            file = tmp_path / f"{name}.pem"
            file.write_bytes(content)
            assert make(verify=str(file)).get(server.url("localhost")).content == b"good", name


def test_an_unreadable_section_is_an_error_with_its_line(
    make: Any, authority: trustme.CA, tmp_path: Path
) -> None:
    pem = authority.cert_pem.bytes()
    lines = pem.count(b"\n")
    files = {
        b"": "it is empty",
        pem + BEGIN + b"\nAAAA\n": f"line {lines + 1}: -----BEGIN CERTIFICATE----- has no -----END",
        pem + pem.replace(b"\nM", b"\n*", 1): f"line {lines + 2}: not base64",
        pem + relabelled(pem, b"PKCS7"): f"line {lines + 1}: certificates in PKCS #7",
        relabelled(pem, b"CERTFICATE") + pem.replace(b"CERTIFICATE", b"CERTIFICAT"): "no certificate",
        relabelled(pem, b"CERTIFICATES"): "line 1: unknown PEM section",
        b"\n" + pem.replace(b"-----BEGIN", b"----BEGIN"): "line 2: malformed beginning",
        pem + BEGIN + b"\nAAAA\n-----END CERTIFICATE-----\n": f"line {lines + 1}: not a certificate",
    }
    for number, (content, error) in enumerate(files.items()):
        file = tmp_path / f"{number}.pem"
        file.write_bytes(content)
        with pytest.raises(towline.ConfigError) as raised:
            make(verify=str(file)).get("https://localhost:1/")
        assert f"{file}: " in str(raised.value)
        assert error in str(raised.value), content


def test_a_folder_of_certificates(make: Any, authority: trustme.CA, tmp_path: Path) -> None:
    (tmp_path / "README").write_text("no certificate")
    (tmp_path / "key.pem").write_bytes(trustme.CA().private_key_pem.bytes())
    (tmp_path / "ca.crt").write_bytes(b"\xef\xbb\xbf" + authority.cert_pem.bytes())
    (tmp_path / "0123abcd.0").symlink_to("ca.crt")
    (tmp_path / "gone.0").symlink_to("nowhere")
    with serving(authority.issue_cert("localhost")) as server:
        assert make(verify=str(tmp_path)).get(server.url("localhost")).content == b"good"
        (tmp_path / "broken.pem").write_bytes(BEGIN + b"\n")
        with pytest.raises(towline.ConfigError, match=r"broken\.pem: line 1: "):
            make(verify=str(tmp_path)).get(server.url("localhost"))


ENVIRONMENT = """
import sys, towline
try:
    print(towline.get(sys.argv[1]).text)
except towline.Error as error:
    print(type(error).__name__, error)
"""


def test_the_environment_names_files_and_folders(authority: trustme.CA, tmp_path: Path) -> None:
    good, broken, folder = tmp_path / "ca.pem", tmp_path / "broken.pem", tmp_path / "folder"
    good.write_bytes(b"\xef\xbb\xbf" + authority.cert_pem.bytes())
    broken.write_bytes(authority.cert_pem.bytes() + BEGIN + b"\n")
    folder.mkdir()
    (folder / "ca.pem").write_bytes(good.read_bytes())
    with serving(authority.issue_cert("localhost")) as server:
        for environment, answer in (
            ({"SSL_CERT_FILE": str(good)}, "good"),
            ({"SSL_CERT_DIR": f"{tmp_path / 'nowhere'}:{folder}"}, "good"),
            ({"SSL_CERT_FILE": str(broken)}, f"SSL_CERT_FILE: {broken}: line "),
        ):
            run = [sys.executable, "-c", ENVIRONMENT, server.url("localhost")]
            done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=60)
            assert answer in done.stdout, (environment, done)


def test_certificates_and_keys_of_a_client(make: Any, tmp_path: Path) -> None:
    trust = Trust(tmp_path)
    issued = trust.ca.issue_cert("client.test")
    cert, key = issued.cert_chain_pems[0].bytes(), issued.private_key_pem.bytes()
    files = {
        "mark": (b"\xef\xbb\xbf" + cert, b"\xef\xbb\xbf" + key),
        "UTF-16": (cert.decode().encode("utf-16"), key.decode().encode("utf-16")),
        "CR, indented": (cert.replace(b"\n", b"\r"), b" " + key.replace(b"\n", b"\n ")),
        "text": (b"Bag Attributes\n  friendlyName: a\n" + cert, b"Key Attributes: <No Attributes>\n" + key),
        "DER": (der_of(cert), der_of(key)),
        "two keys": (relabelled(cert, b"X509 CERTIFICATE"), key + trustme.CA().private_key_pem.bytes()),
    }
    server = Server(trust.server(require_client_cert=True))
    for name, (chain, private) in files.items():
        (tmp_path / "c.pem").write_bytes(chain)
        (tmp_path / "k.pem").write_bytes(private)
        pair = (str(tmp_path / "c.pem"), str(tmp_path / "k.pem"))
        backend = make(verify=trust.path, cert=pair)
        assert backend.get(server.url("localhost")).content == b"good", name
    (tmp_path / "k.pem").write_bytes(b"text\n" + key.replace(b"\n", b"\n%", 1))
    with pytest.raises(towline.ConfigError, match=r"k\.pem: .*line 3: not base64"):
        make(verify=trust.path, cert=pair).get(server.url("localhost"))
    server.close()
