"""Options of certificates by ACME."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from typing import Any

from .._options import Section, each, option
from ..errors import ConfigError

LETS_ENCRYPT = "https://acme-v02.api.letsencrypt.org/directory"
STAGING = "https://acme-staging-v02.api.letsencrypt.org/directory"

LABEL = r"(?!-)[a-z0-9_-]{1,63}(?<!-)"


def ascii_name(name: str) -> str:
    """A host name as certificates have it (RFC 5890 2.3.2.1). Raises `ConfigError` for what ACME cannot prove here."""
    if not name.isascii():
        import idna

        with contextlib.suppress(idna.IDNAError):
            name = idna.encode(name, uts46=True).decode()
    name = name.lower().removesuffix(".")
    if name.startswith("*."):
        raise ConfigError(f"acme: {name!r}: a wildcard needs the challenge dns-01, which is not supported")
    if re.fullmatch(r"[\d.]+|.*:.*", name):
        raise ConfigError(f"acme: {name!r}: certificates for IP addresses and ports are not supported")
    if len(name) > 253 or not re.fullmatch(rf"{LABEL}(\.{LABEL})*", name):
        raise ConfigError(f"acme: {name!r} is no host name (RFC 1123 2.1)")
    return name


def default_store() -> str:
    """A place that outlives the server: that of the service under systemd (`StateDirectory=`), else of the user."""
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    state = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    return os.path.join(state or os.path.join(data, "towline"), "acme")


def is_directory(name: str, value: Any) -> None:
    if value != "staging" and not re.match(r"https://[^/]", value):
        raise ConfigError(f"{name}: expected an https URL, or staging, not {value!r}")


# A table, whose layout the formatter keeps.
# fmt: off
@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class AcmeOptions(Section, group="acme", summary="certificates by ACME: Let's Encrypt and other CAs"):
    acme: tuple[str, ...] = each(
        (), "get and renew the certificate of this host name; accepts the terms of the CA", metavar="NAME",
        check=lambda _, names: [*map(ascii_name, names)])
    acme_email: str | None = option(
        None, "address for the CA's messages about the account", metavar="ADDRESS")
    acme_directory: str = option(
        LETS_ENCRYPT, "directory URL of the CA, or staging for the tests of Let's Encrypt (default: Let's Encrypt)",
        metavar="URL", check=is_directory)
    acme_store: str | None = option(
        None,
        "directory of account and certificates, which several servers may share (default: acme in systemd's "
        "STATE_DIRECTORY, else ~/.local/share/towline/acme)",
        metavar="DIR")
    acme_ca: str | None = option(
        None, "authorities that the CA's own server is checked with, PEM (default: the public ones)", metavar="PATH")

    @property
    def acme_names(self) -> list[str]:
        """The names in ASCII and lower case."""
        return list(dict.fromkeys(map(ascii_name, self.acme)))

    @property
    def acme_url(self) -> str:
        """The URL of the CA's directory."""
        return STAGING if self.acme_directory == "staging" else self.acme_directory

    @property
    def acme_folder(self) -> str | None:
        """The folder of the CA in the store; None without `--acme`. Certificates of another CA are not served."""
        if not self.acme:
            return None
        folder = re.sub(r"[^A-Za-z0-9.]+", "-", self.acme_url.removeprefix("https://")).strip("-.")
        return os.path.join(self.acme_store or default_store(), folder)

    @property
    def acme_files(self) -> list[str]:
        """The files of the certificates, with their keys, in the store."""
        return [os.path.join(self.acme_folder or "", f"{name}.pem") for name in self.acme_names]
# fmt: on
