"""Removes secrets from messages, reprs and log lines.

Secrets are the values of header fields that carry credentials, and the userinfo of URLs (RFC 9110 4.2.4).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar

HIDDEN = "[secure]"

SECRET_FIELDS = frozenset(
    {
        "api-key",
        "apikey",
        "authorization",
        "cookie",
        "ocp-apim-subscription-key",
        "proxy-authorization",
        "set-cookie",
        "x-amz-security-token",
        "x-api-key",
        "x-auth-token",
        "x-csrf-token",
        "x-goog-api-key",
    }
)

# scheme://userinfo@ up to the first character that ends an authority (RFC 3986 3.2). Greedy: userinfo may contain an
# @ that a program did not escape.
_USERINFO = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*://)[^/?#\s'\"]*@")

Text = TypeVar("Text", str, bytes)


def is_secret(name: str | bytes) -> bool:
    """Whether a header field of this name carries a credential."""
    if isinstance(name, bytes):
        name = name.decode("latin-1")
    return name.strip().lower() in SECRET_FIELDS


def without_userinfo(text: str) -> str:
    """Hides user name and password of every URL in a text."""
    return _USERINFO.sub(rf"\1{HIDDEN}@", text) if "@" in text else text


def without_secrets(fields: Iterable[tuple[Text, Text]]) -> list[tuple[Text, Text]]:
    """Hides the values of header fields that carry credentials."""
    return [
        (name, (HIDDEN if isinstance(value, str) else HIDDEN.encode()) if is_secret(name) else value)
        for name, value in fields
    ]
