"""What must not stand in a message, a repr or a log line is taken out here, and only here.

Secrets are the values of fields that carry credentials and the userinfo of a URL (RFC 9110 4.2.4 asks not
to show it).
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

# scheme://userinfo@ up to the first character that ends an authority (RFC 3986 3.2); userinfo may itself hold
# an @ where a program forgot to escape it, hence greedy.
_USERINFO = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*://)[^/?#\s'\"]*@")

Text = TypeVar("Text", str, bytes)


def is_secret(name: str | bytes) -> bool:
    """Whether the field of this name carries a credential."""
    if isinstance(name, bytes):
        name = name.decode("latin-1")
    return name.strip().lower() in SECRET_FIELDS


def without_userinfo(text: str) -> str:
    """The text with user name and password of every URL in it hidden."""
    return _USERINFO.sub(rf"\1{HIDDEN}@", text) if "@" in text else text


def without_secrets(fields: Iterable[tuple[Text, Text]]) -> list[tuple[Text, Text]]:
    """The fields with the values of those that carry credentials hidden."""
    return [
        (name, (HIDDEN if isinstance(value, str) else HIDDEN.encode()) if is_secret(name) else value)
        for name, value in fields
    ]
