"""`mounts=`: transports by URL pattern, as in httpx. The most specific pattern wins."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError
from .url import URL


class URLPattern:
    """`all://`, `https://`, `all://*.example.org`, `all://*example.org`, `http://example.org:8080`."""

    def __init__(self, pattern: str) -> None:
        if pattern and ":" not in pattern:
            raise ConfigError(f"mounts: {pattern!r} is not a pattern; write '{pattern}://'")
        scheme, _, rest = pattern.partition("://")
        wildcard = re.match(r"\*?\.?", rest)
        prefix = wildcard[0] if wildcard and rest.startswith("*") else ""
        url = URL(f"{scheme or 'all'}://{rest[len(prefix) :]}")
        self.pattern = pattern
        self.scheme = "" if scheme in ("all", "") else scheme.lower()
        self.host = url._host
        self.port = url.port
        self._matches_subdomains = bool(prefix)
        self._matches_host = prefix != "*."

    def matches(self, url: URL) -> bool:
        if self.scheme and self.scheme != url.scheme:
            return False
        if self.port is not None and self.port != url.port:
            return False
        if not self.host or (self._matches_host and url._host == self.host):
            return True
        return self._matches_subdomains and url._host.endswith(f".{self.host}")

    @property
    def priority(self) -> tuple[int, int, int, int]:
        """A sort key: patterns with a port first, then longer hosts, without wildcard, with a scheme."""
        return (self.port is None, -len(self.host), self._matches_subdomains, -len(self.scheme))

    def __repr__(self) -> str:
        return f"URLPattern({self.pattern!r})"


class Mounts:
    """The `mounts=` of a client. None as transport: the client's own transport, without a proxy."""

    def __init__(self, mounts: Mapping[str, Any] | None) -> None:
        patterns = [(URLPattern(pattern), transport) for pattern, transport in (mounts or {}).items()]
        self._mounts = sorted(patterns, key=lambda mount: mount[0].priority)

    def find(self, url: URL) -> tuple[bool, Any]:
        """Returns whether a pattern matches, and its transport."""
        for pattern, transport in self._mounts:
            if pattern.matches(url):
                return True, transport
        return False, None

    @property
    def transports(self) -> list[Any]:
        return [transport for _, transport in self._mounts if transport is not None]

    def __bool__(self) -> bool:
        return bool(self._mounts)
