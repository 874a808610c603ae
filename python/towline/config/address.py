"""An address of the server with settings of its own: a URL, a table of the configuration file, or a value in Python."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .. import _options as kind
from .._suggest import closest
from ..errors import ConfigError

if TYPE_CHECKING:
    from . import ServerConfig

DEFAULT_PORTS = {"http": 80, "https": 443}
LOCAL = ("127.0.0.1", "::1")
"""The addresses that are trusted by default."""
NETLOC = re.compile(r"(\[[^]/@]+\]|[^][:/@?#\s]*)(?::([0-9]{1,5}))?/?", re.ASCII)


def _versions(value: str) -> tuple[int, ...]:
    return tuple(kind.integer(part) for part in value.split(","))


PARSERS: dict[str, Callable[[str], Any]] = {
    "tls": kind.boolean,
    "certfile": lambda value: (value,),
    "keyfile": lambda value: (value,),
    "http": _versions,
    "proxy_protocol": kind.boolean,
    "forwarded_allow_ips": kind.words,
}
"""The settings of an address, with the parsers of their text."""


@dataclasses.dataclass(frozen=True)
class Address:
    """An address of the server, and what differs there from the server's options.

    - address: `http://HOST:PORT`, `https://HOST:PORT`, `HOST:PORT`, `unix:PATH` or `fd://N`. A query has settings:
      `https://:8443?certfile=cert.pem&keyfile=key.pem&http=1,2,3`
    - tls: whether it has TLS, for addresses without `http://` or `https://`
    - certfile, keyfile: certificate chains and private keys in PEM, in the same order
    - http: the versions of HTTP, some of 1, 2 and 3
    - proxy_protocol: expect the PROXY protocol from trusted addresses
    - forwarded_allow_ips: trusted addresses or networks, `unix` for Unix sockets, `*` for any

    A setting that is None is that of the options. Raises `ConfigError` with the address and the rule.
    """

    address: str
    tls: bool | None = None
    certfile: tuple[str, ...] | None = None
    keyfile: tuple[str, ...] | None = None
    http: tuple[int, ...] | None = None
    proxy_protocol: bool | None = None
    forwarded_allow_ips: tuple[str, ...] | None = None
    announces_http3: bool = dataclasses.field(default=True, repr=False)
    """For the native server: tell clients about HTTP/3 on other addresses, if there is none on this one."""

    def __post_init__(self) -> None:
        if not isinstance(self.address, str):
            raise ConfigError(f"bind: expected text or a table with `address`, not {self.address!r}")
        location, _, query = self.address.partition("?")
        given = {name: value for name in PARSERS if (value := getattr(self, name)) is not None}
        try:
            for name, value in _settings(query):
                if name in given:
                    raise ValueError(f"{name} is given twice")
                given[name] = value
            given = {name: _value(name, value) for name, value in given.items()}
            scheme, has_scheme, rest = location.partition("://")
            if has_scheme and scheme not in ("fd", "unix"):
                location = _location(scheme, rest)
                if given.setdefault("tls", scheme == "https") != (scheme == "https"):
                    raise ValueError(f"tls contradicts {scheme}://")
            _check(location, given)
        except ValueError as error:
            raise ConfigError(f"bind {self.address}: {error}") from None
        if given.get("certfile"):
            given["tls"] = True
        for name, value in {**given, "address": location}.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, item: Any) -> Address:
        """An address from its text, or from a table."""
        if isinstance(item, Address):
            return item
        if not isinstance(item, Mapping):
            return cls(item)
        settings = {_name(key): value for key, value in item.items()}
        address = settings.pop("address", None)
        unknown = next((name for name in settings if name not in PARSERS), None)
        if unknown is not None:
            raise ConfigError(f"bind {address}: {_unknown(unknown)}")
        return cls(address, **settings)

    def __str__(self) -> str:
        """The address as text for `--bind`."""
        query = [f"{name}={_text(value)}" for name in PARSERS if (value := getattr(self, name)) is not None]
        location = self.address
        if self.tls is not None and not location.startswith(("unix:", "fd://")):
            location = f"{'https' if self.tls else 'http'}://{location}"
            query = [item for item in query if not item.startswith("tls=")]
        return "?".join([location, "&".join(query)] if query else [location])

    def resolved(self, config: ServerConfig) -> Address:
        """The address with all its settings. Raises `ConfigError`."""
        tls = config.has_tls if self.tls is None else self.tls
        pair = (self.certfile, self.keyfile or ())
        certfile, keyfile = pair if pair[0] else (config.ssl_certfile, config.ssl_keyfile)
        if tls and not (certfile or config.acme):
            raise ConfigError(
                f"bind {self}: https needs a certificate: certfile=PATH in its settings, ssl_certfile or acme"
            )
        http = self.http or config.versions
        if not tls or self.address.startswith("unix:"):
            if 3 in (self.http or ()):
                raise ConfigError(
                    f"bind {self}: HTTP/3 needs https, because QUIC is always encrypted (RFC 9001)"
                )
            http = tuple(version for version in http if version != 3)
        if not http and self.address:
            raise ConfigError(f"bind {self}: only HTTP/3 is on, which needs https and a port (RFC 9001)")
        proxy_protocol, trusted = self.proxy_protocol, self.forwarded_allow_ips
        return dataclasses.replace(
            self,
            tls=tls,
            certfile=certfile if tls else (),
            keyfile=keyfile if tls else (),
            http=http,
            proxy_protocol=config.proxy_protocol if proxy_protocol is None else proxy_protocol,
            forwarded_allow_ips=config.forwarded_allow_ips if trusted is None else trusted,
            announces_http3=self.http is None or 3 in self.http,
        )


def are_addresses(_: str, value: tuple[str, ...]) -> None:
    """Check each address alone. Raises `ConfigError` with a line for each wrong one."""
    wrong = []
    for text in value:
        try:
            Address(text)
        except ConfigError as error:
            wrong.append(str(error))
    if wrong:
        raise ConfigError("\n".join(wrong))


def parse_list(value: str) -> tuple[str, ...]:
    """Parse addresses that commas or spaces separate. A comma after `?` belongs to the settings."""
    found: list[str] = []
    for word in value.split():
        plain, has_query, query = word.partition("?")
        *others, last = plain.split(",")
        found += [*others, f"{last}?{query}" if has_query else last]
    return tuple(address for address in found if address)


def _name(key: str) -> str:
    return key.replace("-", "_").removeprefix("ssl_")


def _unknown(name: str) -> str:
    close = closest(name, PARSERS)
    hint = f"did you mean {close!r}?" if close else f"there are {', '.join(PARSERS)}"
    return f"unknown setting {name!r}; {hint}"


def _settings(query: str) -> list[tuple[str, Any]]:
    """The settings of a query. One without a value is a switch that is on."""
    if not query:
        return []
    from urllib.parse import unquote

    found: list[tuple[str, Any]] = []
    for item in query.split("&"):
        key, has_value, value = item.partition("=")
        name = _name(unquote(key))
        if name not in PARSERS:
            raise ValueError(_unknown(name))
        if name in ("certfile", "keyfile"):
            found.append((name, [unquote(path) for path in value.split(",") if path]))
        else:
            found.append((name, unquote(value) if has_value else "true"))
    if len(dict(found)) < len(found):
        raise ValueError("a setting is given twice; commas separate several values")
    return found


def _value(name: str, value: Any) -> Any:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        try:
            return PARSERS[name](value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    if PARSERS[name] is kind.boolean:
        if not isinstance(value, bool):
            raise ValueError(f"{name}: expected true or false, not {value!r}")
        return value
    values = value if isinstance(value, (list, tuple)) else (value,)
    values = tuple(os.fspath(item) if isinstance(item, os.PathLike) else item for item in values)
    if not all(type(item) is (int if name == "http" else str) for item in values):
        raise ValueError(
            f"{name}: expected a list of {'numbers' if name == 'http' else 'text'}, not {value!r}"
        )
    return values


def _location(scheme: str, rest: str) -> str:
    match = NETLOC.fullmatch(rest)
    if scheme not in DEFAULT_PORTS or match is None or not (match[1] or match[2]):
        raise ValueError(
            "expected http://HOST:PORT, https://HOST:PORT, HOST:PORT, unix:PATH or fd://N, settings after ?"
        )
    port = int(match[2] or DEFAULT_PORTS[scheme])
    if port > 65535:
        raise ValueError(f"port: must be between 0 and 65535, not {port}")
    return f"{match[1]}:{port}"


def _check(location: str, given: Mapping[str, Any]) -> None:
    """Check settings alone and together. Raises ValueError with the rule."""
    certfile, keyfile, http = (given.get(name) for name in ("certfile", "keyfile", "http"))
    if http is not None and (not 0 < len(http) == len({*http} & {1, 2, 3})):
        raise ValueError(f"http: expected some of 1, 2 and 3, not {','.join(map(str, http))}")
    if given.get("tls") is False and (certfile or keyfile):
        raise ValueError("certfile and keyfile contradict an address without TLS")
    if keyfile and len(keyfile) != len(certfile or ()):
        raise ValueError("keyfile needs one certfile for each key, in the same order")
    if http and 3 in http and given.get("tls") is False:
        raise ValueError("HTTP/3 needs https, because QUIC is always encrypted (RFC 9001)")
    if http and 3 in http and location.startswith("unix:"):
        raise ValueError("HTTP/3 needs an address with a port, because it runs over UDP")
    if http == (3,) and given.get("proxy_protocol"):
        raise ValueError("proxy_protocol is for TCP, and HTTP/3 alone has none")
    for entry in given.get("forwarded_allow_ips") or ():
        if entry not in ("*", "unix", *LOCAL):
            import ipaddress

            try:
                ipaddress.ip_network(entry, strict=False)
            except ValueError:
                raise ValueError(
                    f"forwarded_allow_ips: {entry!r} is not an address, a network such as 10.0.0.0/8, unix or *"
                ) from None


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    from urllib.parse import quote

    return ",".join(quote(str(item), safe="/:*.") for item in value)
