"""Removes secrets from messages, reprs and log lines.

Secrets are the values of header fields that carry credentials, and the userinfo of URLs (RFC 9110 4.2.4).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar

HIDDEN = "[secure]"

# Header fields that carry credentials by their names alone, and the words that mark others: X-Vault-Token, Private-Token,
# DD-API-KEY, X-Shopify-Access-Token, APCA-API-SECRET-KEY, X-Hub-Signature-256, CF-Access-Client-Secret, X-Auth-Key, ...
SECRET_FIELDS = frozenset(
    {
        "api-key",
        "authorization",
        "cb-access-sign",
        "cf-access-client-id",
        "cookie",
        "dd-application-key",
        "fastly-key",
        "openai-organization",
        "openai-project",
        "proxy-authorization",
        "set-cookie",
        "x-algolia-application-id",
        "x-auth",
        "x-honeycomb-team",
        "x-jfrog-art-api",
        "x-key",
        "x-parse-application-id",
        "x-tableau-auth",
    }
)
_SECRET_WORDS = re.compile(
    r"token|secret|passw|passphrase|credential|session|signature|jwt|csrf|xsrf"
    r"|(?:api|access|subscription|master|rest|private|license|app|application|client|service|account|admin)[-_]?key"
    r"|(?:^|[-_])auth(?:[-_]|$)|authorization",
    re.IGNORECASE,
)

# scheme://userinfo@ up to the first character that ends an authority (RFC 3986 3.2). Greedy: userinfo may contain an
# @ that a program did not escape.
_USERINFO = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*://)[^/?#\s'\"]*@")

Text = TypeVar("Text", str, bytes)


def is_secret(name: str | bytes) -> bool:
    """Whether a header field of this name carries a credential."""
    if isinstance(name, bytes):
        name = name.decode("latin-1")
    name = name.strip()
    return name.lower() in SECRET_FIELDS or _SECRET_WORDS.search(name) is not None


def without_userinfo(text: str) -> str:
    """Hides user name and password of every URL in a text."""
    return _USERINFO.sub(rf"\1{HIDDEN}@", text) if "@" in text else text


# Query parameters whose values are credentials: of signed URLs, and of interfaces that take a key in the URL.
_SECRET_PARAMETER = re.compile(
    r"([?&;][^=&;#\s]*(?:key|token|secret|passw|auth|signature|credential|session|jwt)[^=&;#\s]*"
    r"|[?&;](?:sig|code|pwd))=[^&;#\s]+",
    re.IGNORECASE,
)


def without_secret_parameters(url: str, hidden: str = HIDDEN) -> str:
    """Hides the values of query parameters that carry credentials."""
    return _SECRET_PARAMETER.sub(rf"\1={hidden}", url)


def public_url(url: str) -> str:
    """The URL without userinfo, fragment and the values of query parameters that carry credentials."""
    return without_secret_parameters(without_userinfo(url).partition("#")[0])


def without_secrets(fields: Iterable[tuple[Text, Text]]) -> list[tuple[Text, Text]]:
    """Hides the values of header fields that carry credentials."""
    return [
        (name, (HIDDEN if isinstance(value, str) else HIDDEN.encode()) if is_secret(name) else value)
        for name, value in fields
    ]
