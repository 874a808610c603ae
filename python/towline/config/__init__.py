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
from .checks import as_tuple, check_kind, check_together
from .connections import LimitOptions, ProxyOptions, TimeoutOptions, TlsOptions
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

    `fd` stays owned by the caller: the server duplicates it. `address` is its readable form
    (`127.0.0.1:8000`, `unix:/run/app.sock`). `metrics`: serves only the metrics page. `udp`: a UDP socket for HTTP/3;
    `secret`: of all workers that share its port, which pass each other datagrams; `tickets`: those with which their
    clients can send early data.
    """

    fd: int
    address: str
    metrics: bool = False
    udp: bool = False
    secret: bytes = dataclasses.field(default=b"", repr=False)
    tickets: TicketStore | None = None


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
    TlsOptions,
    TimeoutOptions,
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
        for name, (described, default) in options_of(type(self)).items():
            value = getattr(self, name)
            if isinstance(default, tuple):
                value = as_tuple(name, value)
                object.__setattr__(self, name, value)
            check_kind(name, described, default, value)
            if described.check is not None:
                described.check(name, value)
        check_together(self)

    def replace(self, **changes: Any) -> ServerConfig:
        """A copy with some options changed; validated again."""
        return dataclasses.replace(self, **changes)

    @property
    def tcp(self) -> bool:
        """Whether HTTP/1 or HTTP/2 is served."""
        return self.http1 or self.http2

    @property
    def http(self) -> str:
        """The versions over TCP, as the native server reads them: `auto`, `1` or `2`."""
        return "auto" if self.http1 == self.http2 else "1" if self.http1 else "2"

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses to open, in `--bind` form, whichever options named them."""
        if self.bind:
            return self.bind
        if self.uds is not None:
            return (f"unix:{self.uds}",)
        if self.fd is not None:
            return (f"fd://{self.fd}",)
        host = f"[{self.host}]" if ":" in self.host and not self.host.startswith("[") else self.host
        return (f"{host}:{self.port}",)


if ServerConfig.__doc__:
    ServerConfig.__doc__ = (
        f"{ServerConfig.__doc__.rstrip()}\n{textwrap.indent(rows_of(ServerConfig), '    ')}\n"
    )
GROUPS = groups_of(ServerConfig)
