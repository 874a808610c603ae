"""Checks that a server serves a scenario: sends each request once and verifies the response.

A subject that fails here has no figures, and the report shows the message.
"""

from __future__ import annotations

import base64
import typing
import zlib
from dataclasses import replace
from typing import Any

from .scenarios import Body, Expect, Protocol, Request, Scenario

WBITS = {"gzip": 31, "deflate": 15}
SHOWN_BYTES = 40
NAMES: dict[Protocol, tuple[str, str]] = {
    "h1": ("HTTP/1.1", "http/1.1"),
    "h2": ("HTTP/2", "h2"),
    "h3": ("HTTP/3", "h3"),
}
"""The agent's names of versions, and the ALPN protocol of each."""


class WrongResponse(Exception):
    """A wrong response, described in one line."""


class Prober(typing.Protocol):
    """The part of `runner.agent.Agent` that is used here."""

    def probe(self, session: str) -> list[dict[str, Any]]:
        """Sends each target of an open session once, on a new connection."""


def check(agent: Prober, session: str, scenario: Scenario, base_url: str, protocol: Protocol = "h1") -> None:
    """Sends every request of `scenario` over the open `session` to `base_url`. Raises `WrongResponse`."""
    responses = agent.probe(session)
    if len(responses) != len(scenario.requests):
        raise WrongResponse(f"{len(responses)} responses to {len(scenario.requests)} requests")
    for request, found in zip(scenario.requests, responses, strict=True):
        wanted = request if scenario.message is None else _echoing(request, scenario.message)
        problem = problem_of(
            found, wanted, secure=base_url.startswith("https:"), protocol=protocol, http_1_0=scenario.http_1_0
        )
        if problem is None and scenario.message is not None and found.get("message") != "text":
            problem = f"a {found.get('message')} message instead of text"
        if problem is not None:
            raise WrongResponse(f"{request.method} {request.target:.80}: {problem}")
    if scenario.concurrency(protocol) > 1 and any(found["closed"] for found in responses):
        raise WrongResponse("it closes the connection after a response, so that it cannot be reused")


def _echoing(request: Request, message: Body) -> Request:
    """Treats the expected message as the body of the handshake's response, which has none."""
    return replace(request, expect=replace(request.expect, body=message))


def problem_of(
    found: dict[str, Any],
    request: Request,
    *,
    secure: bool,
    protocol: Protocol = "h1",
    http_1_0: bool = False,
) -> str | None:
    """The first difference between a response, as the agent returns it, and the expected one; None if there is none."""
    wanted = request.expect
    if found["failure"] is not None:
        return f"no complete response: {found['failure']}"
    status = found["status"]
    if status != wanted.status and (wanted.status is not None or not 200 <= status < 400):
        return f"status {status} instead of {wanted.status or '2xx or 3xx'}{_shown(found)}"
    return (
        _protocol(found, protocol, secure=secure, http_1_0=http_1_0)
        or _fields(found["fields"], wanted)
        or _trailers(found["trailers"], wanted)
        or _body(found, wanted)
        or _interim(found, wanted)
        or _closing(found, wanted, protocol)
    )


def _protocol(
    found: dict[str, Any], protocol: Protocol, *, secure: bool, http_1_0: bool = False
) -> str | None:
    version, alpn = NAMES[protocol]
    accepted = {version, "HTTP/1.0"} if http_1_0 and protocol == "h1" else {version}
    if found["version"] not in accepted:
        return f"answered with {found['version']} instead of {version}"
    # A server of HTTP/1.1 alone need not support ALPN; HTTP/2 over TLS needs it (RFC 9113 3.2).
    if found["alpn"] != alpn and (found["alpn"] is not None or (secure and protocol != "h1")):
        return f"ALPN chose {found['alpn'] or 'nothing'} instead of {alpn}"
    if secure != (found["tls"] is not None):
        return "not over TLS" if secure else f"over {found['tls']}, which was not requested"
    return None


