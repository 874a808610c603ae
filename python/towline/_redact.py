"""Removes secrets from messages, reprs and log lines.

Secrets are the values of header fields that carry credentials, and the userinfo of URLs (RFC 9110 4.2.4).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar

HIDDEN = "[secure]"

# Patterns are text, which `re` compiles and keeps when it is first used: compiling them here would delay every start.
# Words in names of header fields that carry credentials: X-Vault-Token, Private-Token, DD-API-KEY, APCA-API-SECRET-KEY,
# X-Shopify-Access-Token, X-Hub-Signature-256, CF-Access-Client-Secret, X-Auth-Key, ...
_SECRET_WORDS = (
    r"(?i)token|secret|passw|passphrase|credential|session|signature|jwt|csrf|xsrf"
    r"|(?:api|access|subscription|master|rest|private|license|app|application|client|service|account|admin)[-_]?key"
    r"|(?:^|[-_])auth(?:[-_]|$)|authorization"
)
# Fields that carry credentials and have none of these words.
SECRET_FIELDS = frozenset(
    {
        "cb-access-sign",
        "cf-access-client-id",
        "cookie",
        "fastly-key",
        "openai-organization",
        "openai-project",
        "set-cookie",
        "x-algolia-application-id",
        "x-honeycomb-team",
        "x-jfrog-art-api",
        "x-key",
        "x-parse-application-id",
    }
)

# scheme://userinfo@ up to the first character that ends an authority (RFC 3986 3.2). Greedy: userinfo may contain an
# @ that a program did not escape.
_USERINFO = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*://)[^/?#\s'\"]*@")
# Query parameters whose values are credentials: of signed URLs, and of interfaces that take a key in the URL.
_SECRET_PARAMETER = (
    r"(?i)([?&;][^=&;#\s]*(?:key|token|secret|passw|auth|signature|credential|session|jwt)[^=&;#\s]*"
    r"|[?&;](?:sig|code|pwd))=[^&;#\s]+"
)

Text = TypeVar("Text", str, bytes)


def is_secret(name: str | bytes) -> bool:
    """Whether a header field of this name carries a credential."""
    if isinstance(name, bytes):
        name = name.decode("latin-1")
    name = name.strip()
    return name.lower() in SECRET_FIELDS or re.search(_SECRET_WORDS, name) is not None


def without_userinfo(text: str) -> str:
    """Hides user name and password of every URL in a text."""
    return _USERINFO.sub(rf"\1{HIDDEN}@", text) if "@" in text else text


def without_credentials(url: str) -> str:
    """Hides everything before the host of a URL but its scheme, even if the URL cannot be parsed."""
    _, at, rest = url.rpartition("@")
    scheme = re.match(r"[A-Za-z][A-Za-z0-9+.\-]*://", url)
    return f"{scheme[0] if scheme else ''}{HIDDEN}@{rest}" if at else url


def without_secret_parameters(url: str, hidden: str = HIDDEN) -> str:
    """Hides the values of query parameters that carry credentials."""
    return re.sub(_SECRET_PARAMETER, rf"\1={hidden}", url) if "=" in url else url


def without_secrets(fields: Iterable[tuple[Text, Text]]) -> list[tuple[Text, Text]]:
    """Hides the values of header fields that carry credentials."""
    return [
        (name, (HIDDEN if isinstance(value, str) else HIDDEN.encode()) if is_secret(name) else value)
        for name, value in fields
    ]
