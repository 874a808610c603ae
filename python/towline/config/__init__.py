"""The server's configuration: every option with its default and the reason for it.

`ServerConfig` is the single definition. The command line (`--limit-request-line`), the environment
(`TOWLINE_LIMIT_REQUEST_LINE`), a TOML file (`limit-request-line = 8192`) and the native module, which reads
the attributes by name, all use it. Units are bytes and seconds unless a name says otherwise; None means
"no limit" or "not given". An option is declared in the file of its group.
"""

from __future__ import annotations

import dataclasses
import textwrap
from typing import TYPE_CHECKING, Any

from .._codings import CODINGS as CODINGS
from .._options import groups_of, options_of, rows_of
from .._values import rate
from ..errors import ConfigError
from .acme import AcmeOptions
from .address import Address as Address
from .checks import as_tuple, check_kind, check_together
from .connections import ClientLimitOptions, LimitOptions, ProxyOptions, TimeoutOptions, TlsOptions
from .development import DevelopmentOptions
from .features import FileOptions, LoggingOptions, MetricsOptions
from .http3 import Http3Options
from .process import ApplicationOptions, ListeningOptions, ProcessOptions, WorkerOptions
from .protocols import ProtocolOptions

if TYPE_CHECKING:
    from .._native import TicketStore


@dataclasses.dataclass(frozen=True)
class Bind:
    """An open listening socket for a native server.

    `fd` stays owned by the caller: the server duplicates it. With -1 the settings are only checked. `address` is its readable form
    (`127.0.0.1:8000`, `unix:/run/app.sock`). `metrics`: serves only the metrics page. `udp`: a UDP socket for HTTP/3;
    `secret`: of all workers that share its port, which pass each other datagrams; `tickets`: those with which their
    clients can send early data; `settings`: those of the address, by default of one that has none of its own.
    """

    fd: int
    address: str
    metrics: bool = False
    udp: bool = False
    secret: bytes = dataclasses.field(default=b"", repr=False)
    tickets: TicketStore | None = None
    settings: Address | None = None


# The fields of a dataclass begin with those of the last base.
@dataclasses.dataclass(frozen=True)
class ServerConfig(
    DevelopmentOptions,
    Http3Options,
    ProtocolOptions,
    MetricsOptions,
    FileOptions,
    LoggingOptions,
    ProxyOptions,
    AcmeOptions,
    TlsOptions,
    TimeoutOptions,
    ClientLimitOptions,
    LimitOptions,
    ProcessOptions,
    WorkerOptions,
    ListeningOptions,
    ApplicationOptions,
):
    """All options of `towline serve`. Raises `ConfigError`, naming the option, if a value or a combination is invalid.

    - app: the application, or an import string (`"module:app"`); None serves static files only
    - hooks: the server hooks of a gunicorn configuration file (default None)
    """

    def __post_init__(self) -> None:
        if not isinstance(self.bind, str):
            bind = self.bind if isinstance(self.bind, (list, tuple)) else (self.bind,)
            texts = [item if isinstance(item, str) else str(Address.of(item)) for item in bind if item]
            object.__setattr__(self, "bind", tuple(texts))
        wrong = []
        for name, (described, default) in options_of(type(self)).items():
            value = getattr(self, name)
            try:
                if isinstance(default, tuple):
                    value = as_tuple(name, value)
                    object.__setattr__(self, name, value)
                check_kind(name, described, default, value)
                if described.check is not None:
                    described.check(name, value)
            except ConfigError as error:
                wrong.append(str(error))
        if wrong:
            raise ConfigError("\n".join(wrong))
        check_together(self)

    def replace(self, **changes: Any) -> ServerConfig:
        """A copy with some options changed; validated again."""
        return dataclasses.replace(self, **changes)

    @property
    def versions(self) -> tuple[int, ...]:
        """The versions of HTTP that are on."""
        switches = {1: self.http1, 2: self.http2, 3: self.http3}
        return tuple(version for version, is_on in switches.items() if is_on)

    @property
    def plain_settings(self) -> Address:
        """The settings of an address that has none of its own, as the native server reads them."""
        return Address("").resolved(self)

    @property
    def rate(self) -> tuple[int, int, int] | None:
        """`limit_rate` as the native server reads it: requests, in seconds, and at once."""
        if self.limit_rate is None:
            return None
        count, seconds = rate(self.limit_rate)
        return count, seconds, self.limit_rate_burst or count

    @property
    def has_tls(self) -> bool:
        """Whether an address without settings of its own has TLS."""
        return bool(self.ssl_certfile or self.acme)

    @property
    def certificate_files(self) -> list[str]:
        """The files of all certificates, also of those that come by ACME."""
        own = [file for address in self.given_addresses for file in address.certfile or ()]
        return [*self.ssl_certfile, *own, *self.acme_files]

    @property
    def acme_challenges(self) -> list[str]:
        """The kinds of challenges that the addresses can answer, all of which are over TCP."""
        over_tcp = {address.tls for address in self.addresses if address.http != (3,)}
        return [kind for kind, tls in (("tls-alpn-01", True), ("http-01", False)) if tls in over_tcp]

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The addresses to open with their settings, whichever options named them."""
        return tuple(address.resolved(self) for address in self.given_addresses)

    @property
    def given_addresses(self) -> tuple[Address, ...]:
        """The addresses with the settings of their own only."""
        if self.bind:
            return tuple(map(Address, self.bind))
        if self.uds is not None:
            return (Address(f"unix:{self.uds}"),)
        if self.fd is not None:
            return (Address(f"fd://{self.fd}"),)
        host = f"[{self.host}]" if ":" in self.host and not self.host.startswith("[") else self.host
        return (Address(f"{host}:{self.port}"),)


if ServerConfig.__doc__:
    ServerConfig.__doc__ = (
        f"{ServerConfig.__doc__.rstrip()}\n{textwrap.indent(rows_of(ServerConfig), '    ')}\n"
    )
GROUPS = groups_of(ServerConfig)