def _fields(fields: list[list[str]], wanted: Expect) -> str | None:
    coding = () if wanted.coding is None else (("Content-Encoding", wanted.coding),)
    for name, value in (*wanted.fields, *coding):
        values = [one for key, one in fields if key.lower() == name.lower()]
        if not values:
            return f"the field {name} is missing; it must be {value!r}"
        if values != [value]:
            return f"{name} is {', '.join(map(repr, values)):.120} instead of {value!r}"
    if wanted.coding is None:
        coded = [one for key, one in fields if key.lower() == "content-encoding"]
        if coded and wanted.body is not None:
            return f"coded as {coded[0]!r:.40}, which was not requested"
    return None


def _trailers(trailers: list[list[str]], wanted: Expect) -> str | None:
    for name, value in wanted.trailers:
        if [name.lower(), value] not in trailers:
            return f"the trailer {name} must be {value!r}; the trailers are {trailers!r:.120}"
    return None


def _body(found: dict[str, Any], wanted: Expect) -> str | None:
    if wanted.body is None:
        return None
    if found["body_base64"] is None:  # too long for the agent's reply
        return _digest(found, wanted)
    try:
        body = _decoded(base64.b64decode(found["body_base64"]), wanted.coding, wanted.body.length)
    except zlib.error as error:
        return f"the body is no {wanted.coding}: {error}"
    if body is None:
        return f"the {wanted.coding} body ends early, has something after its end, or is too long"
    return difference(body, wanted.body.whole())


def _digest(found: dict[str, Any], wanted: Expect) -> str | None:
    if wanted.body is None or wanted.coding is not None:
        return "the coded body is too long to be compared"
    if found["body_bytes"] != wanted.body.length:
        return f"{found['body_bytes']:,} bytes of body instead of {wanted.body.length:,}"
    if found["sha256"] != wanted.body.sha256:
        return f"the {found['body_bytes']:,} bytes of body are others than they must be (SHA-256)"
    return None


def difference(body: bytes, wanted: bytes) -> str | None:
    """The position where two bodies differ, or None."""
    if body == wanted:
        return None
    if len(body) != len(wanted):
        return f"{len(body):,} bytes of body instead of {len(wanted):,}: {body[:SHOWN_BYTES]!r}"
    at = next(at for at, (one, other) in enumerate(zip(body, wanted, strict=True)) if one != other)
    part = slice(at, at + 8)
    return f"the body differs at byte {at:,} of {len(body):,}: {body[part]!r} instead of {wanted[part]!r}"


def _decoded(body: bytes, coding: str | None, most: int) -> bytes | None:
    """The decoded content; None unless the coded form is exactly one stream of at most `most` bytes."""
    if coding is None:
        return body
    decoder = zlib.decompressobj(WBITS[coding])
    content = decoder.decompress(body, most + 1)
    whole = decoder.eof and not decoder.unused_data and not decoder.unconsumed_tail
    return content if whole and len(content) <= most else None


def _interim(found: dict[str, Any], wanted: Expect) -> str | None:
    if tuple(found["interim"]) == wanted.interim:
        return None
    came, must = (", ".join(map(str, one)) or "none" for one in (found["interim"], wanted.interim))
    return f"interim responses: {came} instead of {must}"


def _closing(found: dict[str, Any], wanted: Expect, protocol: Protocol) -> str | None:
    if wanted.closes is None or found["closed"] == wanted.closes:
        return None
    if protocol != "h1" and wanted.closes:
        return None  # HTTP/2 and HTTP/3 have no Connection header: the client closes
    # A server that announces a close may close (RFC 9112 9.6): gunicorn's sync worker always does.
    options = [one.lower() for key, one in found["fields"] if key.lower() == "connection"]
    if found["closed"] and "close" in options:
        return None
    return (
        "the connection was kept open" if wanted.closes else "the connection was closed after it, unannounced"
    )


def _shown(found: dict[str, Any]) -> str:
    """The beginning of a wrong response, which often contains the reason."""
    body = base64.b64decode(found["body_base64"] or "")
    return f": {body[:SHOWN_BYTES]!r}" if body else ""
