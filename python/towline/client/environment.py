"""What the environment says: proxies, trust, and which transport. Read when a client is made, and not again.

HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY count in either case; HTTP_PROXY does not inside a CGI program, whose
caller could set it (the standard library takes care of that). SSL_CERT_FILE and SSL_CERT_DIR replace the platform's
trust store.
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

from .options import TLS, Proxy
from .url import DEFAULT_PORTS, URL

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class NoProxyRule:
    """One entry of NO_PROXY: a network, or a host with or without what is below it, and maybe a port."""

    host: str = ""
    below: bool = True
    itself: bool = True
    network: _Network | None = None
    port: int | None = None

    def matches(self, host: str, address: Any, port: int) -> bool:
        if self.port is not None and self.port != port:
            return False
        if self.network is not None:
            return address is not None and address in self.network
        if host == self.host:
            return self.itself
        return self.below and host.endswith(f".{self.host}")


@dataclass(frozen=True)
class Proxies:
    """Which proxy a URL goes through."""

    by_scheme: Mapping[str, Proxy] = field(default_factory=dict)
    always: Proxy | None = None
    no_proxy_all: bool = False
    direct: tuple[NoProxyRule, ...] = ()

    def of(self, scheme: str, host: str, port: int) -> Proxy | None:
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
    """ConfigError where a variable names no proxy."""
    found = getproxies_environment()
    by_scheme = {scheme: _proxy(found[scheme]) for scheme in ("http", "https") if found.get(scheme)}
    always = _proxy(found["all"]) if found.get("all") else None
    entries = [entry for entry in found.get("no", "").replace(",", " ").split() if entry]
    return Proxies(
        by_scheme, always, "*" in entries, tuple(parse_no_proxy(entry) for entry in entries if entry != "*")
    )


def parse_no_proxy(entry: str) -> NoProxyRule:
    """`example.org`: it and what is below; `.example.org` and `*.example.org`: what is below; 10.0.0.0/8; a port."""
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
    if entry.startswith(("*.", ".")):
        return NoProxyRule(entry.lstrip("*").lstrip("."), itself=False)
    return NoProxyRule(entry.lstrip("*"))


def with_env_trust(tls: TLS | ssl.SSLContext) -> TLS | ssl.SSLContext:
    """SSL_CERT_FILE or SSL_CERT_DIR where the system's store was meant."""
    if isinstance(tls, TLS) and tls.trust == "system":
        for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
            if path := os.environ.get(name):
                return dataclasses.replace(tls, trust=path)
    return tls


def with_platform_trust(tls: TLS | ssl.SSLContext) -> TLS | ssl.SSLContext:
    """The system's store where it was meant, whatever the environment says."""
    if isinstance(tls, TLS) and tls.trust == "system":
        return dataclasses.replace(tls, trust="platform")
    return tls


def _proxy(value: str) -> Proxy:
    return Proxy(value if "://" in value else f"http://{value}")
