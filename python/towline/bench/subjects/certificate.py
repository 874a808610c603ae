"""The certificate of a run, made by the extension (rcgen), so that neither openssl nor a Python package is needed.

A key pair in the package would work too, but security scanners complain of private keys in packages.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..._native import test_certificate

NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Certificate:
    """PEM files. Clients that trust `authority` accept `certificate` for this machine's own addresses."""

    authority: Path
    certificate: Path
    key: Path

    @property
    def tls(self) -> tuple[Path, Path]:
        """The paths in the form of `Settings.tls`."""
        return self.certificate, self.key


def make_certificate(folder: Path) -> Certificate:
    """Writes three files into `folder`; the key is readable by its owner only."""
    found = Certificate(folder / "authority.pem", folder / "certificate.pem", folder / "key.pem")
    texts = test_certificate(NAMES)
    for path, text in zip((found.authority, found.certificate, found.key), texts, strict=True):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
    return found
