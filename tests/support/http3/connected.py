"""Towline's server over HTTP/3, and an independent client of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trustme
from towline.testing import Running

from tests.support.feature_server import serving as serving_features
from tests.support.http3.client import Client


class Certificates:
    """An authority and a certificate of 127.0.0.1, in files."""

    def __init__(self, directory: Path) -> None:
        self.authority = trustme.CA()
        self.ca, self.chain = directory / "ca.pem", directory / "chain.pem"
        self.authority.cert_pem.write_to_path(str(self.ca))
        self.renew()

    def renew(self) -> None:
        """Replaces the certificate by a new one."""
        leaf = self.authority.issue_cert("127.0.0.1", "localhost")
        leaf.private_key_and_cert_chain_pem.write_to_path(str(self.chain))


@contextlib.contextmanager
def serving(kind: str, app: Any, directory: Path, **options: Any) -> Iterator[tuple[Running, Certificates]]:
    """Serves `app` as `asgi`, `wsgi` or `wsgi-threads` over HTTP/3, and over no other version that `options` does not name."""
    certificates = Certificates(directory)
    chain = str(certificates.chain)
    versions = {"http3": True, "http1": False, "http2": False}
    with serving_features(kind, app, ssl_certfile=chain, **versions | options) as server:
        yield server, certificates


@contextlib.contextmanager
def connected(
    kind: str, app: Any, directory: Path, library: str = "aioquic", **options: Any
) -> Iterator[Client]:
    with (
        serving(kind, app, directory, **options) as (server, certificates),
        Client((server.host, server.port), ca=str(certificates.ca), library=library) as client,
    ):
        yield client
