"""Settings from environment variables: proxies and trust. They are read when a client is created.

HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY are read in upper and lower case. HTTP_PROXY is ignored inside a CGI
program, where a client could set it (the standard library does this). SSL_CERT_FILE and SSL_CERT_DIR replace the
platform's trust store.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.request import getproxies_environment

from ..errors import ConfigError, InvalidURL
from .options import TLS, Proxy
from .url import DEFAULT_PORTS, URL

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class NoProxyRule:
    """An entry of NO_PROXY: a network, or a host with or without its subdomains, and optionally a port."""

    host: str = ""
    with_subdomains: bool = True
    with_host: bool = True
    network: _Network | None = None
    port: int | None = None

    def matches(self, host: str, address: Any, port: int) -> bool:
        if self.port is not None and self.port != port:
            return False
        if self.network is not None:
            return address is not None and address in self.network
        if host == self.host:
            return self.with_host
        return self.with_subdomains and host.endswith(f".{self.host}")


@dataclass(frozen=True)
class Proxies:
    """The proxies of a client."""

    by_scheme: Mapping[str, Proxy] = field(default_factory=dict)
    always: Proxy | None = None
    no_proxy_all: bool = False
    direct: tuple[NoProxyRule, ...] = ()

    def of(self, scheme: str, host: str, port: int) -> Proxy | None:
        """Returns the proxy for an origin; None: connect directly."""
        proxy = self.by_scheme.get(scheme, self.always)
        if proxy is None or self.no_proxy_all:
            return None
        host = host.rstrip(".").lower()
        try:
            address: Any = ipaddress.ip_address(host)
        except ValueError:
            address = None
        return None if any(rule.matches(host, address, port) for rule in self.direct) else proxy

    def __bool__(self) -> bool:
        return bool(self.by_scheme or self.always) and not self.no_proxy_all


def read_proxies() -> Proxies:
    """Reads the proxy variables. Raises ConfigError for a malformed URL, with the name of its variable."""
    found = getproxies_environment()
    proxies = {}
    for name in ("http", "https", "all"):
        if value := found.get(name):
            url = value if "://" in value else f"http://{value}"
            proxies[name] = Proxy(url, variable=variable_of(name))
    always = proxies.pop("all", None)
    entries = found.get("no", "").replace(",", " ").split()
    try:
        rules = tuple(parse_no_proxy(entry) for entry in entries if entry != "*")
    except InvalidURL as error:
        raise ConfigError(f"{variable_of('no')}: {error}") from None
    return Proxies(proxies, always, "*" in entries, rules)


def variable_of(name: str) -> str:
    """The variable from which `getproxies_environment` has read a proxy: that in lower case precedes (http: `http_proxy`)."""
    lower = f"{name}_proxy"
    return next((key for key in os.environ if key.lower() == lower and lower not in os.environ), lower)


def parse_no_proxy(entry: str) -> NoProxyRule:
    """Parses `example.org` and `.example.org` (with subdomains, as in curl), `*.example.org` (subdomains only), 10.0.0.0/8; with a port."""
    entry = entry.lower()
    if "://" in entry:
        url = URL(entry)
        return dataclasses.replace(
            parse_no_proxy(url.raw_host.decode()), port=url.port or DEFAULT_PORTS.get(url.scheme)
        )
    try:
        return NoProxyRule(network=ipaddress.ip_network(entry.strip("[]"), strict=False))
    except ValueError:
        pass
    host, colon, port = entry.rpartition(":")
    if colon and port.isdecimal() and len(port) < 6:
        return dataclasses.replace(parse_no_proxy(host), port=int(port))
    if entry.startswith("*."):
        return NoProxyRule(entry.lstrip("*").lstrip("."), with_host=False)
    return NoProxyRule(entry.lstrip("*").lstrip(".").rstrip("."))


def variable_with(value: str) -> str | None:
    """The variable that has this proxy."""
    found = getproxies_environment()
    return next((variable_of(name) for name in ("http", "https", "all") if found.get(name) == value), None)


def with_trust(tls: TLS | ssl.SSLContext, trust_env: bool) -> TLS | ssl.SSLContext:
    """Replaces trust="system": with "platform", which ignores the environment, or by SSL_CERT_FILE and SSL_CERT_DIR."""
    if not isinstance(tls, TLS) or tls.trust != "system":
        return tls
    is_set = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")
    trust = "platform" if not trust_env else "environment" if is_set else "system"
    return dataclasses.replace(tls, trust=trust)


def proxies_of(always: Proxy | None, *, uds: str | None, trust_env: bool, is_used: bool) -> Proxies:
    """The proxies of a client: the given one for all calls, else those of the environment. `is_used`: by the engine."""
    if always is None:
        return read_proxies() if trust_env and is_used and uds is None else Proxies()
    if uds is not None:
        raise ConfigError(
            "uds: a Unix socket cannot be reached through a proxy; remove one of the two arguments"
        )
    if always.tls is not None and not trust_env:
        tls = with_trust(always.tls, trust_env=False)
        always = Proxy(always.url, auth=always.auth, headers=always.headers, tls=tls)
    return Proxies(always=always)
