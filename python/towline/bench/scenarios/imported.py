"""The result of every import: a scenario whose requests come from elsewhere.

The files do not define the response: any 2xx or 3xx passes, with any body.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, quote, urlsplit

from .model import Body, Expect, Fields, Request, Scenario
from .table import ScenarioError

ANY = Expect(status=None, body=None)
MAX_REQUESTS = 1000
"""More are not sent in turn: each is a target of its own."""
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
NO_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
NO_HOST = re.compile(r"[^!-~]|[@\\^`{|}<>\"]")
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\u2028\u2029\ud800-\udfff]+")


@dataclass(frozen=True)
class Imported:
    """A scenario, and the origin of its requests."""

    scenario: Scenario
    origin: str
    """`http://host:port`; replaced by the subject's address in a measurement."""
    guessed: frozenset[str] = frozenset()
    """Targets with values that were made up: a server may refuse them."""


def imported(
    found: Sequence[tuple[str, Request]],
    name: str,
    source: str,
    notes: tuple[str, ...],
    guessed: frozenset[str] = frozenset(),
) -> Imported:
    """The scenario of these requests, which must have one origin. Raises `ScenarioError`."""
    origins = {same_origin(origin): origin for origin, _ in reversed(found)}
    if not found:
        raise ScenarioError(f"{source}: it contains no request")
    if len(origins) > 1:
        raise ScenarioError(
            f"{source}: one server is measured at a time, not {' and '.join(reversed(origins.values()))}"
        )
    requests = tuple(request for _, request in found)
    scenario = Scenario(name, "own", title_of(requests), source, requests=requests, notes=notes)
    return Imported(scenario, next(iter(origins.values())), guessed)


def title_of(requests: Sequence[Request]) -> str:
    """`GET /items and 3 more, in turn`."""
    first = f"{requests[0].method} {requests[0].target:.60}"
    return first + (f" and {len(requests) - 1} more, in turn" if len(requests) > 1 else "")


def same_origin(origin: str) -> str:
    """The origin in lower case, without the default port: equal for equal origins."""
    default = {"http": ":80", "https": ":443"}.get(origin.partition(":")[0].lower(), "")
    return origin.lower().removesuffix(default)


def url_parts(where: str, url: str) -> SplitResult:
    """The parts of a URL of http or https. Raises `ScenarioError`."""
    try:
        url.encode("utf-8", "surrogateescape")
        parts = urlsplit(url if SCHEME.match(url) else f"http://{url}")
        host = parts.hostname
        valid = bool(host) and parts.scheme in ("http", "https") and parts.port != 0
    except ValueError:
        valid = False
    if not valid or NO_HOST.search(_ascii(parts.netloc.rpartition("@")[2])):
        raise ScenarioError(f"{where}: {url[:200]!r} is no URL of http or https")
    return parts


def request_of(
    where: str,
    url: str,
    method: str,
    fields: Iterable[tuple[str, str]],
    body: bytes | None,
    expect: Expect = ANY,
) -> tuple[str, Request]:
    """The origin of `url`, and its request with Host in front and Content-Length at the end, unless `fields` have them.

    `where` begins the message of a `ScenarioError`.
    """
    parts = url_parts(where, url)
    if "@" in parts.netloc:
        raise ScenarioError(f"{where}: {url[:200]!r} has credentials; write them as an Authorization header")
    authority = _ascii(parts.netloc)
    target = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._[]|", errors="surrogateescape")
    target += f"?{graphic(parts.query)}" if parts.query else ""
    given: Fields = tuple(fields)
    names = {field_name.lower() for field_name, _ in given}
    if "host" not in names:
        given = (("Host", authority), *given)
    if "transfer-encoding" in names:
        raise ScenarioError(
            f"{where}: Transfer-Encoding is not imported; write a scenario file with `chunk_bytes`"
        )
    if body is not None and "content-length" not in names:
        given = (*given, ("Content-Length", str(len(body))))
    _check(where, method, given, len(body or b""))
    request = Request(target, method, given, Body(body) if body is not None else None, expect=expect)
    return f"{parts.scheme}://{authority}", request


def graphic(text: str) -> str:
    """The text with what no request target may have percent-encoded (RFC 9112 3.2): blanks, and bytes beyond ASCII."""
    octets = text.encode("utf-8", "surrogateescape")
    return "".join(chr(octet) if 0x20 < octet < 0x7F else f"%{octet:02X}" for octet in octets)


def content_of(where: str, name: str) -> bytes:
    """The bytes of a file that `where` names. Raises `ScenarioError`."""
    try:
        return Path(name).read_bytes()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ScenarioError(f"{where}: cannot read {name}: {why}") from None


@contextmanager
def malformed(where: str) -> Iterator[None]:
    """Makes one line of every error, also of what Python raises for data of the wrong form."""
    try:
        yield
    except ScenarioError as error:
        raise ScenarioError(UNPRINTABLE.sub(" ", str(error))) from None
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        MemoryError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ScenarioError(f"{where}: its data has a wrong form ({why})") from None


def _ascii(authority: str) -> str:
    """The authority with A-labels (RFC 5891), or as it is if it has none."""
    host, colon, port = authority.partition(":")
    if host.isascii():
        return authority
    import idna

    try:
        return f"{idna.encode(host.lower(), uts46=True, transitional=False).decode()}{colon}{port}"
    except (idna.IDNAError, UnicodeError):
        return authority


def _check(where: str, method: str, fields: Fields, body_bytes: int) -> None:
    if not TOKEN.fullmatch(method):
        raise ScenarioError(f"{where}: {method!r:.60} is no method")
    for name, value in fields:
        if not TOKEN.fullmatch(name) or NO_VALUE.search(value):
            raise ScenarioError(f"{where}: {name!r:.60} is no header field that can be sent")
        if name.lower() == "content-length" and value.strip() != str(body_bytes):
            raise ScenarioError(
                f"{where}: Content-Length is {value!r:.40}, and the body has {body_bytes} bytes"
            )
