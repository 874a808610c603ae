"""The certificate of a run: accepted by clients that trust its authority, and by no others."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path

import pytest
from towline.bench.subjects import make_certificate


def handshake(certificate, key, context: ssl.SSLContext, name: str) -> str | None:
    """The negotiated protocol. Raises the client's exception."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate, key)
    client_end, server_end = socket.socketpair()

    def serve() -> None:
        try:
            serving.wrap_socket(server_end, server_side=True).close()
        except (ssl.SSLError, OSError):
            server_end.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with context.wrap_socket(client_end, server_hostname=name) as connection:
            return connection.version()
    finally:
        client_end.close()
        thread.join(10)


def test_the_certificate_is_trusted_only_through_its_authority(tmp_path: Path) -> None:
    certificate_files = make_certificate(tmp_path)
    context = ssl.create_default_context(cafile=str(certificate_files.authority))
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    for name in ("localhost", "127.0.0.1"):
        assert handshake(*certificate_files.tls, context, name) == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(*certificate_files.tls, context, "example.org")
    (tmp_path / "other").mkdir()
    other = make_certificate(tmp_path / "other")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(*other.tls, context, "localhost")


def test_the_key_is_readable_only_by_its_owner(tmp_path: Path) -> None:
    certificate_files = make_certificate(tmp_path)
    assert certificate_files.key.stat().st_mode & 0o077 == 0
    assert "PRIVATE KEY" in certificate_files.key.read_text()
    assert (
        "PRIVATE KEY"
        not in certificate_files.certificate.read_text() + certificate_files.authority.read_text()
    )
