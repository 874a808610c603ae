"""Parsers of the values of single options. Each raises ValueError with a message that completes "NAME: ..."."""

from __future__ import annotations

import re
from collections.abc import Callable

from . import _options as kind
from ._codings import CODINGS, REQUEST_CODINGS
from .errors import ConfigError

LOG_LEVELS = {"trace": 5, "debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
SECRET_PARAMETERS = (
    "access_token",
    "api_key",
    "apikey",
    "awsaccesskeyid",
    "client_secret",
    "id_token",
    "passwd",
    "password",
    "refresh_token",
    "secret",
    "sig",
    "signature",
    "token",
    "x-amz-credential",
    "x-amz-security-token",
    "x-amz-signature",
    "x-goog-credential",
    "x-goog-signature",
)
"""Names under which credentials are passed in URLs (OAuth, signed URLs of AWS, Azure and Google Cloud)."""
CERT_REQS = ("none", "optional", "required")


RATE_UNITS = {"s": 1, "m": 60, "h": 3600}
MAX_RATE_PER_S = 50_000
"""Beyond it the interval between two requests is too short for the clock of the limit."""
MAX_BURST_PERIOD = 3 * 86400
"""Seconds in which the rate must give a burst back: the clock of the limit wraps after some months."""


def rate(value: str) -> tuple[int, int]:
    """Parse `100/s`, `600/m` or `5000/h`, also as nginx's `100r/s`: the number of requests, and of seconds."""
    match = re.fullmatch(r"([0-9]{1,9})r?/([smh])", value, re.ASCII)
    if match is None or not 0 < int(match[1]) <= MAX_RATE_PER_S * RATE_UNITS[match[2]]:
        raise ValueError(
            f"expected a rate such as 100/s, 600/m or 5000/h, up to {MAX_RATE_PER_S}/s, not {value!r}"
        )
    return int(match[1]), RATE_UNITS[match[2]]


def is_rate(name: str, value: object) -> None:
    """Check a rate, if there is one."""
    try:
        if value is not None:
            rate(str(value))
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None


def is_rate_key(name: str, value: str) -> None:
    """Check what tells the clients of a rate apart."""
    if not re.fullmatch(r"address|header:[!#$%&'*+.^_`|~0-9A-Za-z-]+", value):
        raise ConfigError(f"{name}: expected address or header:NAME, not {value!r}")


def pair(separator: str, example: str) -> Callable[[str], tuple[tuple[str, str], ...]]:
    def parse(value: str) -> tuple[tuple[str, str], ...]:
        left, found, right = value.partition(separator)
        if not found or not left or not right:
            raise ValueError(f"expected {example}, not {value!r}")
        return ((left, right),)

    return parse


def header(value: str) -> tuple[tuple[bytes, bytes], ...]:
    name, found, content = value.partition(":")
    if not found or not name:
        raise ValueError(f"expected NAME:VALUE, not {value!r}")
    return ((name.encode("latin-1"), content.strip().encode("latin-1")),)


def codings(value: str, every: tuple[str, ...] = CODINGS) -> tuple[str, ...]:
    lowered = value.strip().lower()
    if lowered in ("true", "yes", "on", "all", "1"):
        return every
    if lowered in ("false", "no", "off", "none", "0"):
        return ()
    return kind.words(lowered)


def request_codings(value: str) -> tuple[str, ...]:
    return codings(value, REQUEST_CODINGS)


def cert_reqs(value: str) -> str:
    """Parse a name, or a number of the ssl module as uvicorn and gunicorn accept."""
    return CERT_REQS[int(value)] if value in ("0", "1", "2") else value


def static_route(value: str) -> tuple[tuple[str, str], ...]:
    route, found, directory = value.partition("=")
    return ((route, directory),) if found else (("/static", value),)


def one(value: str) -> tuple[str, ...]:
    """One value of a repeatable option."""
    return (value,)


def workers(value: str) -> int:
    """A number of processes; 0 for `auto`."""
    try:
        return 0 if value.strip().lower() == "auto" else kind.integer(value)
    except ValueError:
        raise ValueError(f"expected a whole number or auto, not {value!r}") from None


def colons(value: str) -> tuple[str, ...]:
    """A list separated by colons, as OpenSSL writes cipher suites, or as any other list."""
    return kind.words(value.replace(":", " "))


def variable(value: str) -> tuple[tuple[str, str], ...]:
    name, found, content = value.partition("=")
    if not found or not name:
        raise ValueError(f"expected NAME=VALUE, not {value!r}")
    return ((name, content),)


def octal(value: str) -> int:
    """File permissions: `660`, `0660` or `0o660`."""
    digits = value.strip().removeprefix("0o")
    if not re.fullmatch(r"[0-7]{1,5}", digits):
        raise ValueError(f"expected octal permissions such as 660, not {value!r}")
    return int(digits, 8)


def tls_version(value: str) -> str:
    """`1.2` or `1.3`, also as `tls1.2`, `TLSv1.2` and `TLSv1_2`."""
    match = re.fullmatch(r"(?:tls_?v?)?1[._]([0-9])", value.strip().lower())
    if match is None:
        raise ValueError(f"expected 1.2 or 1.3, not {value!r}")
    if match[1] not in "23":
        raise ValueError(f"TLS 1.{match[1]} is insecure and not supported (RFC 8996); expected 1.2 or 1.3")
    return f"1.{match[1]}"


def share(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"expected a number from 0 to 1, not {value!r}") from None


def access_log_rules(name: str, rules: tuple[str, ...]) -> None:
    """Check rules that exclude requests from the access log."""
    for rule in rules:
        if not re.fullmatch(r"[/*].*|[1-5](?:xx|\d\d)(?::[/*].*)?", rule, re.ASCII | re.DOTALL):
            raise ConfigError(
                f"{name}: expected a path that begins with / or *, a status such as 404 or 2xx, or STATUS:PATH, "
                f"not {rule!r}"
            )


def redacted_parameters(value: str) -> tuple[str, ...]:
    """Parse the names of query parameters; `none` is no name."""
    return () if value.strip().lower() == "none" else kind.words(value)


def hsts(value: str | int) -> str:
    """The value of Strict-Transport-Security (RFC 6797 6.1): seconds or a duration first, with or without `max-age=`."""
    first, *others = (part.strip() for part in str(value).split(";"))
    age = kind.seconds(first.lower().removeprefix("max-age="))
    known = {"includesubdomains": "includeSubDomains", "preload": "preload"}
    if not all(other.lower() in known for other in others):
        raise ValueError(f"expected SECONDS, perhaps with `; includeSubDomains; preload`, not {value!r}")
    if not 0 <= age < float("inf"):
        raise ValueError(f"must be a number of at least 0, not {first!r}")
    return "; ".join([f"max-age={age:.0f}", *(known[other.lower()] for other in others)])


def is_hsts(name: str, value: str | int | None) -> None:
    """Check the value of `--hsts`."""
    try:
        hsts("0" if value is None else value)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None


def statsd_target(address: str) -> tuple[str, int] | str:
    """Parse `HOST`, `HOST:PORT`, `[IPV6]:PORT`, or the path of `unix:PATH`, also as `unix://PATH`.

    The default port is StatsD's, 8125.
    """
    if address.startswith("unix:"):
        return address.removeprefix("unix:").removeprefix("//")
    match = re.fullmatch(r"(?:\[([^]]+)\]|([^:\s]+))(?::(\d{1,5}))?", address, re.ASCII)
    if match is None or not 0 < int(match[3] or 8125) < 65536:
        raise ValueError(f"expected HOST:PORT or unix:PATH, not {address!r}")
    return match[1] or match[2], int(match[3] or 8125)
