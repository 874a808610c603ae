"""Location of a store: the environment variable through which a server passes it to its workers, and which kinds there are."""

from __future__ import annotations

import re

from .errors import UsageError

STATE_VARIABLE = "TOWLINE_STATE"
workers_user: int | None = None
"""User of the workers of this process's server. Root opens a store of this user, when it imports the application (`--preload`)."""
SCHEMES = ("file", "redis", "rediss", "unix", "valkey", "valkeys")
_ADDRESS = re.compile(r"[\w.-]+:\d+(/\d*)?")


def scheme_of(location: str) -> str:
    """The scheme of a store's URL, `file` of a directory. Raises `UsageError` for what was meant as a URL and is none."""
    scheme, separator, _ = location.partition("://")
    if separator:
        if scheme not in SCHEMES:
            raise UsageError(f"there is no store for {scheme}://; there is {', '.join(SCHEMES)}")
        return scheme
    scheme, colon, _ = location.partition(":")
    if colon and scheme in SCHEMES:
        raise UsageError(f"{location!r} is no URL: {scheme}:// has two slashes")
    if _ADDRESS.fullmatch(location):
        raise UsageError(
            f"{location!r} is neither a URL, redis://{location}, nor a directory, which is ./{location} with this name"
        )
    return "file"
